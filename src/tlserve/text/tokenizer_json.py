"""Builds the tokenizer that a Hugging Face ``tokenizer.json`` describes."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType

import tokenizers

from tlserve.errors import CheckpointError, UnsupportedModelError
from tlserve.text.pieces import byte_level_bytes, sentencepiece_bytes
from tlserve.text.vocab_tokenizer import VocabTokenizer, Vocabulary

# Which decoder of the file says how pieces spell bytes.
_SPELLINGS: Mapping[str, Callable[[str], bytes]] = MappingProxyType({
    "ByteLevel": byte_level_bytes,
    "ByteFallback": sentencepiece_bytes,
    "Metaspace": sentencepiece_bytes,
})  # fmt: skip


def from_tokenizer_json(data: bytes, *, add_bos: bool | None = None, bos_token: str | None = None) -> VocabTokenizer:
    """Builds the tokenizer of a ``tokenizer.json``.

    Args:
        data: The file.
        add_bos: ``add_bos_token`` of tokenizer_config.json; None: what the file's post-processor puts in front.
        bos_token: ``bos_token`` of tokenizer_config.json, for files whose post-processor puts nothing there.

    Raises:
        CheckpointError: The file is damaged or contradicts itself.
        UnsupportedModelError: Its pieces spell bytes in a way that is not known here, as those of WordPiece do.
    """
    library = _read(data)
    pieces = _pieces(library)
    added = library.get_added_tokens_decoder()
    return VocabTokenizer(
        Vocabulary(
            library=library,
            pieces=pieces,
            control=frozenset(token for token, entry in added.items() if entry.special),
            verbatim=frozenset(token for token, entry in added.items() if not entry.special),
            to_bytes=_spelling(data),
            bos_ids=_bos_ids(library, bos_token, add_bos=add_bos),
        )
    )


def _read(data: bytes) -> tokenizers.Tokenizer:
    try:
        library = tokenizers.Tokenizer.from_buffer(data)
    except Exception as error:  # the library raises nothing narrower
        raise CheckpointError(f"tokenizer.json cannot be read: {error}") from error
    library.no_truncation()
    library.no_padding()
    return library


def _pieces(library: tokenizers.Tokenizer) -> tuple[str, ...]:
    ids = library.get_vocab(with_added_tokens=True)
    if not ids:
        raise CheckpointError("tokenizer.json holds no tokens")
    pieces = [""] * (max(ids.values()) + 1)
    for piece, token in ids.items():
        if pieces[token]:
            raise CheckpointError(f"tokenizer.json gives the id {token} to {pieces[token]!r} and to {piece!r}")
        pieces[token] = piece
    return tuple(pieces)


def _spelling(data: bytes) -> Callable[[str], bytes]:
    decoders = list(_decoders(json.loads(data).get("decoder")))
    for name in decoders:
        if name in _SPELLINGS:
            return _SPELLINGS[name]
    found, served = " and ".join(decoders) or "nothing", ", ".join(_SPELLINGS)
    raise UnsupportedModelError(f"tokenizer.json decodes with {found}: use a model that decodes with one of {served}")


def _decoders(decoder: object) -> Iterator[str]:
    """The types of a decoder and those within it."""
    if isinstance(decoder, Mapping):
        yield str(decoder.get("type"))
        for inner in decoder.get("decoders", ()):
            yield from _decoders(inner)


def _bos_ids(library: tokenizers.Tokenizer, bos_token: str | None, *, add_bos: bool | None) -> tuple[int, ...]:
    if add_bos is False:
        return ()
    prefix = _prefix(library)
    if prefix or not add_bos or bos_token is None:
        return prefix
    token = library.token_to_id(bos_token)
    if token is None:
        raise CheckpointError(f"the tokenizer adds the BOS token {bos_token!r}, which is not in tokenizer.json")
    return (token,)


def _prefix(library: tokenizers.Tokenizer) -> tuple[int, ...]:
    """What the post-processor puts in front of a text; what it puts behind is of no use to a prompt."""
    bare = library.encode("a", add_special_tokens=False).ids
    whole = library.encode("a", add_special_tokens=True).ids
    starts = (start for start in range(len(whole)) if whole[start : start + len(bare)] == bare)
    return tuple(whole[: next(starts, 0)])
