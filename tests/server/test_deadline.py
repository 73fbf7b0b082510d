"""X-Request-Timeout-Ms: the client's own limit, in the queue, in the prefill, in the stream and in front of all of them."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import httpx
import pytest

from support import Gate, Serve, Server, events_of, is_quiet, wait_until


def ask(server: Server, limit_ms: int | str, **fields: object) -> httpx.Response:
    """A completion that may take so long."""
    body = {"model": server.model, "prompt": "a", "temperature": 0, **fields}
    return server.api.post("/v1/completions", json=body, headers={"X-Request-Timeout-Ms": str(limit_ms)})


@pytest.fixture
def slow(serve: Serve, succ_dir: Path) -> Server:
    """A server whose every token takes 20 ms."""
    return serve(succ_dir, step_delay=0.02)


@pytest.mark.parametrize("limit", ["0", "3600001", "soon", "1.5", ""])
def test_a_limit_out_of_range_is_named(slow: Server, limit: str) -> None:
    """400 with the header as its param."""
    response = ask(slow, limit, max_tokens=1)

    assert response.status_code == 400
    assert response.json()["error"]["param"] == "X-Request-Timeout-Ms"


def test_what_is_done_in_time_is_answered_as_ever(slow: Server) -> None:
    """The limit changes nothing then, and its task goes with the request."""
    assert ask(slow, 60_000, max_tokens=3).json()["choices"][0]["text"] == "bcd"


def test_a_plain_answer_that_takes_too_long_is_504(slow: Server) -> None:
    """At the limit, with the code and the header that set it; the blocks are free at once."""
    started = time.monotonic()

    response = ask(slow, 300, max_tokens=4000)

    assert 0.25 < time.monotonic() - started < 8
    error = response.json()["error"]
    assert (response.status_code, error["code"], error["param"]) == (504, "deadline_exceeded", "X-Request-Timeout-Ms")
    assert "300 ms" in error["message"]
    wait_until(lambda: is_quiet(slow))


def test_a_stream_keeps_what_came_in_time_and_ends_with_the_error(slow: Server) -> None:
    """Tokens, one error event, [DONE]; nothing else."""
    body = {"model": slow.model, "messages": [{"role": "user", "content": "a"}], "stream": True, "max_tokens": 4000}
    response = slow.api.post("/v1/chat/completions", json=body, headers={"X-Request-Timeout-Ms": "400"})

    _, *chunks, error, done = events_of(response.text)
    assert response.status_code == 200
    assert done == "[DONE]"
    assert json.loads(error)["error"]["code"] == "deadline_exceeded"
    assert "".join(json.loads(chunk)["choices"][0]["delta"]["content"] for chunk in chunks).startswith("bcd")
    wait_until(lambda: is_quiet(slow))


def test_every_choice_of_a_list_is_given_up(slow: Server) -> None:
    """One limit for the request, however many generations it is."""
    assert ask(slow, 300, prompt=["a", "b", "c"], max_tokens=4000).status_code == 504
    wait_until(lambda: is_quiet(slow))


@pytest.fixture
def full(serve: Serve, succ_dir: Path) -> Iterator[Server]:
    """A server whose one place is taken by a long stream."""
    server = serve(succ_dir, engine={"max_batch": 1}, step_delay=0.01)
    body = {"model": "succ", "prompt": "a", "stream": True, "max_tokens": 5000}
    with httpx.stream("POST", f"{server.base_url}/completions", json=body) as response:
        lines = response.iter_lines()
        next(lines)
        yield server


@pytest.mark.parametrize("stream", [True, False])
def test_the_limit_holds_in_the_queue(full: Server, *, stream: bool) -> None:
    """A request that never ran leaves the queue at its limit; the status is 504 then, for a stream too."""
    response = ask(full, 300, max_tokens=1, stream=stream)

    assert response.status_code == 504
    assert response.json()["error"]["code"] == "deadline_exceeded"
    wait_until(lambda: full.metric("tl_engine_queue_depth") == 0)
    assert full.metric("tl_engine_active_sequences") == 1


def test_a_step_that_hangs_does_not_hold_up_the_answer(serve: Serve, succ_dir: Path) -> None:
    """In the middle of a prefill the client is told at its limit; the blocks are free after the step that ran."""
    gate = Gate()
    server = serve(succ_dir, load=gate)
    gate.is_open.clear()
    try:
        response = ask(server, 300, prompt="a long prompt " * 50, max_tokens=5)
    finally:
        gate.is_open.set()

    assert response.status_code == 504
    wait_until(lambda: is_quiet(server))
    assert server.complete("a", max_tokens=1).status_code == 200


def test_the_limit_counts_the_arrival_of_the_body(serve: Serve, succ_dir: Path) -> None:
    """A body that does not come is not waited for beyond it."""
    server = serve(succ_dir)
    host, port = server.handle.http_addr.split(":")
    head = "POST /v1/completions HTTP/1.1\r\nHost: x\r\nX-Request-Timeout-Ms: 200\r\nContent-Length: 50\r\n\r\n{"
    with socket.create_connection((host, int(port)), timeout=10) as connection:
        connection.sendall(head.encode())
        answer = connection.recv(65536)

    assert answer.startswith(b"HTTP/1.1 504 ")


def test_who_stops_reading_holds_no_blocks_beyond_the_limit(serve: Serve, succ_dir: Path) -> None:
    """The limit is kept by the server and not by the handler, which is waiting for the client."""
    server = serve(succ_dir, step_delay=0.001, send_timeout_s=30.0)
    host, port = server.handle.http_addr.split(":")
    body = json.dumps({"model": "succ", "prompt": "a", "stream": True, "max_tokens": 8000, "logprobs": 5})
    head = (
        f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nX-Request-Timeout-Ms: 3000\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    with closing(socket.socket()) as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.connect((host, int(port)))
        connection.sendall((head + body).encode())
        wait_until(lambda: server.metric("tl_engine_active_sequences") == 1)

        wait_until(lambda: is_quiet(server), seconds=10)

        assert "tlserve_requests_total{" not in server.health.get("/metrics").text, "the request is over, not given up"


def test_embeddings_have_a_limit_too(serve: Serve, succ_dir: Path) -> None:
    """Inputs that wait behind a step which hangs are given up at the limit."""
    gate = Gate()
    server = serve(succ_dir, load=gate)
    body = {"model": server.model, "input": ["a"] * 5}
    gate.is_open.clear()
    with ThreadPoolExecutor() as pool:
        pool.submit(server.complete, "a", max_tokens=1)
        assert gate.is_in_step.wait(10)
        response = server.api.post("/v1/embeddings", json=body, headers={"X-Request-Timeout-Ms": "200"})
        gate.is_open.set()

    assert response.status_code == 504
    assert server.api.post("/v1/embeddings", json=body, headers={"X-Request-Timeout-Ms": "60000"}).status_code == 200
