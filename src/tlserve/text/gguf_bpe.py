"""Builds the byte-level BPE tokenizer that the metadata of a GGUF file describes.

Reading the file is somebody else's; here its arrays become a tokenizer, or a refusal that names what does not fit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

import tokenizers
from attrs import frozen
from tokenizers import models, normalizers, pre_tokenizers

from tlserve.errors import CheckpointError, UnsupportedModelError
from tlserve.text.gguf_vocab import GgufVocab
from tlserve.text.pieces import byte_level_bytes
from tlserve.text.vocab_tokenizer import VocabTokenizer, Vocabulary

# What splits a text into words before merging. Each is a fact of the models that were trained with it.
_WORDS = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_SIGNS = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_LLAMA3 = rf"{_CONTRACTIONS}|{_WORDS}|\p{{N}}{{1,3}}|{_SIGNS}|{_SPACES}"
_QWEN2 = rf"{_CONTRACTIONS}|{_WORDS}|\p{{N}}|{_SIGNS}|{_SPACES}"
_HIGH, _LOW = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_TEKKEN = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_HIGH}*{_LOW}+|[^\r\n\p{{L}}\p{{N}}]?{_HIGH}+{_LOW}*"
    rf"|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACES}"
)


def _gpt2() -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)


def _digits_then_gpt2() -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), _gpt2()])


def _split(pattern: str) -> Callable[[], pre_tokenizers.PreTokenizer]:
    def build() -> pre_tokenizers.PreTokenizer:
        words = pre_tokenizers.Split(tokenizers.Regex(pattern), behavior="isolated")
        return pre_tokenizers.Sequence([words, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])

    return build


@frozen
class _Family:
    """The rules that go by one name in ``tokenizer.ggml.pre``.

    Attributes:
        split: Makes the pre-tokenizer.
        whole_words: A word that is in the vocabulary is one token, whatever the merges say.
        add_bos: Whether BOS goes in front when the file does not say.
        nfc: Whether text is composed (Unicode NFC) first.
    """

    split: Callable[[], pre_tokenizers.PreTokenizer]
    whole_words: bool = False
    add_bos: bool = False
    nfc: bool = False


_LLAMA3_FAMILY = _Family(_split(_LLAMA3), whole_words=True, add_bos=True)
_QWEN2_FAMILY = _Family(_split(_QWEN2), nfc=True)
_FAMILIES: Mapping[str, _Family] = MappingProxyType({
    "default": _Family(_gpt2),
    "gpt-2": _Family(_gpt2),
    "smollm": _Family(_digits_then_gpt2),
    "llama-bpe": _LLAMA3_FAMILY,
    "llama-v3": _LLAMA3_FAMILY,
    "llama3": _LLAMA3_FAMILY,
    "qwen2": _QWEN2_FAMILY,
    "deepseek-r1-qwen": _QWEN2_FAMILY,
    "tekken": _Family(_split(_TEKKEN), whole_words=True, add_bos=True),
})  # fmt: skip


def from_gguf_bpe(
    tokens: Sequence[str],
    merges: Sequence[str],
    token_types: Sequence[int],
    *,
    pre: str | None,
    bos_id: int | None = None,
    add_bos: bool | None = None,
) -> VocabTokenizer:
    """Builds the tokenizer of a GGUF file whose ``tokenizer.ggml.model`` is ``gpt2``.

    A byte without a token (SmolLM2 lacks a few control characters) is dropped from the input, as in training.

    Args:
        tokens: ``tokenizer.ggml.tokens``: the strings of all ids, normal ones in GPT-2's byte alphabet.
        merges: ``tokenizer.ggml.merges``: pairs with one space between, best first.
        token_types: ``tokenizer.ggml.token_type``, as long as ``tokens``.
        pre: ``tokenizer.ggml.pre``; files older than this key read as ``"default"``, which is GPT-2's rule.
        bos_id: ``tokenizer.ggml.bos_token_id``.
        add_bos: ``tokenizer.ggml.add_bos_token``; if the file does not say, the family's custom.

    Raises:
        UnsupportedModelError: The pre-tokenizer is not one of those known here.
        CheckpointError: The arrays contradict each other.
    """
    family = _family(pre)
    vocab = GgufVocab(tokens, token_types)
    library = tokenizers.Tokenizer(_bpe(vocab.ids, merges, whole_words=family.whole_words))
    library.pre_tokenizer = family.split()
    if family.nfc:
        library.normalizer = normalizers.NFC()
    library.add_tokens(vocab.added_tokens())
    return VocabTokenizer(
        Vocabulary(
            library=library,
            pieces=vocab.tokens,
            control=vocab.control,
            verbatim=vocab.user_defined,
            to_bytes=byte_level_bytes,
            bos_ids=vocab.bos_ids(bos_id, add_bos=family.add_bos if add_bos is None else add_bos),
        )
    )


def _family(pre: str | None) -> _Family:
    name = "default" if pre is None else pre
    if name not in _FAMILIES:
        raise UnsupportedModelError(
            f"tokenizer.ggml.pre = {name!r} is not a pre-tokenizer that tlserve knows: use a model with one of "
            f"{', '.join(sorted(_FAMILIES))}, or put its tokenizer.json beside it"
        )
    return _FAMILIES[name]


def _bpe(ids: Mapping[str, int], merges: Sequence[str], *, whole_words: bool) -> models.BPE:
    pairs = [_pair(merge, ids) for merge in merges]
    return models.BPE(vocab=dict(ids), merges=pairs, ignore_merges=whole_words)


def _pair(merge: str, ids: Mapping[str, int]) -> tuple[str, str]:
    left, space, right = merge.partition(" ")
    if not (left in ids and right in ids and space and left + right in ids):
        raise CheckpointError(f"the merge {merge!r} does not join two tokens of the vocabulary into a third")
    return left, right
