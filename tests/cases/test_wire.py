"""Requests byte for byte: what surrounds a request, and addresses to ask at. What is no request is in ``tests/server``."""

from __future__ import annotations

import time
from pathlib import Path

import httpx
import pytest

from support import Serve, Server
from wire import connect

GET = b"GET /healthz HTTP/1.1\r\nHost: x\r\n"
CLOSING = GET + b"Connection: close\r\n\r\n"


def talk(server: Server, data: bytes) -> bytes:
    """What comes back for ``data``, until the server closes."""
    with connect(server) as connection:
        connection.sendall(data)
        return b"".join(iter(lambda: connection.recv(65536), b""))


def post(body: bytes, headers: bytes = b"") -> bytes:
    """A completion request that closes its connection."""
    head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
    return head + headers + b"Content-Length: %d\r\n\r\n" % len(body) + body


STREAM = b'{"model":"succ","prompt":"a","stream":true,"temperature":0,"max_tokens":40}'


@pytest.mark.parametrize(
    "surplus",
    [b"GARBAGE", CLOSING, b"x" * 1_000_000, b"\x16\x03\x01", b"\r\n\r\n"],
    ids=["word", "request", "1MB", "TLS", "lines"],
)
@pytest.mark.parametrize(
    ("request_bytes", "end"),
    [(CLOSING, b'{"status":"ok"}'), (post(STREAM), b"[DONE]\n\n\r\n0\r\n\r\n")],
    ids=["plain", "stream"],
)
def test_http_01_what_follows_a_last_request_is_dropped(
    counting: Server, request_bytes: bytes, end: bytes, surplus: bytes
) -> None:
    """Its answer comes whole and alone, then the connection ends; the next client is served."""
    answer = talk(counting, request_bytes + surplus)
    assert answer.startswith(b"HTTP/1.1 200")
    assert answer.endswith(end)
    assert answer.count(b"HTTP/1.1") == 1
    assert counting.api.get("/healthz").status_code == 200


def test_http_01_what_follows_during_the_answer_is_dropped(serve: Serve, succ_dir: Path) -> None:
    """More and more of it, while the stream goes on to its end."""
    server = serve(succ_dir, step_delay=0.01)
    with connect(server) as connection:
        connection.sendall(post(STREAM))
        answer = connection.recv(65536)
        for _ in range(20):
            connection.sendall(b"GARBAGE" * 1000)
            answer += connection.recv(65536)
        answer += b"".join(iter(lambda: connection.recv(65536), b""))
    assert answer.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")


def test_http_04_a_surplus_of_the_body_is_no_request(counting: Server) -> None:
    """A body longer than it was said to be: the said part is answered, and nothing of the rest is served."""
    request = b'POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\n{"mod'
    answer = talk(counting, request + b'el":"succ"}GET /v1/models HTTP/1.1\r\nHost: x\r\n\r\n')
    assert answer.startswith(b"HTTP/1.1 400")
    assert b"HTTP/1.1 200" not in answer


def test_http_10_old_clients(counting: Server) -> None:
    """HTTP/1.0: an answer with its length, no chunks, and the end of the connection, whether it asked to be kept or not."""
    for wish in (b"", b"Connection: keep-alive\r\n"):
        answer = talk(counting, b"GET /healthz HTTP/1.0\r\n" + wish + b"\r\n")
        head = answer.partition(b"\r\n\r\n")[0].lower()
        assert answer.endswith(b'{"status":"ok"}')
        assert b"transfer-encoding" not in head
        assert b"connection: close" in head


def test_spc_13_targets_in_other_forms(counting: Server) -> None:
    """A whole URL leads where its path does; ``*`` can be asked for its options; a host may be an IPv6 address."""
    closing = b" HTTP/1.1\r\nHost: [::1]:8000\r\nConnection: close\r\n\r\n"
    assert b'"object":"list"' in talk(counting, b"GET http://x/v1/models" + closing)
    options = talk(counting, b"OPTIONS *" + closing)
    assert options.startswith(b"HTTP/1.1 204")
    assert b"allow: GET, HEAD, OPTIONS, POST" in options
    assert talk(counting, b"GET *" + closing).startswith(b"HTTP/1.1 405")


def test_body_08_who_asks_before_sending_is_told_at_once(counting: Server) -> None:
    """100 before the body, then the answer; a body that would be too long gets its final answer without being waited for."""
    body = b'{"model":"succ","prompt":"a","temperature":0,"max_tokens":2}'
    head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\nExpect: 100-continue\r\nContent-Length: "
    with connect(counting) as connection:
        started = time.monotonic()
        connection.sendall(head + b"%d\r\n\r\n" % len(body))
        assert connection.recv(1000).startswith(b"HTTP/1.1 100")
        assert time.monotonic() - started < 0.5
        connection.sendall(body)
        answer = b"".join(iter(lambda: connection.recv(65536), b""))
    assert answer.startswith(b"HTTP/1.1 200")
    assert b'"text":"bc"' in answer

    started = time.monotonic()
    with connect(counting) as connection:
        connection.sendall(head + b"99999999999\r\n\r\n")
        refusal = b""
        while b"request_too_large" not in refusal:
            refusal += connection.recv(65536)
    assert b"HTTP/1.1 413" in refusal
    assert time.monotonic() - started < 1


@pytest.mark.parametrize(
    ("listen", "reached"),
    [
        ("127.0.0.1:0", ["127.0.0.1"]),
        ("[::1]:0", ["[::1]"]),
        (":0", ["127.0.0.1", "[::1]"]),
        ("0.0.0.0:0", ["127.0.0.1"]),
        ("localhost:0", ["localhost"]),
    ],
)
def test_http_11_addresses_of_both_families(serve: Serve, succ_dir: Path, listen: str, reached: list[str]) -> None:
    """Each is bound as it says, the address that is told can be asked, and an empty host answers on both."""
    server = serve(succ_dir, http_listen=listen, health_listen=listen)
    assert server.api.get("/v1/models").status_code == 200
    assert server.health.get("/readyz").status_code == 200
    port = server.handle.http_addr.rpartition(":")[2]
    for host in reached:
        assert httpx.get(f"http://{host}:{port}/healthz").status_code == 200
