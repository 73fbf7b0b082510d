"""The tokenizer of models that speak bytes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tlserve.errors import CheckpointError
from tlserve.text.byte_tokenizer import ByteTokenizer
from tlserve.text.rendered import Rendered


@given(st.text())
def test_ids_are_the_bytes_of_the_text(text: str) -> None:
    """Encoding is UTF-8, special or not, rendered or not, and decoding gives the text back."""
    tokenizer = ByteTokenizer()
    ids = list(text.encode())
    assert tokenizer.encode(text, parse_special=True) == ids
    assert tokenizer.encode(text, parse_special=False) == ids
    assert tokenizer.encode_rendered(Rendered(text)) == ids
    assert tokenizer.decode(ids) == text


def test_ids_beyond_the_bytes_have_no_text() -> None:
    """A model may have more logits than there are bytes."""
    tokenizer = ByteTokenizer(300)
    assert tokenizer.vocab_size == 300
    assert [tokenizer.token_bytes(token) for token in (97, 255, 256, 299, -1)] == [b"a", b"\xff", b"", b"", b""]
    assert tokenizer.token_text(97) == "a"
    assert tokenizer.special_tokens == {}
    assert tokenizer.bos_ids == ()


def test_a_lone_surrogate_is_read_as_a_replacement_character() -> None:
    """JSON can carry half a surrogate pair, UTF-8 cannot."""
    assert ByteTokenizer().encode("a\ud83d", parse_special=True) == list("a�".encode())


def test_fewer_tokens_than_bytes_are_refused() -> None:
    """Such a vocabulary could not hold every text."""
    with pytest.raises(CheckpointError, match="at least 256 tokens, this model has 100"):
        ByteTokenizer(100)
