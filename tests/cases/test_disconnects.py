"""Clients that leave: what they asked for ends within a step, is counted once, and harms nobody."""

from __future__ import annotations

import random
import socket
import struct
from contextlib import ExitStack, suppress
from pathlib import Path

import httpx
import pytest

from support import Serve, Server, is_quiet, wait_until
from wire import connect, request_bytes

OUTCOMES = {
    "finished": ("finished", "length"),
    "aborted": ("aborted",),
    "rejected": ("rejected",),
    "failed": ("failed",),
}


def leave(connection: socket.socket, *, with_reset: bool) -> None:
    """Close it, politely or not."""
    if with_reset:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


def ended(server: Server) -> dict[str, float]:
    """How many chats ended in which way."""
    lines = server.health.get("/metrics").text.splitlines()
    chats = [line for line in lines if line.startswith("tlserve_requests_total{") and '"/v1/chat/completions"' in line]
    return {
        outcome: sum(float(line.rpartition(" ")[2]) for line in chats for word in words if f'outcome="{word}"' in line)
        for outcome, words in OUTCOMES.items()
    }


@pytest.mark.parametrize("with_reset", [False, True], ids=["FIN", "RST"])
@pytest.mark.parametrize("stream", [False, True], ids=["plain", "stream"])
def test_disc_01_disc_02_nobody_is_answered_who_has_left(
    serve: Serve,
    succ_dir: Path,
    *,
    stream: bool,
    with_reset: bool,
) -> None:
    """Twenty clients leave in the middle of long answers, awaited whole or streamed: in a second all is free again."""
    server = serve(succ_dir, step_delay=0.005)
    with ExitStack() as stack:
        clients = [stack.enter_context(connect(server, timeout=20)) for _ in range(20)]
        for client in clients:
            client.sendall(request_bytes(stream=stream, max_tokens=4000))
        wait_until(lambda: server.metric("tl_engine_active_sequences") == 20)
        for client in clients:
            leave(client, with_reset=with_reset)
        wait_until(lambda: is_quiet(server), seconds=2)
    assert server.chat("a", max_tokens=1).status_code == 200
    wait_until(lambda: ended(server) == {"finished": 1, "aborted": 20, "rejected": 0, "failed": 0})


def test_disc_05_leaving_at_the_very_end(serve: Serve, succ_dir: Path) -> None:
    """Answers of one to three tokens whose clients leave at any moment: each is counted once, and nothing is left."""
    server = serve(succ_dir)
    chance = random.Random(3)
    for number in range(200):
        with connect(server, timeout=20) as client:
            client.sendall(request_bytes(stream=number % 2 == 0, max_tokens=1 + number % 3))
            if chance.random() < 0.7:
                client.settimeout(chance.random() * 0.004 + 1e-4)
                with suppress(TimeoutError):
                    client.recv(chance.choice([1, 300, 4000]))
            leave(client, with_reset=chance.random() < 0.5)
    wait_until(lambda: is_quiet(server))
    wait_until(lambda: sum(ended(server).values()) >= 150)  # Some were gone before their request could be read.
    assert ended(server)["failed"] == ended(server)["rejected"] == 0
    assert server.chat("a", max_tokens=3, temperature=0).json()["choices"][0]["message"]["content"] == "bcd"


def test_disc_06_resets_in_the_middle_of_streams(serve: Serve, succ_dir: Path) -> None:
    """Two hundred streams end with a reset after a byte: the server lives, its probes too, and none of it is a failure."""
    server = serve(succ_dir, step_delay=0.001)
    for _ in range(200):
        with connect(server, timeout=20) as client:
            client.sendall(request_bytes(stream=True, max_tokens=500))
            assert client.recv(1)
            leave(client, with_reset=True)
    assert server.health.get("/healthz").status_code == 200
    wait_until(lambda: is_quiet(server))
    wait_until(lambda: ended(server)["aborted"] == 200)
    assert ended(server)["failed"] == 0


def test_met_02_every_request_is_counted_by_its_end(serve: Serve, succ_dir: Path) -> None:
    """Five that were left, three that finished, two that were wrong: the sums are those of the requests."""
    server = serve(succ_dir, step_delay=0.005)
    body = {"model": "succ", "messages": [{"role": "user", "content": "a"}], "stream": True, "max_tokens": 4000}
    for _ in range(5):
        with httpx.stream("POST", f"{server.base_url}/chat/completions", json=body) as response:
            next(response.iter_raw(64))
    for _ in range(3):
        server.chat("a", max_tokens=2)
    for _ in range(2):
        server.chat("a", max_tokens=0)
    wait_until(lambda: ended(server) == {"finished": 3, "aborted": 5, "rejected": 2, "failed": 0})


def test_spc_20_a_half_closed_client_has_left(serve: Serve, succ_dir: Path) -> None:
    """It gets a plain answer whole, where that was under way to it already, or not at all; a stream may be cut; never silence."""
    server = serve(succ_dir)
    for stream in (False, True):
        for _ in range(20):
            with connect(server, timeout=20) as client:
                client.sendall(request_bytes(headers="Connection: close\r\n", stream=stream, max_tokens=5))
                client.shutdown(socket.SHUT_WR)
                answer = b"".join(iter(lambda: client.recv(65536), b""))
            assert stream or answer == b"" or answer.endswith(b"}}")
    wait_until(lambda: is_quiet(server))
