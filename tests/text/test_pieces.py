"""How pieces of a vocabulary spell bytes."""

from __future__ import annotations

from tlserve.text.pieces import BYTE_ALPHABET, byte_level_bytes, sentencepiece_bytes


def test_the_byte_alphabet_has_a_letter_for_every_byte() -> None:
    """Printable bytes stand for themselves; the space, the newline and their like have letters of their own."""
    assert sorted(BYTE_ALPHABET.values()) == list(range(256))
    assert byte_level_bytes("aĠbĊ") == b"a b\n"
    assert byte_level_bytes("Ã©") == "é".encode()


def test_a_piece_outside_the_alphabet_is_plain_text() -> None:
    """Some vocabularies hold such pieces, with real spaces."""
    assert byte_level_bytes("a é") == "a é".encode()


def test_sentencepiece_spells_spaces_and_bytes() -> None:
    """Only a whole piece in the form of a byte is one."""
    assert sentencepiece_bytes("▁a") == b" a"
    assert sentencepiece_bytes("<0x0A>") == b"\n"
    assert sentencepiece_bytes("<0x0A>a") == b"<0x0A>a"
