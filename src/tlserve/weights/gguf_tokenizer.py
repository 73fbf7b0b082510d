"""The vocabulary in a GGUF file's metadata, as plain data.

Leaves building a tokenizer to the text room. Every id that is handed on is below the number of tokens.
"""

from __future__ import annotations

from typing import Final

from tlserve.errors import CheckpointError, UnsupportedModelError
from tlserve.weights.contents import GgufBpe, GgufSpm
from tlserve.weights.fields import Fields

PREFIX: Final = "tokenizer.ggml"
CONTROL: Final = 3
"""Token type of the control tokens."""

END_TOKENS: Final = (
    "<|im_end|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "<|end_of_text|>",
)
"""Control tokens that end an answer although metadata name only one end token."""


def read_tokenizer(metadata: Fields) -> GgufBpe | GgufSpm:
    """The vocabulary.

    Raises:
        CheckpointError: a list is missing, or lists contradict each other.
        UnsupportedModelError: a kind of tokenizer that is not served.
    """
    kind = metadata.required(f"{PREFIX}.model", str)
    if kind == "gpt2":
        return _read_bpe(metadata)
    if kind == "llama":
        return _read_spm(metadata)
    problem = f"{PREFIX}.model is {kind!r}; served are 'gpt2' (byte-level BPE) and 'llama' (SentencePiece)"
    raise UnsupportedModelError(f"{metadata.origin}: {problem}")


def end_token_ids(metadata: Fields, tokenizer: GgufBpe | GgufSpm) -> tuple[int, ...]:
    """The tokens that end an answer: the one that metadata name, then the end-of-turn tokens known by their text."""
    named = [_token_id(metadata, f"{name}_token_id", len(tokenizer.tokens)) for name in ("eos", "eot", "eom")]
    ends = frozenset(END_TOKENS)
    known = [
        token for token, text in enumerate(tokenizer.tokens) if text in ends and tokenizer.token_types[token] == CONTROL
    ]
    return tuple(dict.fromkeys(token for token in [*named, *known] if token is not None))


def token_text(tokenizer: GgufBpe | GgufSpm, token: int | None) -> str:
    """A control token as the template writes it; "" where there is none."""
    return "" if token is None else tokenizer.tokens[token]


def _read_bpe(metadata: Fields) -> GgufBpe:
    tokens = _tokens(metadata)
    merges = metadata.texts(f"{PREFIX}.merges")
    if not merges:
        raise CheckpointError(f"{metadata.origin}: {PREFIX}.merges is missing or empty; BPE cannot work without")
    return GgufBpe(
        tokens=tokens,
        token_types=_token_types(metadata, len(tokens)),
        merges=merges,
        pre=metadata.get(f"{PREFIX}.pre", "default"),
        bos_id=_token_id(metadata, "bos_token_id", len(tokens)),
        eos_id=_token_id(metadata, "eos_token_id", len(tokens)),
        unk_id=_token_id(metadata, "unknown_token_id", len(tokens)),
        add_bos=metadata.get(f"{PREFIX}.add_bos_token", _bpe_adds_bos(metadata)),
        add_eos=metadata.get(f"{PREFIX}.add_eos_token", False),
        add_space_prefix=metadata.get(f"{PREFIX}.add_space_prefix", False),
    )


def _read_spm(metadata: Fields) -> GgufSpm:
    tokens = _tokens(metadata)
    scores = metadata.floats(f"{PREFIX}.scores")
    if len(scores) != len(tokens):
        raise CheckpointError(f"{metadata.origin}: {len(tokens)} tokens but {len(scores)} {PREFIX}.scores")
    return GgufSpm(
        tokens=tokens,
        scores=scores,
        token_types=_token_types(metadata, len(tokens)),
        bos_id=_token_id(metadata, "bos_token_id", len(tokens)),
        eos_id=_token_id(metadata, "eos_token_id", len(tokens)),
        unk_id=_token_id(metadata, "unknown_token_id", len(tokens)),
        add_bos=metadata.get(f"{PREFIX}.add_bos_token", True),
        add_eos=metadata.get(f"{PREFIX}.add_eos_token", False),
        add_space_prefix=metadata.get(f"{PREFIX}.add_space_prefix", True),
    )


def _tokens(metadata: Fields) -> tuple[str, ...]:
    tokens = metadata.texts(f"{PREFIX}.tokens")
    if not tokens:
        raise CheckpointError(f"{metadata.origin}: {PREFIX}.tokens is missing or empty")
    return tokens


def _token_types(metadata: Fields, num_tokens: int) -> tuple[int, ...]:
    types = metadata.integers(f"{PREFIX}.token_type")
    if len(types) != num_tokens:
        raise CheckpointError(f"{metadata.origin}: {num_tokens} tokens but {len(types)} {PREFIX}.token_type")
    return types


def _token_id(metadata: Fields, name: str, num_tokens: int) -> int | None:
    token = metadata.token_id(f"{PREFIX}.{name}")
    if token is not None and token >= num_tokens:
        metadata.fail(f"{PREFIX}.{name}", f"below the number of tokens, {num_tokens}")
    return token


def _bpe_adds_bos(metadata: Fields) -> bool:
    """Files older than the add_bos_token key: only the tokenizers of Llama 3 and of Mistral begin a text with theirs."""
    return metadata.get(f"{PREFIX}.pre", "default") in ("llama3", "llama-v3", "llama-bpe", "tekken")
