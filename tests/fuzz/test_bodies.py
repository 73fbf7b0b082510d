"""Whatever a body holds: an answer, or a 4xx that names the member; and the server serves on. Over real sockets.

The parsers alone are tried harder in ``tests/openai``; here it is what lies behind them: the template, the tokenizer, the sampler.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import attrs
import httpx
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from support import Serve, Server
from tlserve.openai.chat import ChatRequest
from tlserve.openai.completions import CompletionRequest
from tlserve.openai.embeddings import EmbeddingRequest
from tlserve.openai.messages import ChatMessage
from tlserve.openai.tokenize import TokenizeRequest

HI = {"role": "user", "content": "Hi"}
BODIES: dict[str, tuple[Any, dict[str, Any]]] = {
    "/v1/chat/completions": (ChatRequest, {"messages": [HI], "max_tokens": 2}),
    "/v1/completions": (CompletionRequest, {"prompt": "Hi", "max_tokens": 2}),
    "/v1/embeddings": (EmbeddingRequest, {"input": "Hi"}),
    "/v1/tokenize": (TokenizeRequest, {"text": "Hi"}),
}
CONTRADICTED = {
    "include_usage": {"stream_options"},
    "prompt": {"text"},
    "messages": {"text"},
    "max_tokens": {"prompt", "messages"},
    "max_completion_tokens": {"messages"},
}
"""Members of which a refusal may name another one: what they contradict, or what does not fit with them."""

EXTREMES = st.sampled_from(
    [0, -1, 1, 2, 2**31, 2**63 - 1, 2**63, -(2**63), 10**30, 5e-324, 1e-9, 0.5, 1e308, -1e308, -0.0]
)
TEXTS = st.one_of(st.text(max_size=12), st.sampled_from(["", "\x00", "\x1b[31m", "\ufeff", "\U0010ffff", "a" * 5000]))
SCALARS = st.one_of(st.none(), st.booleans(), EXTREMES, st.integers(-3, 300), st.floats(0, 2), TEXTS)
KEYS = st.one_of(st.text(max_size=6), st.sampled_from(["0", "255", "256", "type", "text", "role", "content"]))
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(KEYS, inner, max_size=3)),
    max_leaves=6,
)


@pytest.fixture(scope="module", params=["engine", "full"])
def server(request: pytest.FixtureRequest, serve_shared: Serve, succ_dir: Path) -> Server:
    """A server of each tier, whose answers cannot be long."""
    return serve_shared(succ_dir, engine={"max_model_len": 64}, api_tier=request.param, queue_capacity=128)


def refused_param(response: httpx.Response) -> str | None:
    """The ``param`` of a refusal, None for an answer; the client has held both against the contract."""
    if response.status_code == 200:
        return None
    assert response.status_code in (400, 404, 422), response.text
    error = response.json()["error"]
    assert error["type"] == "invalid_request_error"
    assert isinstance(error["param"], str), error
    return error["param"]


@pytest.mark.parametrize("path", BODIES)
@settings(max_examples=20, deadline=None, database=None)
@given(value=VALUES)
@example(5e-324)
@example(2**63 - 1)
@example([])
def test_any_value_in_any_member(server: Server, path: str, value: object) -> None:
    """It is used, or the refusal names the member or one that it is at odds with."""
    cls, body = BODIES[path]
    for name in attrs.fields_dict(cls):
        response = server.api.post(path, json={"model": "succ", **body, name: value})
        param = refused_param(response)
        named = param is None or param.startswith(name) or param in CONTRADICTED.get(name, ())
        assert named, f"{name}={value!r}: {response.text}"
    assert server.chat("a", max_tokens=1).status_code == 200


@settings(max_examples=20, deadline=None, database=None)
@given(value=VALUES)
def test_any_value_in_any_member_of_a_message(server: Server, value: object) -> None:
    """The path leads into the message, or to all of them where they make no prompt together."""
    for name in attrs.fields_dict(ChatMessage):
        body = {"model": "succ", "messages": [HI, {**HI, name: value}], "max_tokens": 1}
        param = refused_param(server.api.post("/v1/chat/completions", json=body))
        assert param is None or param == "messages" or param.startswith(f"messages[1].{name}"), param


@pytest.mark.parametrize("path", BODIES)
@settings(max_examples=40, deadline=None, database=None)
@given(data=st.data())
def test_any_members_together(server: Server, path: str, data: st.DataObject) -> None:
    """Whatever is wrong with several, one of them is named, or one that is missing."""
    cls, body = BODIES[path]
    names = list(attrs.fields_dict(cls))
    members = data.draw(st.dictionaries(st.sampled_from(names), VALUES, max_size=5))
    param = refused_param(server.api.post(path, json={"model": "succ", **body, **members}))
    assert param is None or param.partition(".")[0].partition("[")[0] in names


@pytest.mark.parametrize("path", BODIES)
@settings(max_examples=40, deadline=None, database=None)
@given(body=st.one_of(st.binary(max_size=40), st.text(max_size=20).map(lambda text: f'{{"model":{text}}}'.encode())))
def test_any_bytes(server: Server, path: str, body: bytes) -> None:
    """What is no JSON object is a 400 that says so, and the connection goes on."""
    response = server.api.post(path, content=body, headers={"Content-Type": "application/json"})
    assert response.status_code == 400
    assert response.json()["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize("path", BODIES)
@settings(max_examples=30, deadline=None, database=None)
@given(
    headers=st.dictionaries(
        st.sampled_from(["X-TL-Priority", "X-Request-Id", "X-Request-Timeout-Ms", "X-TL-Cache-Salt", "Content-Type"]),
        st.text(st.characters(min_codepoint=0x20, max_codepoint=0xFF, exclude_characters="\x7f"), max_size=12),
        max_size=3,
    )
)
def test_any_headers(server: Server, path: str, headers: dict[str, str]) -> None:
    """A header is used or refused by its name; a content type that is not JSON is a 415."""
    sent = [(name.encode(), value.strip().encode("latin-1")) for name, value in headers.items()]
    response = server.api.post(path, json={"model": "succ", **BODIES[path][1]}, headers=sent)
    assert response.status_code in (200, 400, 415, 504), response.text
    if response.status_code == 400:
        assert response.json()["error"]["param"] in headers
