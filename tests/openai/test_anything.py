"""Whatever a client sends: a spec or an ApiError of the right shape, never anything else."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tlserve.openai.chat import ChatRequest
from tlserve.openai.completions import CompletionRequest
from tlserve.openai.embeddings import EmbeddingRequest
from tlserve.openai.errors import ApiError
from tlserve.openai.messages import ChatMessage
from tlserve.openai.requests import parse_chat, parse_completion, parse_embeddings, parse_tokenize
from tlserve.openai.spec import EmbeddingSpec, GenSpec, TokenizeSpec
from tlserve.openai.tokenize import TokenizeRequest

from .conftest import Validate

SPECS = (GenSpec, EmbeddingSpec, TokenizeSpec)
PARSERS: list[tuple[Callable[..., object], Any]] = [
    (parse_chat, ChatRequest),
    (parse_completion, CompletionRequest),
    (parse_embeddings, EmbeddingRequest),
    (parse_tokenize, TokenizeRequest),
]
IDS = [cls.__name__ for _, cls in PARSERS]
MINIMAL = {"model": "m", "messages": [{"role": "user", "content": "Hi"}], "prompt": "Hi", "input": "Hi", "text": "Hi"}

SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), st.text(max_size=20)
)
JSON = st.recursive(
    SCALARS,
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(st.text(max_size=8), inner, max_size=4)),
    max_leaves=12,
)


def outcome(parse: Callable[..., object], body: bytes, validate: Validate, **options: str) -> object:
    """The spec or the error; everything else fails the test."""
    try:
        result = parse(body, **options)
    except ApiError as refused:
        result = refused
    if isinstance(result, ApiError):
        assert result.status in (400, 422)
        assert len(json.dumps(result.document())) < 4096
        validate("ErrorResponse", result.document())
    else:
        assert isinstance(result, SPECS)
    return result


def minimal(cls: Any) -> dict[str, object]:
    """The required members of a request class, and for tokenize its text."""
    return {
        member.name: MINIMAL[member.name]
        for member in attrs.fields(cls)
        if member.default is attrs.NOTHING or (cls is TokenizeRequest and member.name == "text")
    }


@pytest.mark.parametrize(("parse", "cls"), PARSERS, ids=IDS)
@settings(max_examples=40, deadline=None)
@given(value=JSON)
def test_any_value_in_any_member(parse: Callable[..., object], cls: Any, value: object, validate: Validate) -> None:
    """If it is refused, the member or one that it contradicts is named."""
    for member in attrs.fields(cls):
        body = json.dumps({**minimal(cls), member.name: value}).encode()
        result = outcome(parse, body, validate)
        if isinstance(result, ApiError):
            assert result.param is not None
            assert result.param.startswith(member.name) or result.param in ("text", "stream_options")


@settings(max_examples=100, deadline=None)
@given(value=JSON, tier=st.sampled_from(["engine", "full"]))
def test_any_value_in_any_member_of_a_message(value: object, tier: str, validate: Validate) -> None:
    """The path leads into the message."""
    for member in attrs.fields(ChatMessage):
        message = {"role": "user", "content": "Hi", member.name: value}
        result = outcome(parse_chat, json.dumps({"model": "m", "messages": [message]}).encode(), validate, tier=tier)
        if isinstance(result, ApiError):
            assert result.param is not None
            assert result.param.startswith(f"messages[0].{member.name}")


@pytest.mark.parametrize(("parse", "cls"), PARSERS, ids=IDS)
@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_any_members_together(parse: Callable[..., object], cls: Any, data: st.DataObject, validate: Validate) -> None:
    """Known and unknown names, all at once."""
    names = st.one_of(st.sampled_from([member.name for member in attrs.fields(cls)]), st.text(max_size=8))
    body = data.draw(st.dictionaries(names, JSON, max_size=8))
    outcome(parse, json.dumps(body).encode(), validate)


@pytest.mark.parametrize(("parse", "cls"), PARSERS, ids=IDS)
@settings(max_examples=100, deadline=None)
@given(body=st.one_of(st.binary(max_size=60), JSON.map(lambda value: json.dumps(value).encode())))
def test_any_bytes(parse: Callable[..., object], cls: Any, body: bytes, validate: Validate) -> None:
    """Text, garbage, JSON that is no object."""
    if not isinstance(outcome(parse, body, validate), ApiError):
        assert set(json.loads(body)) >= set(minimal(cls)) - {"text"}


@pytest.mark.parametrize(("parse", "cls"), PARSERS, ids=IDS)
@given(value=JSON)
def test_an_unknown_member_changes_nothing_but_is_told(
    parse: Callable[..., Any], cls: Any, value: object, validate: Validate
) -> None:
    """What has no effect is named, and has none."""
    plain = parse(json.dumps(minimal(cls)).encode())
    spec: Any = outcome(parse, json.dumps({**minimal(cls), "x-unknown": value}).encode(), validate)
    assert spec.ignored == (() if value is None else ("x-unknown",))
    assert attrs.evolve(spec, ignored=()) == plain
