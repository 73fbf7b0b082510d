"""Bodies that are no request: what they get, and what of them comes back."""

from __future__ import annotations

import codecs
import io
import json
from pathlib import Path
from urllib.parse import quote

import pytest

from support import Serve, Server
from tlserve.server.log import LOGGER, configure_logging

POSTS = ("/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/tokenize")
NO_OBJECTS = [
    b"[]",
    b"null",
    b'"x"',
    b"7",
    b"",
    b"{",
    b"{}}",
    b"{'a':1}",
    b"{}\x00",
    b"nonsense",
    b"// {}",
    b"\xff\xfe",
]


@pytest.mark.parametrize("path", POSTS)
@pytest.mark.parametrize("body", NO_OBJECTS, ids=repr)
def test_body_04_what_is_no_object_is_a_400(counting: Server, path: str, body: bytes) -> None:
    """On every route, and the connection goes on."""
    for _ in range(2):
        response = counting.api.post(path, content=body)
        assert (response.status_code, response.json()["error"]["code"]) == (400, "invalid_json")


def test_body_04_a_parse_error_says_where(counting: Server) -> None:
    """By line and column."""
    message = counting.api.post("/v1/completions", content=b'{"model":\n "succ",\n oops}').json()["error"]["message"]
    assert "line 3, column 2" in message


@pytest.mark.parametrize("path", POSTS)
def test_body_04_deep_nesting_is_a_400(counting: Server, path: str) -> None:
    """Far beyond what any request needs, it is refused in no time; as deep as the limit, it is only an unknown member."""
    for depth in (64, 1000, 100_000):
        body = b'{"model":"succ","x":' + b"[" * depth + b"]" * depth + b"}"
        assert counting.api.post(path, content=body).json()["error"]["code"] == "invalid_json"
    deep = json.dumps(
        {"model": "succ", "messages": [], "input": "", "prompt": "", "x": json.loads("[" * 63 + "]" * 63)}
    )
    assert counting.api.post(path, content=deep).json()["error"]["code"] != "invalid_json"


CHAT = '{"model":"succ","max_tokens":1,"messages":[{"role":"user","content":"你好"}]}'
ENCODED: dict[str, tuple[bytes, int]] = {
    "UTF-8": (CHAT.encode(), 200),
    "UTF-8 with a mark": (codecs.BOM_UTF8 + CHAT.encode(), 200),
    "GBK": (CHAT.encode("gbk"), 400),
    "Latin-1": (CHAT.replace("你好", "é").encode("latin-1"), 400),
    "UTF-16": (CHAT.encode("utf-16"), 400),
    "UTF-16 without a mark": (CHAT.encode("utf-16-le"), 400),
    "UTF-32": (CHAT.encode("utf-32"), 400),
}


@pytest.mark.parametrize(("body", "status"), ENCODED.values(), ids=list(ENCODED))
def test_body_05_bodies_are_utf_8(counting: Server, body: bytes, status: int) -> None:
    """With a byte order mark or without; other encodings are a 400 that does not repeat their bytes."""
    response = counting.api.post("/v1/chat/completions", content=body)
    assert response.status_code == status
    if status == 400:
        assert response.json()["error"]["code"] == "invalid_json"
        assert "\\x" not in response.text
        assert "\ufffd" not in response.text


HOSTILE = [
    "x" * 100_000,
    "\u0000\u001b[31m<script>",
    "a\r\nX: y",
    '"}{"',
    "\u2028\u2029\x85",
    "e\u0301" * 50,
    "😀" * 99,
]


@pytest.mark.parametrize("hostile", HOSTILE, ids=[ascii(text)[:24] for text in HOSTILE])
def test_body_06_errors_quote_little_and_clean(counting: Server, hostile: str) -> None:
    """A short excerpt without control characters, wherever the text was; the client has checked that it is short, valid JSON."""
    hi = {"role": "user", "content": "Hi"}
    for path, body in (
        ("/v1/chat/completions", {"model": hostile, "messages": [hi]}),
        ("/v1/chat/completions", {"model": "succ", "messages": [{**hi, "role": hostile}]}),
        ("/v1/chat/completions", {"model": "succ", "messages": [hi], "stream": hostile}),
        ("/v1/chat/completions", {"model": "succ", "messages": [hi], "logit_bias": {hostile: 1}}),
        ("/v1/embeddings", {"model": "succ", "input": "a", "encoding_format": hostile}),
        ("/v1/completions", {"model": hostile, "prompt": "a"}),
    ):
        response = counting.api.post(path, content=json.dumps(body))
        assert response.status_code in (400, 404)
        assert response.json()["error"]["message"].isprintable()
        assert len(response.content) < 1000


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    """What the servers of this process write into their log."""
    for name in ("handlers", "level", "propagate"):
        monkeypatch.setattr(LOGGER, name, getattr(LOGGER, name))
    stream = io.StringIO()
    configure_logging(stream)
    return stream


def test_body_06_log_lines_stay_lines(serve: Serve, succ_dir: Path, log: io.StringIO) -> None:
    """Each is one short JSON object without control characters, whatever the path, the id and the model's name tried."""
    server = serve(succ_dir)
    for hostile in HOSTILE:
        server.api.post("/v1/completions", content=json.dumps({"model": hostile, "prompt": "a"}))
        server.api.get("/v1/models/" + quote(hostile[:3000]), headers={"X-Request-Id": "x" * 8000})
    server.handle.drain()
    server.handle.join()
    lines = [line for line in log.getvalue().split("\n") if '"event": "request"' in line]
    assert sum(json.loads(line)["status"] == 404 for line in lines) >= 2 * len(HOSTILE)
    for line in lines:
        assert not any(ord(character) < 32 for character in line)
        assert len(line) < 1000


TYPES: dict[str | None, int] = {
    None: 200,
    "application/json": 200,
    "application/json; charset=utf-8": 200,
    "APPLICATION/JSON": 200,
    "application/vnd.api+json": 200,
    "application/x-www-form-urlencoded": 200,
    "text/plain": 415,
    "application/xml": 415,
    "multipart/form-data; boundary=x": 415,
    "application/jsonlines": 415,
    "json": 415,
}


@pytest.mark.parametrize("path", POSTS)
@pytest.mark.parametrize(("content_type", "status"), TYPES.items(), ids=map(str, TYPES))
def test_api_06_content_types(counting: Server, path: str, content_type: str | None, status: int) -> None:
    """JSON in any spelling, nothing at all, and what ``curl -d`` says; others are a 415 that names the right one."""
    body = {"model": "succ", "messages": [{"role": "user", "content": "a"}], "max_tokens": 1}
    if path != "/v1/chat/completions":
        body = {"model": "succ", "prompt": "a", "input": "a"}
    headers = {} if content_type is None else {"Content-Type": content_type}
    response = counting.api.post(path, content=json.dumps(body), headers=headers)
    assert response.status_code == status
    if status == 415:
        assert "application/json" in response.json()["error"]["message"]


@pytest.mark.parametrize("path", POSTS)
def test_body_07_bodies_are_bounded(counting: Server, path: str) -> None:
    """One byte more than the limit is a 413 that tells it and ends the connection; a body of the limit is read."""
    limit = 4 * 1024**2
    for size, status in ((limit, 400), (limit + 1, 413)):
        body = b'{"x":"' + b"a" * (size - 8) + b'"}'
        assert len(body) == size
        response = counting.api.post(path, content=body)
        assert response.status_code == status
        assert response.headers.get("connection") == ("close" if status == 413 else None)
    assert str(limit) in response.json()["error"]["message"]


@pytest.mark.parametrize("text", ["a\u0000b\u001b", "\u0000", "\u0085\u2028", "\ufeffx", "\U0010ffff"], ids=ascii)
def test_spc_03_control_characters_are_text(counting: Server, text: str) -> None:
    """They are counted, tokenized and answered like any other; nothing ends at a NUL."""
    tokens = counting.api.post("/v1/tokenize", json={"model": "succ", "text": text}).json()["tokens"]
    assert tokens == list(text.encode())
    answer = counting.complete(text, max_tokens=2, temperature=0).json()
    assert answer["usage"]["prompt_tokens"] == len(tokens)
    assert counting.chat(text, max_tokens=2).status_code == 200
