"""The check that all HTTP tests go through bites: whatever is wrong with an answer, the client that reads it fails its test."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import httpx
import pytest

from contract_check import AnswerCheck, CheckedTransport
from support import Serve, Server, checked_client, chunks_of
from tlserve.openai.routes import ROUTES

Document = dict[str, Any]
CHAT, TEXT, EMBEDDING = "/v1/chat/completions", "/v1/completions", "/v1/embeddings"
JSON = {"content-type": "application/json", "x-request-id": "x"}
EVENTS = {"content-type": "text/event-stream", "x-request-id": "x"}
USAGE = {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3, "prompt_tokens_details": {"cached_tokens": 0}}
LOGPROBS = {"content": [{"token": "a", "logprob": -0.1, "bytes": [97], "top_logprobs": []}], "refusal": None}
MESSAGE = {"role": "assistant", "content": "a", "refusal": None}
CHOICE = {"index": 0, "message": MESSAGE, "logprobs": LOGPROBS, "finish_reason": "stop"}
HEAD = {"id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": "m"}
CHUNK = {**HEAD, "object": "chat.completion.chunk"}
TEXT_HEAD = {**HEAD, "id": "cmpl-1", "object": "text_completion"}
TEXT_CHOICE = {"index": 0, "text": "a", "logprobs": None, "finish_reason": "length"}
VECTOR = {"object": "embedding", "index": 0, "embedding": [0.5, 0.5]}
MODEL = {"id": "m", "object": "model", "created": 1, "owned_by": "tlserve"}
ERROR = {"message": "no", "type": "invalid_request_error", "param": None, "code": None}

GOOD: dict[str, tuple[str, int, Document]] = {
    "chat": (CHAT, 200, {**HEAD, "choices": [CHOICE], "usage": USAGE}),
    "text": (TEXT, 200, {**TEXT_HEAD, "choices": [TEXT_CHOICE], "usage": USAGE}),
    "embeddings": (
        EMBEDDING,
        200,
        {"object": "list", "data": [VECTOR], "model": "m", "usage": {"prompt_tokens": 1, "total_tokens": 1}},
    ),
    "models": ("/v1/models", 200, {"object": "list", "data": [MODEL]}),
    "model": ("/v1/models/m", 200, MODEL),
    "error": (CHAT, 400, {"error": ERROR}),
}


def check_answer(
    path: str, status: int, body: str | Document, headers: dict[str, str] | None = None, *, cut: int = 7
) -> None:
    """Let the checker read an answer that comes ``cut`` bytes at a time."""
    text = body if isinstance(body, str) else json.dumps(body)
    method = "GET" if path.startswith(("/v1/models", "/healthz")) else "POST"
    response = httpx.Response(status, headers=headers or JSON)
    check = AnswerCheck(httpx.Request(method, f"http://x{path}"), response)
    check.head()
    data = text.encode()
    for start in range(0, len(data), cut):
        check.feed(data[start : start + cut])
    check.end()


@pytest.mark.parametrize("name", GOOD)
def test_right_answers_pass(name: str) -> None:
    """Null, where OpenAI's schema allows it, included."""
    check_answer(*GOOD[name])


WRONG: list[tuple[str, list[str | int], object]] = [
    ("chat", ["id"], None),
    ("chat", ["id"], 5),
    ("chat", ["object"], "chat.completions"),
    ("chat", ["created"], "now"),
    ("chat", ["created"], 1.5),
    ("chat", ["choices"], None),
    ("chat", ["choices", 0, "finish_reason"], "eos"),
    ("chat", ["choices", 0, "finish_reason"], None),
    ("chat", ["choices", 0, "index"], "0"),
    ("chat", ["choices", 0, "message"], "a"),
    ("chat", ["choices", 0, "message", "role"], "user"),
    ("chat", ["choices", 0, "message", "content"], 5),
    ("chat", ["choices", 0, "logprobs", "content", 0, "logprob"], None),
    ("chat", ["choices", 0, "logprobs", "content", 0, "bytes"], "a"),
    ("chat", ["usage", "total_tokens"], 4),
    ("chat", ["usage", "prompt_tokens"], "1"),
    ("chat", ["usage", "prompt_tokens_details", "cached_tokens"], 2),
    ("text", ["choices", 0, "text"], None),
    ("text", ["choices", 0, "finish_reason"], None),
    ("text", ["choices", 0, "logprobs"], []),
    ("text", ["object"], "chat.completion"),
    ("embeddings", ["data", 0, "embedding"], "not base64!"),
    ("embeddings", ["data", 0, "embedding", 0], "0.5"),
    ("embeddings", ["data", 0, "index"], None),
    ("embeddings", ["usage"], None),
    ("models", ["data", 0, "created"], "1"),
    ("models", ["object"], "models"),
    ("model", ["owned_by"], None),
    ("error", ["error"], "no"),
    ("error", ["error", "message"], ""),
    ("error", ["error", "message"], "Traceback (most recent call last)"),
    ("error", ["error", "message"], "x" * 5000),
    ("error", ["error", "type"], None),
    ("error", ["error", "param"], 5),
    ("error", ["detail"], "no"),
]
REQUIRED: dict[str, list[list[str | int]]] = {
    "chat": [["id"], ["object"], ["created"], ["model"], ["choices"]],
    "text": [
        ["choices", 0, "index"],
        ["choices", 0, "text"],
        ["choices", 0, "finish_reason"],
        ["choices", 0, "logprobs"],
    ],
    "embeddings": [["object"], ["data"], ["model"], ["usage"]],
    "models": [["object"], ["data"]],
    "model": [["id"], ["object"], ["created"], ["owned_by"]],
    "error": [["error", "message"], ["error", "type"], ["error", "param"], ["error", "code"]],
}
REQUIRED["chat"] += [["choices", 0, "index"], ["choices", 0, "message"], ["choices", 0, "finish_reason"]]
MISSING = [(name, path) for name, paths in REQUIRED.items() for path in paths]


def changed(name: str, path: list[str | int], change: Callable[[Any, str | int], None]) -> tuple[str, int, Document]:
    """A good answer with one member changed."""
    route, status, document = copy.deepcopy(GOOD[name])
    *steps, last = path
    target: Any = document
    for step in steps:
        target = target[step]
    change(target, last)
    return route, status, document


@pytest.mark.parametrize(
    ("name", "path", "value"), WRONG, ids=[f"{case[0]}-{case[1]}-{str(case[2])[:9]}" for case in WRONG]
)
def test_a_wrong_member_fails(name: str, path: list[str | int], value: object) -> None:
    """Of another type, not one of its words, or at odds with others."""
    with pytest.raises(AssertionError):
        check_answer(*changed(name, path, lambda target, last: target.__setitem__(last, value)))


@pytest.mark.parametrize(("name", "path"), MISSING, ids=[f"{name}-{path}" for name, path in MISSING])
def test_a_missing_member_fails(name: str, path: list[str | int]) -> None:
    """Where OpenAI's schema requires it."""
    with pytest.raises(AssertionError):
        check_answer(*changed(name, path, lambda target, last: target.__delitem__(last)))


BROKEN: dict[str, tuple[str, int, str | Document, dict[str, str]]] = {
    "no id": (CHAT, 200, GOOD["chat"][2], {"content-type": "application/json"}),
    "long id": (CHAT, 200, GOOD["chat"][2], {**JSON, "x-request-id": "x" * 129}),
    "a page": (CHAT, 404, "<h1>Not Found</h1>", {**JSON, "content-type": "text/html"}),
    "NaN": (CHAT, 200, json.dumps({**GOOD["chat"][2], "x": float("nan")}), JSON),
    "no JSON": (CHAT, 200, "{", JSON),
    "429 without a time": (CHAT, 429, {"error": ERROR}, JSON),
    "503 without a time": (CHAT, 503, {"error": ERROR}, JSON),
    "405 without a list": (CHAT, 405, {"error": ERROR}, JSON),
    "a stream that failed": (CHAT, 400, "data: [DONE]\n\n", EVENTS),
    "an error that succeeded": (CHAT, 200, {"error": ERROR}, JSON),
}


@pytest.mark.parametrize(("path", "status", "body", "headers"), BROKEN.values(), ids=list(BROKEN))
def test_a_wrong_head_or_body_fails(path: str, status: int, body: str | Document, headers: dict[str, str]) -> None:
    """Whatever the document would have been."""
    with pytest.raises((AssertionError, KeyError, json.JSONDecodeError)):
        check_answer(path, status, body, headers)


def event(payload: object) -> str:
    """One event."""
    return f"data: {payload if isinstance(payload, str) else json.dumps(payload)}\n\n"


def chunk(delta: Document, finish: str | None = None, **members: object) -> str:
    """The event of one chunk of a chat."""
    return event({**CHUNK, "choices": [{"index": 0, "delta": delta, "finish_reason": finish}], **members})


ROLE, PIECE, FINISH = (
    chunk({"role": "assistant", "content": ""}),
    chunk({"content": "a"}),
    chunk({"content": "b"}, "stop"),
)
USAGE_CHUNK, DONE, FAILURE = event({**CHUNK, "choices": [], "usage": USAGE}), event("[DONE]"), event({"error": ERROR})
TEXT_PIECE, TEXT_FINISH = (
    event({**TEXT_HEAD, "choices": [{**TEXT_CHOICE, "finish_reason": finish}]}) for finish in (None, "length")
)

GOOD_STREAMS = {
    "whole": ROLE + PIECE + FINISH + DONE,
    "with usage": ROLE + FINISH + USAGE_CHUNK + DONE,
    "with pings": ": ping\n\n" + ROLE + ": ping\n\n" + FINISH + DONE,
    "failed": ROLE + PIECE + FAILURE + DONE,
    "failed at once": FAILURE + DONE,
}
BAD_STREAMS = {
    "empty": "",
    "nothing but its end": DONE,
    "no end": ROLE + PIECE + FINISH,
    "no finish": ROLE + PIECE + DONE,
    "no role": PIECE + FINISH + DONE,
    "two roles": ROLE + ROLE + FINISH + DONE,
    "a role again": ROLE + chunk({"role": "assistant", "content": "a"}) + FINISH + DONE,
    "two finishes": ROLE + FINISH + FINISH + DONE,
    "text after the finish": ROLE + FINISH + PIECE + DONE,
    "usage before the finish": ROLE + PIECE + USAGE_CHUNK + FINISH + DONE,
    "two usages": ROLE + FINISH + USAGE_CHUNK + USAGE_CHUNK + DONE,
    "usage beside text": ROLE + chunk({"content": "a"}, "stop", usage=USAGE) + DONE,
    "two ends": ROLE + FINISH + DONE + DONE,
    "a ping after the end": ROLE + FINISH + DONE + ": ping\n\n",
    "a finish after an error": ROLE + FAILURE + FINISH + DONE,
    "half an event": ROLE + FINISH + DONE + "data: ",
    "one newline": (ROLE + FINISH + DONE).replace("\n\n", "\n"),
    "carriage returns": (ROLE + FINISH + DONE).replace("\n\n", "\r\n\r\n"),
    "no space": (ROLE + FINISH + DONE).replace("data: ", "data:"),
    "a name for events": "event: message\n" + ROLE + FINISH + DONE,
    "another id": ROLE + chunk({"content": "a"}, "stop", id="chatcmpl-2") + DONE,
    "another time": ROLE + chunk({"content": "a"}, "stop", created=2) + DONE,
    "another model": ROLE + chunk({"content": "a"}, "stop", model="n") + DONE,
    "the object of a whole": ROLE + chunk({"content": "a"}, "stop", object="chat.completion") + DONE,
    "an unknown finish": ROLE + chunk({"content": "a"}, "eos") + DONE,
    "an empty role": ROLE + chunk({"role": "", "content": "a"}, "stop") + DONE,
    "content of a number": ROLE + chunk({"content": 5}, "stop") + DONE,
    "not JSON": ROLE + event("{") + FINISH + DONE,
}


@pytest.mark.parametrize("cut", [1, 50, 10**6])
@pytest.mark.parametrize("name", GOOD_STREAMS)
def test_right_streams_pass(name: str, cut: int) -> None:
    """However their bytes arrive."""
    check_answer(CHAT, 200, GOOD_STREAMS[name], EVENTS, cut=cut)


@pytest.mark.parametrize("name", BAD_STREAMS)
def test_wrong_streams_fail(name: str) -> None:
    """Framing, grammar or documents."""
    with pytest.raises((AssertionError, json.JSONDecodeError)):
        check_answer(CHAT, 200, BAD_STREAMS[name], EVENTS)


def test_a_text_stream_has_its_own_grammar() -> None:
    """No role, and no finish until the last chunk; a finish that is no word fails."""
    check_answer(TEXT, 200, TEXT_PIECE + TEXT_FINISH + DONE, EVENTS)
    for wrong in (TEXT_PIECE + DONE, TEXT_FINISH + TEXT_PIECE + DONE, ROLE + FINISH + DONE):
        with pytest.raises(AssertionError):
            check_answer(TEXT, 200, wrong, EVENTS)
    with pytest.raises(AssertionError):
        check_answer(CHAT, 200, TEXT_PIECE + TEXT_FINISH + DONE, EVENTS)


def test_a_shape_that_passed_hides_no_other() -> None:
    """Answers are validated once for each shape; a wrong one of another shape is still seen, and a wrong word too."""
    for _ in range(2):
        check_answer(*GOOD["chat"])
        with pytest.raises(AssertionError):
            check_answer(
                *changed("chat", ["choices", 0, "finish_reason"], lambda target, last: target.__setitem__(last, "eos"))
            )
        with pytest.raises(AssertionError):
            check_answer(*changed("chat", ["choices", 0, "index"], lambda target, last: target.__setitem__(last, None)))


# --- through clients --------------------------------------------------------------------------------------------------


class _Liar(BaseHTTPRequestHandler):
    """Answers everything with a list of models whose object has the wrong name."""

    def do_GET(self) -> None:
        """Lie."""
        body = b'{"object":"models","data":[]}'
        self.send_response(200)
        for name, value in {**JSON, "content-length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  (the base class calls it so)
        """Say nothing."""


@pytest.fixture
def liar() -> Iterator[str]:
    """The address of a server that breaks the contract."""
    with ThreadingHTTPServer(("127.0.0.1", 0), _Liar) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"127.0.0.1:{server.server_port}"
        server.shutdown()


def test_the_client_of_the_tests_looks(liar: str) -> None:
    """It raises while the answer is read."""
    with checked_client(liar) as client, pytest.raises(AssertionError, match="not a ListModelsResponse"):
        client.get("/v1/models")


@pytest.fixture(scope="module")
def server(serve_shared: Serve, succ_dir: Path) -> Server:
    """A real server."""
    return serve_shared(succ_dir, api_tier="full")


def test_every_test_server_is_looked_at(server: Server) -> None:
    """Both of its clients are checked ones."""
    assert isinstance(server.api._transport, CheckedTransport)
    assert isinstance(server.health._transport, CheckedTransport)


def test_every_route_of_openai_passes(server: Server) -> None:
    """Plain and streamed, with everything that can be asked for."""
    asked = {"max_tokens": 3, "n": 2, "seed": 1}
    assert server.chat("a", logprobs=True, top_logprobs=3, **asked).status_code == 200
    assert server.complete(["a", "b"], logprobs=3, **asked).status_code == 200
    options = {"stream": True, "stream_options": {"include_usage": True}}
    assert len(chunks_of(server.chat("a", logprobs=True, top_logprobs=3, **asked, **options).text)) > 6
    assert len(chunks_of(server.complete(["a", "b"], logprobs=3, **asked, **options).text)) > 6
    for encoding in ("float", "base64"):
        body = {"model": "succ", "input": ["a", "b"], "encoding_format": encoding}
        assert server.api.post(EMBEDDING, json=body).status_code == 200
    for route in ROUTES:
        if route.method == "GET":
            assert server.api.get(route.path.replace("{id}", "succ")).status_code == 200
