"""Builds the SentencePiece tokenizer that the metadata of a GGUF file describes (Llama 2, Mistral, Gemma).

SentencePiece's BPE joins, again and again, the two neighbours whose union is the piece with the best score (Kudo and
Richardson, "SentencePiece", 2018). Ordered by that score, all ways to split a piece in two are a list of merges, which
the ``tokenizers`` library runs. A character without a piece becomes its bytes.
"""

from __future__ import annotations

from collections.abc import Sequence

import tokenizers
from tokenizers import models, normalizers

from tlserve.errors import CheckpointError
from tlserve.text.gguf_vocab import GgufVocab, TokenType
from tlserve.text.pieces import SPACE, sentencepiece_bytes
from tlserve.text.vocab_tokenizer import VocabTokenizer, Vocabulary


def from_gguf_spm(
    tokens: Sequence[str],
    scores: Sequence[float],
    token_types: Sequence[int],
    *,
    bos_id: int | None = None,
    add_bos: bool = True,
    add_space_prefix: bool = True,
) -> VocabTokenizer:
    """Builds the tokenizer of a GGUF file whose ``tokenizer.ggml.model`` is ``llama``.

    The bytes of encoded tokens join to the text again, but for what SentencePiece does not keep: with
    ``add_space_prefix`` a space is put before each stretch of plain text, and U+2581 in a text is read as a space.

    Args:
        tokens: ``tokenizer.ggml.tokens``: the strings of all ids; U+2581 is a space, ``<0x0A>`` a byte.
        scores: ``tokenizer.ggml.scores``, as long as ``tokens``; a higher score is joined first.
        token_types: ``tokenizer.ggml.token_type``, as long as ``tokens``.
        bos_id: ``tokenizer.ggml.bos_token_id``.
        add_bos: ``tokenizer.ggml.add_bos_token``.
        add_space_prefix: ``tokenizer.ggml.add_space_prefix``.

    Raises:
        CheckpointError: The arrays contradict each other.
    """
    vocab = GgufVocab(tokens, token_types)
    if len(scores) != len(tokens):
        raise CheckpointError(f"the vocabulary has {len(tokens)} tokens but {len(scores)} scores")
    unknown = min(vocab.of_type(TokenType.UNKNOWN), default=None)
    model = models.BPE(
        vocab=dict(vocab.ids),
        merges=_merges(vocab, scores),
        unk_token=None if unknown is None else tokens[unknown],
        byte_fallback=True,
    )
    library = tokenizers.Tokenizer(model)
    spaces = normalizers.Replace(" ", SPACE)
    library.normalizer = normalizers.Sequence([normalizers.Prepend(SPACE), spaces]) if add_space_prefix else spaces
    library.add_tokens(vocab.added_tokens())
    return VocabTokenizer(
        Vocabulary(
            library=library,
            pieces=vocab.tokens,
            control=vocab.control,
            verbatim=vocab.user_defined,
            to_bytes=sentencepiece_bytes,
            bos_ids=vocab.bos_ids(bos_id, add_bos=add_bos),
        )
    )


def _merges(vocab: GgufVocab, scores: Sequence[float]) -> list[tuple[str, str]]:
    """Every split of every normal piece into two, best piece first; control tokens and bytes are left out."""
    normal = vocab.of_type(TokenType.NORMAL)
    parts = frozenset(vocab.tokens[token] for token in normal)
    return [
        (piece[:cut], piece[cut:])
        for piece in (vocab.tokens[token] for token in sorted(normal, key=lambda token: (-scores[token], token)))
        for cut in range(1, len(piece))
        if piece[:cut] in parts and piece[cut:] in parts
    ]
