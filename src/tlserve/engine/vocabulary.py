"""From the vocabulary that a checkpoint carries to the tokenizer that speaks it: the one place that knows both rooms."""

from __future__ import annotations

from typing import assert_never

from tlserve.text.byte_tokenizer import ByteTokenizer
from tlserve.text.gguf_bpe import from_gguf_bpe
from tlserve.text.gguf_spm import from_gguf_spm
from tlserve.text.tokenizer import Tokenizer
from tlserve.text.tokenizer_json import from_tokenizer_json
from tlserve.weights import contents


def build_tokenizer(source: contents.TokenizerSource, *, bos_token: str | None = None) -> Tokenizer:
    """The tokenizer of a model; ``bos_token`` is what its configuration calls so, where the vocabulary does not say.

    Raises:
        CheckpointError: the vocabulary contradicts itself.
        UnsupportedModelError: its kind is not served.
    """
    match source:
        case contents.ByteTokenizer():
            return ByteTokenizer()
        case contents.JsonTokenizer():
            return from_tokenizer_json(source.data, add_bos=source.add_bos, bos_token=bos_token)
        case contents.GgufBpe():
            return from_gguf_bpe(
                source.tokens,
                source.merges,
                source.token_types,
                pre=source.pre,
                bos_id=source.bos_id,
                add_bos=source.add_bos,
            )
        case contents.GgufSpm():
            return from_gguf_spm(
                source.tokens,
                source.scores,
                source.token_types,
                bos_id=source.bos_id,
                add_bos=source.add_bos,
                add_space_prefix=source.add_space_prefix,
            )
        case _:
            assert_never(source)
