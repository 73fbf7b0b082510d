"""The API description: valid, complete, and never of another opinion than the parsers."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from jsonschema.exceptions import ValidationError

from tlserve.openai.chunks import ChatChunks, CompletionChunks, failure
from tlserve.openai.documents import (
    Choice,
    Head,
    chat_completion,
    embedding_list,
    model_document,
    model_list,
    text_completion,
    tokenization,
)
from tlserve.openai.errors import ApiError, internal
from tlserve.openai.openapi import openapi_document
from tlserve.openai.requests import parse_chat, parse_completion, parse_embeddings, parse_tokenize
from tlserve.openai.tiers import TierName
from tlserve.openai.values import Alternative, TokenLogprob, Usage

DOCUMENTS: dict[str, Any] = {tier: openapi_document(version="1.2.3", tier=tier) for tier in ("engine", "full")}
HEAD = Head("id", 1, "m")
HI = {"role": "user", "content": "Hi"}


def check(name: str, document: object, tier: TierName = "engine") -> None:
    """Hold a document against one of the schemas."""
    Draft202012Validator({"$ref": f"#/components/schemas/{name}", **DOCUMENTS[tier]}).validate(document)


def references(value: object) -> Iterator[str]:
    """Every ``$ref`` inside ``value``."""
    if isinstance(value, dict):
        if isinstance(value.get("$ref"), str):
            yield value["$ref"]
        value = list(value.values())
    if isinstance(value, list):
        for member in value:
            yield from references(member)


def test_the_description_holds_together() -> None:
    """Plain JSON, every schema valid, every reference found."""
    for document in DOCUMENTS.values():
        assert json.loads(json.dumps(document)) == document
        for schema in document["components"]["schemas"].values():
            Draft202012Validator.check_schema(schema)
        for reference in references(document):
            section, name = reference.removeprefix("#/components/").split("/")
            assert name in document["components"][section]


def test_all_routes_are_described() -> None:
    """Those of the API port, each with its own operation id and the errors it may answer."""
    paths = DOCUMENTS["engine"]["paths"]
    assert {(method, path) for path, methods in paths.items() for method in methods} == {
        ("post", "/v1/chat/completions"),
        ("post", "/v1/completions"),
        ("post", "/v1/embeddings"),
        ("post", "/v1/tokenize"),
        ("get", "/v1/models"),
        ("get", "/v1/models/{id}"),
        ("get", "/healthz"),
        ("get", "/openapi.json"),
    }
    chat = paths["/v1/chat/completions"]["post"]
    assert set(chat["responses"]) >= {"200", "400", "404", "422", "429", "500", "503"}
    assert "text/event-stream" in chat["responses"]["200"]["content"]


def test_ranges_come_from_the_rules() -> None:
    """The same numbers that errors quote."""
    properties = DOCUMENTS["engine"]["components"]["schemas"]["ChatRequest"]["properties"]
    temperature = properties["temperature"]
    assert temperature["anyOf"][0] == {"type": "number", "minimum": 0, "maximum": 2}
    assert temperature["default"] == 1.0
    assert temperature["description"]


def test_the_tiers_offer_what_they_serve() -> None:
    """A client that reads the description is not surprised by a 422."""
    schemas = {tier: document["components"]["schemas"] for tier, document in DOCUMENTS.items()}
    assert schemas["engine"]["ChatRequest"]["properties"]["n"]["anyOf"][0]["maximum"] == 1
    assert schemas["full"]["ChatRequest"]["properties"]["n"]["anyOf"][0]["maximum"] == 128
    assert schemas["engine"]["ChatRequest"]["properties"]["tools"]["anyOf"][0] == {"enum": [None]}
    assert schemas["full"]["ChatRequest"]["properties"]["tools"]["anyOf"][0] == {"enum": [None, []]}
    assert schemas["engine"]["ChatMessage"]["properties"]["content"]["type"] == "string"
    assert "anyOf" in schemas["full"]["ChatMessage"]["properties"]["content"]


def test_what_is_written_fits_what_is_described() -> None:
    """Responses, chunks and errors."""
    usage = Usage(prompt_tokens=1, completion_tokens=1)
    one = TokenLogprob("b", -0.5, b"b", (Alternative("b", -0.5, b"b"),))
    for logprobs in (None, [one]):
        choice = Choice(index=0, text="b", finish="stop", logprobs=logprobs)
        check("ChatCompletion", chat_completion(HEAD, [choice], usage))
        check("TextCompletion", text_completion(HEAD, [choice], usage))
    chat, text = ChatChunks(HEAD, 0), CompletionChunks(HEAD, 0)
    for name, stream in (
        ("ChatCompletionChunk", chat.piece("b", logprob=one) + chat.piece("c", finish="stop")),
        ("ChatCompletionChunk", ChatChunks.usage_event(HEAD, usage)),
        ("TextCompletionChunk", text.piece("b", logprob=one) + text.piece("c", finish="stop")),
        ("Error", failure(internal()).removesuffix("data: [DONE]\n\n")),
    ):
        for event in stream.split("\n\n")[:-1]:
            check(name, json.loads(event.removeprefix("data: ")))
    for encoding in ("float", "base64"):
        check("EmbeddingList", embedding_list("m", [[1.0]], prompt_tokens=1, encoding=encoding))
    check("Description", DOCUMENTS["engine"])
    check("ModelList", model_list([model_document("m", created=1, max_model_len=8)]))
    check("Tokenization", tokenization("m", [1], max_model_len=8, pieces=["a"]))


NUMBERS = st.one_of(
    st.integers(-3, 130),
    st.sampled_from([-(2**63) - 1, -(2**63), 2**63 - 1, 2**63, 2**31]),
    st.floats(-3, 3),
    st.sampled_from([0.0, -0.0, 1.0, 2.0, 1e300]),
)
WORDS = st.sampled_from(["", "a", "float", "base64", "user", "none", "x" * 513, "x" * 1025])
SCALARS = st.one_of(st.none(), st.booleans(), NUMBERS, WORDS)
KEYS = st.sampled_from(["0", "7", "01", "-1", "x", "type", "text", "role", "content", "include_usage"])
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(st.lists(inner, max_size=6), st.dictionaries(KEYS, inner, max_size=3)),
    max_leaves=8,
)

# The last column: what no schema says, because members need or exclude each other or a legal value is answered with 422.
PARSERS: list[tuple[str, Callable[..., object], dict[str, object], set[str]]] = [
    ("ChatRequest", parse_chat, {"model": "m", "messages": [HI]}, {"stream_options", "min_tokens", "top_logprobs"}),
    (
        "CompletionRequest",
        parse_completion,
        {"model": "m", "prompt": "Hi"},
        {"stream_options", "min_tokens", "best_of"},
    ),
    ("EmbeddingRequest", parse_embeddings, {"model": "m", "input": "Hi"}, {"dimensions"}),
    ("TokenizeRequest", parse_tokenize, {"model": "m", "text": "Hi"}, {"text"}),
]


def refusal_of(parse: Callable[..., object], request: dict[str, object]) -> ApiError | None:
    """The error that a request gets, if it gets one."""
    try:
        parse(json.dumps(request).encode())
    except ApiError as error:
        return error
    return None


def is_described(name: str, request: object) -> bool:
    """Whether the schema accepts the request."""
    try:
        check(name, request)
    except ValidationError:
        return False
    return True


@pytest.mark.parametrize(("name", "parse", "minimal", "unsaid"), PARSERS, ids=[name for name, *_ in PARSERS])
@settings(max_examples=30, deadline=None)
@given(value=VALUES)
def test_the_parser_takes_exactly_what_is_described(
    name: str, parse: Callable[..., object], minimal: dict[str, object], unsaid: set[str], value: object
) -> None:
    """Any value in any member: accepted by both, or refused by both."""
    for member in DOCUMENTS["engine"]["components"]["schemas"][name]["properties"]:
        request = {**minimal, member: value}
        refused = refusal_of(parse, request)
        if refused is None or refused.param not in unsaid:
            assert is_described(name, request) == (refused is None), (member, refused)
