"""What the HTTP stack would do wrong by itself, on real sockets: idle, pipelined, stalled and vanishing clients."""

from __future__ import annotations

import json
import socket
import struct
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import httpx
import pytest
from quart import Quart

from support import Serve, Server, is_quiet, text_of, wait_until
from wire import connect, read_all, request_bytes


def test_keep_alive_limit_holds_after_a_request(serve: Serve, succ_dir: Path) -> None:
    """A connection that has served a request and idles is closed when its time is up, not kept for ever."""
    server = serve(succ_dir, keep_alive_s=1.0)
    with connect(server) as connection:
        connection.sendall(b"GET /v1/models HTTP/1.1\r\nHost: x\r\n\r\n")
        started = time.monotonic()

        assert read_all(connection).startswith(b"HTTP/1.1 200")

        assert 0.5 < time.monotonic() - started < 3.0


def test_client_that_vanishes_at_once_leaves_nothing(serve: Serve, succ_dir: Path) -> None:
    """Streams whose client is gone before the first byte, and so may never start, free what they hold all the same."""
    server = serve(succ_dir, step_delay=0.005)
    for _ in range(30):
        with connect(server) as connection:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # close with a reset
            connection.sendall(request_bytes(stream=True, max_tokens=4000))

    wait_until(lambda: is_quiet(server))
    assert server.chat("a", max_tokens=1).status_code == 200


def test_hang_up_behind_pipelined_bytes_is_seen_at_the_next_send(serve: Serve, succ_dir: Path) -> None:
    """Bytes behind a request hide the end of the connection from the reader; the stream's own sends find it out."""
    server = serve(succ_dir, step_delay=0.005)
    with connect(server) as connection:
        connection.sendall(request_bytes(stream=True, max_tokens=4000) + b"GET / HTTP/1.1\r\n")
        assert connection.recv(100)
        assert server.metric("tl_engine_active_sequences") == 1

    wait_until(lambda: is_quiet(server), seconds=3)
    started = time.monotonic()
    server.handle.drain()
    server.handle.join()
    assert time.monotonic() - started < 1.0, "the reader of that connection is still waiting"


def test_half_closed_connection_counts_as_a_hang_up(serve: Serve, succ_dir: Path) -> None:
    """Who shuts down its sending side wants no answer; the request is given up."""
    server = serve(succ_dir, step_delay=0.005)
    with connect(server) as connection:
        connection.sendall(request_bytes(stream=True, max_tokens=4000))
        assert connection.recv(100)

        connection.shutdown(socket.SHUT_WR)

        wait_until(lambda: is_quiet(server), seconds=3)


def test_pipelined_requests_are_answered_in_order(serve: Serve, succ_dir: Path) -> None:
    """Two requests in one packet get two answers on one connection."""
    server = serve(succ_dir)
    first = request_bytes(max_tokens=2)
    with connect(server) as connection:
        connection.sendall(first + request_bytes(headers="Connection: close\r\n", max_tokens=3))
        answer = read_all(connection)

    assert answer.count(b"HTTP/1.1 200") == 2
    assert answer.index(b'"content":"bc"') < answer.index(b'"content":"bcd"')


def test_bytes_after_connection_close_do_no_harm(serve: Serve, succ_dir: Path) -> None:
    """Whatever follows a request that asked to close, the server lives and its next client is served."""
    server = serve(succ_dir)
    with connect(server) as connection:
        connection.sendall(request_bytes(headers="Connection: close\r\n", max_tokens=2) + b"more bytes")
        assert read_all(connection).startswith(b"HTTP/1.1 ")

    assert server.chat("a", max_tokens=1).status_code == 200


def test_reader_that_stops_is_cut_off(serve: Serve, succ_dir: Path) -> None:
    """A client that keeps its connection open and reads nothing is given up after ``send_timeout_s``."""
    server = serve(succ_dir, send_timeout_s=1.0)
    with closing(connect(server)) as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.sendall(request_bytes(stream=True, max_tokens=8000))

        aborted = 'tlserve_requests_total{outcome="aborted",reason="disconnect",route="/v1/chat/completions"}'
        wait_until(lambda: f"{aborted} 1.0" in server.health.get("/metrics").text, seconds=15)


def test_long_streams_are_not_cut(serve: Serve, succ_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The framework's limit on responses, a minute by default and shortened here, does not apply to answers."""
    monkeypatch.setattr(Quart, "default_config", {**Quart.default_config, "RESPONSE_TIMEOUT": 0.2})
    server = serve(succ_dir, step_delay=0.02)

    assert text_of(server.chat("a", stream=True, max_tokens=30, temperature=0).text).startswith("bcd")
    assert server.chat("a", max_tokens=30, temperature=0).status_code == 200


@pytest.fixture
def busy(serve: Serve, succ_dir: Path) -> Iterator[Server]:
    """A server whose one place is taken by a long stream, with a short queue deadline and shorter pings."""
    server = serve(succ_dir, engine={"max_batch": 1}, step_delay=0.01, queue_deadline_ms=1000, ping_interval_s=0.2)
    body = {"model": "succ", "messages": [{"role": "user", "content": "a"}], "stream": True, "max_tokens": 5000}
    with httpx.stream("POST", f"{server.base_url}/chat/completions", json=body) as response:
        lines = response.iter_lines()
        next(lines)
        yield server


def test_queue_deadline_answers_503(busy: Server) -> None:
    """Who waits longer than ``queue_deadline_ms`` is told so, with a time to come back."""
    started = time.monotonic()

    response = busy.chat("b", max_tokens=1)

    assert 0.9 < time.monotonic() - started < 3.0
    assert response.status_code == 503
    assert response.json()["error"]["code"] == "no_capacity"
    assert int(response.headers["retry-after"]) >= 1
    wait_until(lambda: busy.metric("tl_engine_queue_depth") == 0)


def test_queued_stream_gets_pings_then_the_deadline_in_the_stream(busy: Server) -> None:
    """Proxies see bytes while a stream waits; when it has waited too long it ends with an error event and [DONE]."""
    response = busy.chat("b", max_tokens=1, stream=True)

    events = response.text.removesuffix("\n\n").split("\n\n")
    assert response.status_code == 200
    assert events.count(": ping") >= 2
    assert json.loads(events[-2].removeprefix("data: "))["error"]["code"] == "no_capacity"
    assert events[-1] == "data: [DONE]"
    wait_until(lambda: busy.metric("tl_engine_queue_depth") == 0)


def test_slow_tokens_are_bridged_by_pings(serve: Serve, succ_dir: Path) -> None:
    """Between two tokens that are far apart a comment keeps the connection alive; the text is not touched."""
    server = serve(succ_dir, step_delay=0.5, ping_interval_s=0.15)

    body = server.chat("a", stream=True, max_tokens=3, temperature=0).text

    assert body.count(": ping\n\n") >= 3
    assert text_of(body) == "bcd"
