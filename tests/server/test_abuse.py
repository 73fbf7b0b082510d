"""Clients that are broken or mean to do harm, on real sockets: each is answered or cut off in time, and nobody else notices."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest

from support import Serve, Server, wait_until
from wire import connect, read_all

READ_TIMEOUT_S = 1.0
OK = b"GET /v1/models HTTP/1.1\r\nHost: x\r\n\r\n"
POST = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\n"


@pytest.fixture(scope="session")
def target(serve_shared: Serve, succ_dir: Path) -> Server:
    """A server that is impatient with slow writers, for all tests that leave nothing behind."""
    return serve_shared(succ_dir, read_timeout_s=READ_TIMEOUT_S, max_body_bytes=64 * 1024)


def read_models(connection: socket.socket) -> bytes:
    """One answer to ``OK``, whose end is known."""
    answer = b""
    while not answer.endswith(b"}]}"):
        piece = connection.recv(65536)
        assert piece, f"the connection ended after {answer!r}"
        answer += piece
    return answer


def talk(server: Server, data: bytes) -> bytes:
    """What comes back for ``data`` on a connection of its own, until the server closes it."""
    with connect(server) as connection:
        connection.sendall(data)
        return read_all(connection)


def statuses(answer: bytes) -> list[int]:
    """The status of every response in ``answer``."""
    return [int(part[:3]) for part in answer.split(b"HTTP/1.1 ")[1:]]


def error_of(answer: bytes) -> dict[str, object]:
    """The error of the last response, which must have the v1 shape."""
    head, _, body = answer.rpartition(b"\r\n\r\n")
    assert b"application/json" in head
    assert b"x-request-id: " in head
    error: dict[str, object] = json.loads(body)["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return error


def post(
    body: bytes = b'{"model":"succ","prompt":"a","max_tokens":1}', headers: bytes = b"", *, close: bool = True
) -> bytes:
    """A completion request as it goes over the wire."""
    closing_line = b"Connection: close\r\n" if close else b""
    return POST + closing_line + headers + b"Content-Length: %d\r\n\r\n" % len(body) + body


# --- what is no request -----------------------------------------------------------------------------------------------

BROKEN: dict[str, tuple[bytes, int]] = {
    "HTTP/0.9": (b"GET /\r\n\r\n", 400),
    "no version": (b"GET /v1/models\r\nHost: x\r\n\r\n", 400),
    "version 3": (b"GET / HTTP/3.0\r\nHost: x\r\n\r\n", 505),
    "version 1.2": (b"GET / HTTP/1.2\r\nHost: x\r\n\r\n", 505),
    "no host": (b"GET / HTTP/1.1\r\n\r\n", 400),
    "two hosts": (b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400),
    "null byte in target": (b"GET /v1/\x00models HTTP/1.1\r\nHost: x\r\n\r\n", 400),
    "null byte in header": (b"GET / HTTP/1.1\r\nHost: x\r\nX-Request-Id: a\x00b\r\n\r\n", 400),
    "bare carriage return in header": (b"GET / HTTP/1.1\r\nHost: x\r\nX-Request-Id: a\rSet-Cookie: b=1\r\n\r\n", 400),
    "space in header name": (b"GET / HTTP/1.1\r\nHost: x\r\nX-Request-Id : a\r\n\r\n", 400),
    "header without colon": (b"GET / HTTP/1.1\r\nHost: x\r\nnonsense\r\n\r\n", 400),
    "TLS on a plain port": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(200), 400),
    "binary": (bytes(range(256)), 400),
    "empty lines": (b"\r\n\r\n\r\n", 400),
    "non-ASCII target": ("GET /café HTTP/1.1\r\nHost: x\r\n\r\n".encode(), 400),
    "length of 46 digits": (POST + b"Content-Length: " + b"9" * 46 + b"\r\n\r\nhello", 400),
    "negative length": (POST + b"Content-Length: -1\r\n\r\n", 400),
    "signed length": (POST + b"Content-Length: +5\r\n\r\nhello", 400),
    "hexadecimal length": (POST + b"Content-Length: 0x5\r\n\r\nhello", 400),
    "two lengths": (POST + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello", 400),
    "length and chunks": (POST + b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + OK, 400),
    "unknown transfer coding": (POST + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", 501),
    "chunk size is no number": (POST + b"Transfer-Encoding: chunked\r\n\r\nzz\r\nhello\r\n0\r\n\r\n", 400),
    "negative chunk size": (POST + b"Transfer-Encoding: chunked\r\n\r\n-5\r\nhello\r\n0\r\n\r\n", 400),
    "chunk size of 30 digits": (POST + b"Transfer-Encoding: chunked\r\n\r\n" + b"f" * 30 + b"\r\nhello", 400),
    "chunk longer than said": (POST + b"Transfer-Encoding: chunked\r\n\r\n2\r\nhello\r\n0\r\n\r\n", 400),
    "one header of 70 kB": (b"GET / HTTP/1.1\r\nHost: x\r\nX: " + b"a" * 70_000 + b"\r\n\r\n", 431),
    "100 headers of 8 kB": (b"GET / HTTP/1.1\r\nHost: x\r\n" + (b"X: " + b"a" * 8000 + b"\r\n") * 100 + b"\r\n", 431),
    "target of 100 kB": (b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n", 431),
}


@pytest.mark.parametrize(("data", "status"), BROKEN.values(), ids=list(BROKEN))
def test_what_is_no_request_is_refused_once_and_closed(target: Server, data: bytes, status: int) -> None:
    """One answer in the v1 shape, though no route ever saw it; what follows is not read as another request."""
    started = time.monotonic()

    answer = talk(target, data)

    assert statuses(answer) == [status], answer
    assert error_of(answer)["type"] == "invalid_request_error"
    assert time.monotonic() - started < 8
    assert talk(target, post()).startswith(b"HTTP/1.1 200")


# --- what is a strange request ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path",
    [
        "/v1/models/../../etc/passwd",
        "/v1/models/%2e%2e/%2e%2e/etc/passwd",
        "/v1/models/..%2f..%2fetc%2fpasswd",
        "/v1/models/%00",
        "/v1/models/a%0d%0aSet-Cookie:%20x=1",
        "/v1/models/%ff%fe",
        "//v1//models",
        "/v1/models/" + "a" * 20_000,
        "/v1/models?" + "a=b&" * 5000,
    ],
)
def test_strange_paths_lead_nowhere(target: Server, path: str) -> None:
    """An unknown model or path is 404 in the v1 shape, short, and without a header of the client's making."""
    answer = talk(target, f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())

    assert statuses(answer) in ([404], [200] if "?" in path else [404]), answer[:500]
    assert b"set-cookie" not in answer.partition(b"\r\n\r\n")[0].lower()
    assert b"root:" not in answer
    assert len(answer) < 5000


@pytest.mark.parametrize(
    "value", ["a b", "x" * 8000, "café", "a\tb", "<script>", "'; DROP TABLE", "a\r\n\tb: injected"]
)
@pytest.mark.parametrize("name", ["X-Request-Id", "X-TL-Priority", "X-TL-KV-Handle", "X-TL-Cache-Salt", "traceparent"])
def test_nothing_of_a_header_comes_back_as_a_header(target: Server, name: str, value: str) -> None:
    """Ids are echoed when they are harmless, and replaced otherwise; no value can add a header to the answer."""
    answer = talk(target, post(headers=f"{name}: {value}\r\n".encode("latin-1")))

    head = answer.partition(b"\r\n\r\n")[0]
    known = {b"content-type", b"content-length", b"x-request-id", b"date", b"connection"}
    assert {line.partition(b":")[0].lower() for line in head.split(b"\r\n")[1:]} <= known
    assert b"injected" not in head
    assert len(head) < 1000


@pytest.mark.parametrize("encoding", ["gzip", "br", "deflate", "gzip, identity", "GZIP"])
def test_compressed_bodies_are_not_opened(target: Server, encoding: str) -> None:
    """415 before the body is read: a kilobyte of it could be a gigabyte."""
    answer = talk(
        target, POST + f"Content-Encoding: {encoding}\r\nContent-Length: 60000\r\n\r\n".encode() + b"\x1f\x8b"
    )

    assert statuses(answer) == [415]
    assert error_of(answer)["code"] == "unsupported_media_type"


@pytest.mark.parametrize("upgrade", ["websocket", "h2c", "TLS/1.0", "websocket, h2c"])
def test_upgrades_are_not_followed(target: Server, upgrade: str) -> None:
    """The request is answered as if it had not asked; there is no second protocol to get past a proxy with."""
    lines = [
        "GET /v1/models HTTP/1.1",
        "Host: x",
        f"Upgrade: {upgrade}",
        "Connection: Upgrade, HTTP2-Settings, close",
        "HTTP2-Settings: AAMAAABkAAQCAAAAAAIAAAAA",
        "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
        "Sec-WebSocket-Version: 13",
    ]
    answer = talk(target, "\r\n".join([*lines, "", ""]).encode())

    assert statuses(answer) == [200]
    assert b'"object":"list"' in answer


@pytest.mark.parametrize("method", ["CONNECT", "TRACE", "FOO", "x" * 200])
def test_strange_methods_are_told_the_right_ones(target: Server, method: str) -> None:
    """405, and nothing of the request comes back in the body."""
    answer = talk(
        target, f"{method} /v1/models HTTP/1.1\r\nHost: x\r\nCookie: secret\r\nConnection: close\r\n\r\n".encode()
    )

    assert statuses(answer) == [405]
    assert b"allow: " in answer
    assert b"secret" not in answer


def test_an_old_client_gets_what_it_understands(target: Server) -> None:
    """HTTP/1.0 without a host: an answer with its length or its end, no chunks, and the connection is closed."""
    body = b'{"model":"succ","messages":[{"role":"user","content":"a"}],"stream":true,"max_tokens":3}'
    answer = talk(target, b"POST /v1/chat/completions HTTP/1.0\r\nContent-Length: %d\r\n\r\n" % len(body) + body)

    assert statuses(answer) == [200]
    assert b"transfer-encoding" not in answer
    assert answer.endswith(b"data: [DONE]\n\n")


# --- bodies -----------------------------------------------------------------------------------------------------------


def test_a_body_that_is_too_long_is_refused_by_its_length_alone(target: Server) -> None:
    """413 at once; not a byte of the body has to come."""
    started = time.monotonic()
    with connect(target) as connection:
        connection.sendall(POST + b"Content-Length: 10000000000\r\n\r\n")
        answer = connection.recv(65536)

    assert statuses(answer) == [413]
    assert time.monotonic() - started < 5


@pytest.mark.parametrize("is_chunked", [True, False])
def test_a_body_without_an_end_is_refused_at_the_limit(target: Server, *, is_chunked: bool) -> None:
    """The answer reaches a client that is still sending, and the server stops to listen soon after."""
    framing = b"Transfer-Encoding: chunked\r\n\r\n" if is_chunked else b"Content-Length: 1000000000000\r\n\r\n"
    piece = b"8000\r\n" + bytes(0x8000) + b"\r\n" if is_chunked else bytes(0x8000)
    sent = 0
    with connect(target) as connection:
        connection.sendall(POST + framing)
        connection.settimeout(0.05)
        answer = b""
        while not answer and sent < 2**27:
            connection.sendall(piece)
            sent += len(piece)
            try:
                answer = connection.recv(65536)
            except TimeoutError:
                continue
        assert statuses(answer) == [413]
        connection.settimeout(10)
        with pytest.raises(OSError, match=r"reset|Broken pipe|aborted"):
            send_for(10, connection, piece)
    assert sent < 2**24


def test_a_refused_client_may_finish_its_sentence(target: Server) -> None:
    """Most clients read only when all is sent: for a while the rest is taken and thrown away, so that they get the answer."""
    with connect(target) as connection:
        connection.sendall(POST.replace(b"completions", b"nothing") + b"Content-Length: 60001\r\n\r\n")
        assert connection.recv(1, socket.MSG_PEEK)
        for _ in range(20):
            connection.sendall(bytes(3000))
            assert connection.recv(1, socket.MSG_PEEK)

        assert statuses(read_all(connection)) == [404]


def test_slow_bodies_cannot_fill_the_memory(serve: Serve, succ_dir: Path) -> None:
    """Bodies on their way have one budget; who comes when it is taken is told so, and it is free when they are gone."""
    server = serve(succ_dir, max_body_bytes=1024, read_timeout_s=30.0)
    with ExitStack() as stack:
        for _ in range(64):
            connection = stack.enter_context(connect(server))
            connection.sendall(POST + b"Content-Length: 1024\r\n\r\n{")
        wait_until(lambda: server.complete("a", max_tokens=1).status_code == 429)
        refused = server.complete("a", max_tokens=1)
        assert int(refused.headers["retry-after"]) >= 1
        assert server.api.get("/v1/models").status_code == 200

    wait_until(lambda: server.complete("a", max_tokens=1).status_code == 200)


def test_chunked_bodies_are_read(target: Server) -> None:
    """One byte a chunk, with extensions and a trailer."""
    body = b'{"model":"succ","prompt":"a","max_tokens":2,"temperature":0}'
    chunks = b"".join(b"1;a=b\r\n%c\r\n" % byte for byte in body) + b"0\r\nX-Sum: 1\r\n\r\n"
    answer = talk(target, POST + b"Connection: close\r\nTransfer-Encoding: chunked\r\n\r\n" + chunks)

    assert statuses(answer) == [200]
    assert b'"text":"bc"' in answer


# --- slow writers -----------------------------------------------------------------------------------------------------


def send_for(seconds: float, connection: socket.socket, piece: bytes) -> None:
    """Send the same again and again."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        connection.sendall(piece)


def drip(connection: socket.socket, data: bytes, *, pause_s: float) -> bytes:
    """Send one byte at a time until the server answers; all that it says until it closes."""
    connection.settimeout(pause_s)
    for byte in data * 1000:
        connection.sendall(bytes([byte]))
        try:
            answer = connection.recv(65536)
        except TimeoutError:
            continue
        connection.settimeout(10)
        return answer + read_all(connection)
    raise AssertionError("the server listened to all of it")


def test_a_head_that_drips_is_not_waited_for(target: Server) -> None:
    """The time counts from its first byte to its last, not from byte to byte; the answer is 408."""
    started = time.monotonic()
    with connect(target) as connection:
        answer = drip(connection, b"GET / HTTP/1.1\r\nHost: x\r\nX: " + b"a" * 1000, pause_s=0.1)

    assert statuses(answer) == [408]
    assert error_of(answer)["code"] == "request_timeout"
    assert READ_TIMEOUT_S - 0.2 < time.monotonic() - started < READ_TIMEOUT_S + 5


def test_the_head_of_a_second_request_is_due_as_well(target: Server) -> None:
    """A connection that has served a request has no more time for the next; idling in between is another matter."""
    with connect(target) as connection:
        connection.sendall(OK)
        assert statuses(read_models(connection)) == [200]
        time_to_idle = time.monotonic() + 1.5 * READ_TIMEOUT_S
        wait_until(lambda: time.monotonic() > time_to_idle)
        connection.sendall(OK + b"GET /v1/mo")
        assert statuses(read_models(connection)) == [200]
        started = time.monotonic()

        assert statuses(read_all(connection)) == [408]

    assert time.monotonic() - started < READ_TIMEOUT_S + 5


def test_a_body_that_drips_is_not_waited_for(target: Server) -> None:
    """408 when its time is up, and the connection ends."""
    started = time.monotonic()
    with connect(target) as connection:
        connection.sendall(POST + b"Content-Length: 1000\r\n\r\n")
        answer = drip(connection, b"a", pause_s=0.1)

    assert statuses(answer) == [408]
    assert error_of(answer)["code"] == "request_timeout"
    assert READ_TIMEOUT_S - 0.2 < time.monotonic() - started < READ_TIMEOUT_S + 5


def test_answers_longer_than_the_read_timeout_are_not_cut(serve: Serve, succ_dir: Path) -> None:
    """The limit is about requests; a stream may take as long as it takes, and so may the connection's next use."""
    server = serve(succ_dir, read_timeout_s=0.5, step_delay=0.05)

    for _ in range(2):
        assert server.chat("a", stream=True, max_tokens=30, temperature=0).text.endswith("[DONE]\n\n")


def test_a_thousand_slow_heads_leave_room_for_others(serve: Serve, succ_dir: Path) -> None:
    """Connections that begin a request and go no further are closed in time; meanwhile others are served."""
    server = serve(succ_dir, read_timeout_s=2.0)
    with ExitStack() as stack:
        slow = [stack.enter_context(connect(server)) for _ in range(1000)]
        for connection in slow:
            connection.sendall(b"POST /v1/chat/comp")
        started = time.monotonic()
        assert server.chat("a", max_tokens=1).status_code == 200
        assert server.health.get("/healthz").status_code == 200
        assert time.monotonic() - started < 5

        assert all(statuses(read_all(connection)) == [408] for connection in slow)


# --- many connections -------------------------------------------------------------------------------------------------


def test_an_idle_connection_makes_room_for_a_new_one(serve: Serve, succ_dir: Path) -> None:
    """At ``max_connections`` the one that has idled for longest is closed; a busy one and the newest live on."""
    server = serve(succ_dir, max_connections=4, step_delay=0.01)
    body = b'{"model":"succ","prompt":"a","stream":true,"max_tokens":200}'
    with ExitStack() as stack:
        busy = stack.enter_context(connect(server))
        busy.sendall(post(body))
        assert busy.recv(100)
        idle = [stack.enter_context(connect(server)) for _ in range(10)]
        newest = stack.enter_context(connect(server))
        newest.sendall(OK)

        assert statuses(read_models(newest)) == [200]
        assert all(connection.recv(10) == b"" for connection in idle[:8])
        assert server.metric("tlserve_http_connections_evicted_total") == 8
        wait_until(lambda: server.metric("tlserve_http_connections") == 4)
        assert read_all(busy).endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")


def test_busy_connections_are_not_sacrificed(serve: Serve, succ_dir: Path) -> None:
    """Where all are busy the new one is closed, and served again when there is room."""
    server = serve(succ_dir, max_connections=2, step_delay=0.01)
    body = b'{"model":"succ","prompt":"a","stream":true,"max_tokens":5000}'
    with connect(server) as first, connect(server) as second:
        for connection in (first, second):
            connection.sendall(post(body))
            assert connection.recv(100)
        with connect(server) as third:
            assert third.recv(10) == b""
        assert server.metric("tlserve_http_connections_refused_total") == 1
        assert server.health.get("/readyz").status_code == 200

    wait_until(lambda: server.metric("tlserve_http_connections") == 0)
    assert is_let_in(server)


def is_let_in(server: Server) -> bool:
    """Whether a new connection is served."""
    try:
        return httpx.get(f"{server.base_url}/models").status_code == 200
    except httpx.TransportError:
        return False


def open_files() -> int:
    """File descriptors of this process, in which the server runs too."""
    return len(list(Path("/proc/self/fd").iterdir()))


def test_closed_connections_are_forgotten_at_once(serve: Serve, succ_dir: Path) -> None:
    """A connection that its client has closed holds no file, however long it might have idled."""
    server = serve(succ_dir, keep_alive_s=60.0)
    assert server.api.get("/v1/models").status_code == 200
    before = open_files()
    for first in (OK, b"", b"GET /v1"):
        for _ in range(50):
            with connect(server) as connection:
                connection.sendall(first)
                if first == OK:
                    assert connection.recv(100)

    wait_until(lambda: open_files() <= before)


def test_pipelined_requests_do_not_pile_up(target: Server) -> None:
    """A thousand requests in one go are answered one by one, in order; others are served in between."""
    with connect(target, timeout=30) as connection:
        connection.sendall(OK * 1000 + OK.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))
        assert target.complete("a", max_tokens=1).status_code == 200
        assert statuses(read_all(connection)) == [200] * 1001


@pytest.fixture(autouse=True)
def _still_well(request: pytest.FixtureRequest) -> Iterator[None]:
    """After every test on the shared server the engine holds nothing, and nothing of the connections is left."""
    yield
    if "target" in request.fixturenames:
        target: Server = request.getfixturevalue("target")
        wait_until(
            lambda: (
                target.metric("tl_engine_active_sequences") == target.metric('tl_engine_kv_blocks{state="used"}') == 0
            )
        )
