"""POST /v1/tokenize, on the way in."""

from __future__ import annotations

import json

import pytest

from tlserve.openai.requests import Conversation, Message, parse_chat, parse_tokenize

from .conftest import Refusal

MESSAGES = [{"role": "user", "content": "Hi"}]


def body(**members: object) -> bytes:
    """A tokenize request."""
    return json.dumps({"model": "m", **members}).encode()


@pytest.mark.parametrize("name", ["text", "prompt"])
def test_a_text_has_two_names(name: str) -> None:
    """Ours, and that of the completions endpoint."""
    model, text, add_special = parse_tokenize(body(**{name: "Hi"}))
    assert (model, text, add_special) == ("m", "Hi", True)


def test_messages_are_read_as_a_chat_reads_them(refusal: Refusal) -> None:
    """The same conversation, the same refusals."""
    conversation = parse_tokenize(body(messages=MESSAGES)).text
    assert conversation == parse_chat(body(messages=MESSAGES)).prompt == Conversation((Message("user", "Hi"),))
    assert refusal(parse_tokenize, body(messages=[{"role": "user"}])).param == "messages[0].content"
    parts = [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}]
    assert refusal(parse_tokenize, body(messages=parts)).status == 422
    assert parse_tokenize(body(messages=parts), tier="full").text == conversation


def test_exactly_one_source(refusal: Refusal) -> None:
    """None is a question without an object, two are two questions."""
    assert refusal(parse_tokenize, body()).param == "text"
    error = refusal(parse_tokenize, body(text="a", messages=MESSAGES))
    assert (error.status, error.param) == (400, "text")


def test_an_empty_text_has_tokens_too() -> None:
    """None of them, or the begin-of-text token."""
    assert parse_tokenize(body(text="")).text == ""


def test_options_arrive() -> None:
    """Without special tokens, with the text of each."""
    spec = parse_tokenize(body(text="a", add_special_tokens=False, return_token_strs=True))
    assert (spec.add_special, spec.with_pieces) == (False, True)
