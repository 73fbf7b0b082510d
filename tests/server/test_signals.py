"""SIGTERM and its kin, sent to a real process: what finishes, what is refused, how fast it is gone."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from ops_tools import missing, required_tool
from processes import Launch, Launched
from support import wait_until


def body(max_tokens: int = 200) -> dict[str, Any]:
    """A stream of so many tokens."""
    messages = [{"role": "user", "content": "a"}]
    return {"model": "succ", "messages": messages, "stream": True, "max_tokens": max_tokens, "temperature": 0}


def stream_lines(server: Launched, max_tokens: int = 200) -> list[str]:
    """Every non-empty line of a stream, read to its end."""
    with httpx.stream("POST", f"{server.api}/v1/chat/completions", json=body(max_tokens), timeout=30) as response:
        return [line for line in response.iter_lines() if line]


def open_requests(server: Launched) -> float:
    """How many sequences the engine runs."""
    text = httpx.get(f"{server.health}/metrics").text
    return next(float(line.split()[1]) for line in text.splitlines() if line.startswith("tl_engine_active_sequences "))


def as_pid_1() -> list[str]:
    """What makes a command PID 1, as it is in a container; our own process can signal it, it cannot see us."""
    unshare = required_tool("unshare", package="util-linux")
    for way in (["--pid"], ["--user", "--map-root-user", "--pid"]):
        prefix = [unshare, *way, "--fork", "--kill-child"]
        if subprocess.run([*prefix, "true"], capture_output=True, check=False).returncode == 0:
            return prefix
    return missing("this system lets nobody make PID namespaces; run the tests as root")


def children_of(pid: int) -> list[int]:
    """The processes that it has started."""
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def connect(server: Launched) -> socket.socket:
    """A bare connection to the API."""
    address = urlsplit(server.api)
    return socket.create_connection((address.hostname, address.port), timeout=10)


def test_sigterm_under_eight_streams(launch: Launch, succ_dir: Path) -> None:
    """All eight reach [DONE] with a real finish; meanwhile nothing new is taken and the probes say so; exit code 0."""
    server = launch(succ_dir, step_delay=0.01)
    server.wait_ready()
    with ThreadPoolExecutor(8) as pool:
        streams = [pool.submit(stream_lines, server) for _ in range(8)]
        wait_until(lambda: open_requests(server) == 8)

        server.process.stop()

        wait_until(lambda: httpx.get(f"{server.health}/readyz").status_code == 503)
        assert httpx.get(f"{server.health}/readyz").json()["status"] == "draining"
        assert httpx.get(f"{server.health}/healthz").status_code == 200
        with pytest.raises(httpx.ConnectError):
            httpx.get(f"{server.api}/v1/models")
        for stream in streams:
            *chunks, done = stream.result()
            assert done == "data: [DONE]"
            assert json.loads(chunks[-1][6:])["choices"][0]["finish_reason"] == "length"
    assert server.process.exit_code() == 0


def test_idle_keep_alive_connection_does_not_hold_the_exit(launch: Launch, succ_dir: Path) -> None:
    """A pooled connection that has served a request is closed at once, so the process is gone in under a second."""
    server = launch(succ_dir)
    server.wait_ready()
    with httpx.Client(base_url=server.api) as client, httpx.Client(base_url=server.health) as probe:
        assert client.get("/v1/models").status_code == 200
        assert probe.get("/readyz").status_code == 200
        started = time.monotonic()

        server.process.stop()

        assert server.process.exit_code() == 0
        assert time.monotonic() - started < 1.0


def test_late_request_on_an_open_connection_is_told_503(launch: Launch, succ_dir: Path) -> None:
    """A request whose bytes were already on their way when the drain began is answered, not dropped: 503, and close."""
    server = launch(succ_dir, step_delay=0.02)
    server.wait_ready()
    with connect(server) as late, ThreadPoolExecutor(1) as pool:
        late.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n")
        stream = pool.submit(stream_lines, server, 100)
        wait_until(lambda: open_requests(server) == 1)
        server.process.stop()
        server.process.wait_for("draining")

        late.sendall(b"{}")

        answer = b"".join(iter(lambda: late.recv(65536), b""))
        assert stream.result()[-1] == "data: [DONE]"
    head, _, content = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 ")
    assert b"connection: close" in head.lower()
    assert json.loads(content)["error"]
    assert server.process.exit_code() == 0


def test_quiescing_server_still_serves(launch: Launch, succ_dir: Path) -> None:
    """For ``quiesce_s`` after the signal slow probes are told, yet whoever still comes is served and asked to reconnect."""
    server = launch(succ_dir, quiesce_s=1.5)
    server.wait_ready()
    signalled = time.monotonic()
    server.process.stop()
    wait_until(lambda: httpx.get(f"{server.health}/readyz").status_code == 503)

    answer = httpx.post(f"{server.api}/v1/completions", json={"model": "succ", "prompt": "a", "max_tokens": 3})

    assert answer.json()["choices"][0]["text"] == "bcd"
    assert answer.headers["connection"] == "close"
    assert server.process.exit_code() == 0
    assert 1.5 <= time.monotonic() - signalled < 2.5


def test_reader_that_stopped_does_not_hold_the_exit(launch: Launch, succ_dir: Path) -> None:
    """A client that reads nothing any more is cut at the drain limit, and the exit code is still 0."""
    server = launch(succ_dir, drain_timeout_s=1.0, send_timeout_s=60.0, step_delay=0.0)
    server.wait_ready()
    payload = json.dumps(body(8000)).encode()
    with connect(server) as stalled:
        stalled.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        request = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(payload)}\r\n\r\n"
        stalled.sendall(request.encode() + payload)
        stalled.recv(100)
        started = time.monotonic()

        server.process.stop()

        assert server.process.exit_code() == 0
        assert time.monotonic() - started < 5.0


def test_drain_limit_ends_streams_with_an_error_event(launch: Launch, succ_dir: Path) -> None:
    """A stream that is still running at the limit gets one error event and [DONE], never a fake finish."""
    server = launch(succ_dir, drain_timeout_s=0.5, step_delay=0.05)
    server.wait_ready()
    with ThreadPoolExecutor(1) as pool:
        stream = pool.submit(stream_lines, server, 2000)
        wait_until(lambda: open_requests(server) == 1)

        server.process.stop()

        *chunks, error, done = stream.result()
    assert done == "data: [DONE]"
    assert json.loads(error[6:])["error"]["type"] == "server_error"
    assert all(json.loads(chunk[6:])["choices"][0]["finish_reason"] is None for chunk in chunks)
    assert server.process.exit_code() == 0


def test_second_signal_kills(launch: Launch, succ_dir: Path) -> None:
    """Whoever cannot wait for the drain sends the signal again."""
    server = launch(succ_dir, step_delay=0.05)
    server.wait_ready()
    with ThreadPoolExecutor(1) as pool:
        stream = pool.submit(stream_lines, server, 5000)
        wait_until(lambda: open_requests(server) == 1)
        server.process.stop()
        server.process.wait_for("draining")

        server.process.stop()

        assert server.process.exit_code(2) == -signal.SIGTERM
        assert isinstance(stream.exception(), httpx.HTTPError)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_second_signal_kills_the_first_process_of_a_container(
    launch: Launch, succ_dir: Path, number: signal.Signals
) -> None:
    """PID 1 gets only the signals that it asks for; the one that is to kill is asked for too."""
    server = launch(succ_dir, prefix=as_pid_1(), step_delay=0.05)
    server.wait_ready()
    (tlserve,) = children_of(server.process.popen.pid)
    with ThreadPoolExecutor(1) as pool:
        stream = pool.submit(stream_lines, server, 5000)
        wait_until(lambda: open_requests(server) == 1)
        os.kill(tlserve, signal.SIGTERM)
        server.process.wait_for("draining")

        os.kill(tlserve, number)

        assert server.process.exit_code(2) == 128 + number
        assert isinstance(stream.exception(), httpx.HTTPError)


def test_signal_stops_the_first_process_of_a_container(launch: Launch, succ_dir: Path) -> None:
    """One is enough where nothing runs, and the exit code is 0."""
    server = launch(succ_dir, prefix=as_pid_1())
    (tlserve,) = children_of(server.process.popen.pid)

    os.kill(tlserve, signal.SIGTERM)

    assert server.process.exit_code() == 0


@pytest.mark.model
def test_sigterm_while_loading(launch: Launch, smollm2_path: Path) -> None:
    """Probes are answered while the model loads; a stop then is obeyed promptly and is no failure."""
    server = launch(smollm2_path)
    readiness = httpx.get(f"{server.health}/readyz")
    assert readiness.status_code == 503
    assert readiness.json()["status"] == "loading"
    assert httpx.get(f"{server.health}/healthz").status_code == 200
    refused = httpx.post(f"{server.api}/v1/completions", json={"model": "x", "prompt": "y"})
    assert refused.status_code == 503
    assert refused.json()["error"]["code"] == "loading"
    started = time.monotonic()

    server.process.stop(signal.SIGINT)

    assert server.process.exit_code() == 0
    assert time.monotonic() - started < 3.0
