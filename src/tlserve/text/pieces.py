"""How the strings of a vocabulary spell bytes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType


def _byte_alphabet() -> dict[str, int]:
    """GPT-2's letters: printable Latin-1 bytes stand for themselves, the other 68 for U+0100 onwards, in order."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + i): byte for i, byte in enumerate(others)}


BYTE_ALPHABET: Mapping[str, int] = MappingProxyType(_byte_alphabet())
SPACE = "\u2581"  # how SentencePiece writes a space
_BYTE_PIECE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


def byte_level_bytes(piece: str) -> bytes:
    """The bytes of a piece written in GPT-2's byte alphabet; any other piece is plain text."""
    try:
        return bytes(map(BYTE_ALPHABET.__getitem__, piece))
    except KeyError:
        return piece.encode()


def sentencepiece_bytes(piece: str) -> bytes:
    """The bytes of a piece where U+2581 is a space and ``<0x0A>`` a single byte."""
    if byte := _BYTE_PIECE.fullmatch(piece):
        return bytes.fromhex(byte[1])
    return piece.replace(SPACE, " ").encode()
