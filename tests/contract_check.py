"""Holds every answer that a test's HTTP client sees against OpenAI's own API description, without the test asking for it.

``CheckedTransport`` goes into any httpx client. It looks at the bytes as the test reads them and raises AssertionError where an
answer breaks the contract, so a test that is about something else fails all the same.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import attrs
import httpx
from jsonschema import Draft202012Validator

_DESCRIPTION = Path(__file__).parent / "data" / "openai-subset.json"
_WHOLE = {
    ("POST", "/v1/chat/completions"): "CreateChatCompletionResponse",
    ("POST", "/v1/completions"): "CreateCompletionResponse",
    ("POST", "/v1/embeddings"): "CreateEmbeddingResponse",
    ("GET", "/v1/models"): "ListModelsResponse",
}
_CHUNK = {
    "/v1/chat/completions": "CreateChatCompletionStreamResponse",
    "/v1/completions": "CompletionChunk",
}
_BASE64 = "^[A-Za-z0-9+/]+={0,2}$"
_TELLING = frozenset({"object", "finish_reason", "role", "type", "embedding"})
"""Members whose text is part of a document's shape."""


class Contract:
    """OpenAI's schemas, compiled once.

    A long stream is a thousand documents of one shape: a shape that has passed is not validated again.
    """

    def __init__(self, description: dict[str, Any]) -> None:
        self._description = _amended(_in_json_schema(description))
        self._validators: dict[str, Draft202012Validator] = {}
        self._passed: set[tuple[str, object]] = set()

    def check(self, name: str, document: object) -> None:
        """Raise AssertionError where ``document`` is no ``name``."""
        seen = (name, _shape(document))
        if seen in self._passed:
            return
        if name not in self._validators:
            root = {"$ref": f"#/components/schemas/{name}", **self._description}
            self._validators[name] = Draft202012Validator(root)
        problems = [error.message for error in self._validators[name].iter_errors(document)]
        assert not problems, f"not a {name}: {problems[0]}\n{json.dumps(document)[:2000]}"
        self._passed.add(seen)


@cache
def contract() -> Contract:
    """The one that all clients of a test run share."""
    return Contract(json.loads(_DESCRIPTION.read_text("utf-8")))


def check_error(document: Any) -> None:
    """An error document has its four members and neither a traceback nor much of what the client sent."""
    contract().check("ErrorResponse", document)
    assert set(document) == {"error"}
    assert set(document["error"]) == {"message", "type", "param", "code"}
    assert document["error"]["message"]
    assert "Traceback" not in document["error"]["message"]
    assert len(json.dumps(document)) < 4096


def check_usage(usage: dict[str, Any]) -> None:
    """The sum is the sum, and cached tokens are prompt tokens."""
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage.get("completion_tokens", 0)
    assert 0 <= usage.get("prompt_tokens_details", {"cached_tokens": 0})["cached_tokens"] <= usage["prompt_tokens"]


@attrs.define
class StreamCheck:
    """The grammar of one event stream, fed piece by piece.

    Every choice: the role in its first chunk and nowhere else (chat), pieces, one finish, nothing after it. One id, model and
    time for all. Then the usage chunk, if any, and ``[DONE]``; an error ends a stream without a finish.
    """

    path: str
    _text: str = ""
    _head: tuple[object, ...] | None = None
    _opened: set[int] = attrs.field(factory=set)
    _finished: set[int] = attrs.field(factory=set)
    _ending: str = ""

    def feed(self, data: bytes) -> None:
        """Check the events that are complete by now."""
        *events, self._text = (self._text + data.decode()).split("\n\n")
        for event in events:
            self._event(event)

    def end(self) -> None:
        """The body is over."""
        assert self._text == "", "the stream ends in the middle of an event"
        assert self._ending == "[DONE]", "the stream has no [DONE]"

    def _event(self, event: str) -> None:
        assert self._ending != "[DONE]", f"something follows [DONE]: {event!r}"
        if event == ": ping":
            return
        assert event.startswith("data: "), f"not an event: {event!r}"
        assert "\n" not in event
        payload = event.removeprefix("data: ")
        if payload == "[DONE]":
            assert self._ending == "error" or self._finished == self._opened != set()
            self._ending = "[DONE]"
            return
        assert not self._ending, f"a chunk follows the {self._ending}: {event!r}"
        self._chunk(strict_json(payload))

    def _chunk(self, chunk: dict[str, Any]) -> None:
        if "error" in chunk:
            check_error(chunk)
            self._ending = "error"
            return
        contract().check(_CHUNK[self.path], chunk)
        head = tuple(chunk[member] for member in ("id", "object", "created", "model"))
        self._head = self._head or head
        assert head == self._head, "the head of a chunk differs from that of the first"
        for choice in chunk["choices"]:
            self._choice(choice)
        if chunk.get("usage") is not None:
            assert chunk["choices"] == []
            assert self._finished == self._opened
            check_usage(chunk["usage"])
            self._ending = "usage chunk"

    def _choice(self, choice: dict[str, Any]) -> None:
        index = choice["index"]
        assert index not in self._finished, f"choice {index} goes on after its end"
        if "delta" in choice:
            assert ("role" in choice["delta"]) == (index not in self._opened), f"role of choice {index}: {choice}"
        self._opened.add(index)
        if choice["finish_reason"] is not None:
            self._finished.add(index)


def strict_json(text: str | bytes) -> Any:
    """JSON, and nothing that only Python takes for JSON."""

    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is not JSON")

    return json.loads(text, parse_constant=refuse)


def _name_of(method: str, path: str) -> str | None:
    """The schema of a route's plain answer, where OpenAI has one."""
    if method == "GET" and path.startswith("/v1/models/"):
        return "Model"
    return _WHOLE.get((method, path))


@attrs.define
class AnswerCheck:
    """One answer: its head at once, its body as it comes."""

    request: httpx.Request
    response: httpx.Response
    _stream: StreamCheck | None = None
    _body: bytearray = attrs.field(factory=bytearray)

    def head(self) -> None:
        """What every answer has, whatever its status."""
        headers = self.response.headers
        assert 1 <= len(headers["x-request-id"]) <= 128
        if headers.get("content-type", "").startswith("text/event-stream"):
            assert self.response.status_code == 200
            self._stream = StreamCheck(self.request.url.path)

    def feed(self, data: bytes) -> None:
        """More of the body."""
        if self._stream is not None:
            self._stream.feed(data)
        else:
            self._body += data

    def end(self) -> None:
        """The whole body was read."""
        if self._stream is not None:
            self._stream.end()
        elif self.request.method != "HEAD":
            self._whole()

    def _whole(self) -> None:
        path, status = self.request.url.path, self.response.status_code
        if path in ("/metrics", "/readyz", "/healthz") and status in (200, 503):
            return
        if self.request.method == "OPTIONS" and status < 400:
            assert self.response.headers["allow"]
            assert not self._body
            return
        assert self.response.headers["content-type"] == "application/json"
        document = strict_json(bytes(self._body))
        if status >= 400:
            self._refusal(document)
            return
        if name := _name_of(self.request.method, path):
            contract().check(name, document)
        if "usage" in document:
            check_usage(document["usage"])

    def _refusal(self, document: Any) -> None:
        check_error(document)
        headers, status = self.response.headers, self.response.status_code
        if status in (429, 503):
            assert int(headers["retry-after"]) >= 1
        if status == 405:
            assert headers["allow"]


class _Watched(httpx.SyncByteStream):
    def __init__(self, inner: httpx.SyncByteStream, check: AnswerCheck) -> None:
        self._inner = inner
        self._check = check

    def __iter__(self) -> Iterator[bytes]:
        for data in self._inner:
            self._check.feed(data)
            yield data
        self._check.end()

    def close(self) -> None:
        self._inner.close()


class CheckedTransport(httpx.HTTPTransport):
    """httpx's own transport, which looks at what it delivers."""

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """Send ``request``; the answer is checked as it is read."""
        response = super().handle_request(request)
        check = AnswerCheck(request, response)
        check.head()
        assert isinstance(response.stream, httpx.SyncByteStream)
        response.stream = _Watched(response.stream, check)
        return response


def _shape(value: object, *, in_words: bool = False) -> object:
    """The keys and types of a JSON value, and a text itself where it belongs to them."""
    if isinstance(value, dict):
        return tuple((name, _shape(member, in_words=name in _TELLING)) for name, member in value.items())
    if isinstance(value, list):
        return (list, *dict.fromkeys(map(_shape, value)))
    return value if in_words and isinstance(value, str) else type(value)


def _amended(description: dict[str, Any]) -> dict[str, Any]:
    """OpenAI's schemas with what its service sends and its description omits.

    A chunk of a text completion has no finish until its choice has one; a vector that was asked for in base64 is a string.
    """
    schemas = copy.deepcopy(description["components"]["schemas"])
    chunk = schemas["CompletionChunk"] = copy.deepcopy(schemas["CreateCompletionResponse"])
    choice = chunk["properties"]["choices"]["items"]["properties"]
    choice["finish_reason"] = {"anyOf": [choice["finish_reason"], {"type": "null"}]}
    vector = schemas["Embedding"]["properties"]
    vector["embedding"] = {"anyOf": [vector["embedding"], {"type": "string", "pattern": _BASE64}]}
    return {**description, "components": {"schemas": schemas}}


def _in_json_schema(schema: Any) -> Any:
    """OpenAPI's older ``nullable: true`` said in the words of JSON Schema, which knows no such keyword."""
    if isinstance(schema, list):
        return [_in_json_schema(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    plain = {name: _in_json_schema(member) for name, member in schema.items()}
    return {"anyOf": [plain, {"type": "null"}]} if plain.pop("nullable", False) is True else plain
