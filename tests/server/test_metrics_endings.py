"""Every way in which a request can end is counted once, under the right words, in the metrics and in the log alike."""

from __future__ import annotations

import json
import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
from prometheus_client.parser import text_string_to_metric_families

from log_lines import captured_log
from support import Gate, Serve, Server, wait_until
from tlserve.config import ServeConfig
from tlserve.engine.load import LoadedEngine, load_engine
from tlserve.engine.progress import Report

CHAT, COMPLETIONS, EMBEDDINGS = "/v1/chat/completions", "/v1/completions", "/v1/embeddings"
MODELS, TOKENIZE = "/v1/models", "/v1/tokenize"

End = tuple[str, str, str]
"""Route, outcome, reason."""


def counted(server: Server) -> Counter[End]:
    """The requests that ``/metrics`` tells of."""
    ends: Counter[End] = Counter()
    for family in text_string_to_metric_families(server.health.get("/metrics").text):
        for sample in family.samples:
            if sample.name == "tlserve_requests_total":
                ends[sample.labels["route"], sample.labels["outcome"], sample.labels["reason"]] += int(sample.value)
    return ends


def logged(lines: list[dict[str, Any]]) -> Counter[tuple[str, str]]:
    """The same of the log: outcome and reason."""
    return Counter((line["outcome"], line.get("reason", "")) for line in lines)


def without_routes(ends: Counter[End]) -> Counter[tuple[str, str]]:
    """Outcome and reason alone."""
    total: Counter[tuple[str, str]] = Counter()
    for (_, outcome, reason), count in ends.items():
        total[outcome, reason] += count
    return total


@contextmanager
def opened_stream(server: Server, **fields: object) -> Iterator[Iterator[str]]:
    """The lines of a chat stream that has begun; who leaves the block hangs up."""
    body = {"model": server.model, "messages": [{"role": "user", "content": "a"}], "stream": True, "max_tokens": 4000}
    with httpx.stream("POST", f"{server.base_url}/chat/completions", json={**body, **fields}, timeout=30) as response:
        lines = response.iter_lines()
        next(lines)
        yield lines


@contextmanager
def half_sent(server: Server) -> Iterator[Callable[[], bytes]]:
    """A request whose body is still to come; the function sends it and returns the first line of the answer."""
    body = json.dumps({"model": server.model, "prompt": "a", "max_tokens": 1}).encode()
    head = f"POST {COMPLETIONS} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
    host, port = server.handle.http_addr.split(":")
    with socket.create_connection((host, int(port)), timeout=10) as connection, connection.makefile("rb") as answer:

        def send_rest() -> bytes:
            connection.sendall(body)
            return answer.readline()

        connection.sendall(head.encode())
        yield send_rest


def answer_some(server: Server) -> None:
    """Four generations that end well, and everything else that the API answers."""
    server.chat("a", max_tokens=50, stop=["d"], temperature=0)
    server.chat("a", max_tokens=2)
    server.chat("a", max_tokens=2, stream=True)
    server.complete(["a", "b"], max_tokens=2)
    server.api.post(EMBEDDINGS, json={"model": server.model, "input": "a"})
    server.api.post(TOKENIZE, json={"model": server.model, "text": "a"})
    server.api.get(MODELS)
    server.api.get(f"{MODELS}/{server.model}")
    server.api.get("/healthz")


ANSWERED = {
    (CHAT, "finished", ""): 1,
    (CHAT, "length", ""): 2,
    (COMPLETIONS, "length", ""): 1,
    (EMBEDDINGS, "finished", ""): 1,
    (TOKENIZE, "finished", ""): 1,
    (MODELS, "finished", ""): 2,
    ("other", "finished", ""): 1,
}


def refuse_some(server: Server) -> None:
    """Requests that are wrong, each in its own way."""
    server.chat("a", max_tokens=0)
    server.chat("a", n=2)
    server.chat("a" * 300, max_tokens=100_000)
    server.api.post(CHAT, json={"model": "gpt", "messages": [{"role": "user", "content": "a"}]})
    server.api.post(CHAT, content=b"<a/>", headers={"Content-Type": "text/xml"})
    server.api.post(CHAT, content=b"{}" + b" " * 5000)
    server.api.put(CHAT)
    server.api.get("/v1/nothing")
    server.api.get(f"/v1/{'x' * 50}")


REFUSED = {
    (CHAT, "rejected", "invalid_value"): 1,
    (CHAT, "rejected", "unsupported_parameter"): 1,
    (CHAT, "rejected", "context_length_exceeded"): 1,
    (CHAT, "rejected", "model_not_found"): 1,
    (CHAT, "rejected", "unsupported_media_type"): 1,
    (CHAT, "rejected", "request_too_large"): 1,
    (CHAT, "rejected", "method_not_allowed"): 1,
    ("other", "rejected", "unknown_url"): 2,
}


def give_up_some(server: Server) -> None:
    """A client that hangs up, and two whose time is over."""
    with opened_stream(server):
        pass
    for stream in (False, True):
        body = {"model": server.model, "prompt": "a", "max_tokens": 4000, "stream": stream}
        server.api.post(COMPLETIONS, json=body, headers={"X-Request-Timeout-Ms": "150"})


GIVEN_UP = {(CHAT, "aborted", "disconnect"): 1, (COMPLETIONS, "aborted", "deadline"): 2}


def overload(server: Server, gate: Gate) -> None:
    """A stream runs in a step that takes long; one request waits for too long, and fills the queue for another."""
    with opened_stream(server, max_tokens=100) as lines, ThreadPoolExecutor(1) as pool:
        gate.is_open.clear()
        try:
            waiting = pool.submit(server.complete, ["a", "b"], max_tokens=1)
            wait_until(lambda: server.metric("tl_engine_queue_depth") == 2)
            assert server.chat("a", max_tokens=1).status_code == 429
            assert waiting.result().status_code == 503
        finally:
            gate.is_open.set()
        assert [line for line in lines if line][-1] == "data: [DONE]"


OVERLOADED = {
    (CHAT, "length", ""): 1,
    (COMPLETIONS, "failed", "no_capacity"): 1,
    (CHAT, "rejected", "rate_limit_exceeded"): 1,
}


def break_some(server: Server, gate: Gate) -> None:
    """A step that fails, before the first byte of one answer and in the middle of another."""
    gate.is_broken = True
    server.chat("a", max_tokens=1)
    gate.is_broken = False
    with opened_stream(server) as lines:
        gate.is_broken = True
        assert [line for line in lines if line][-1] == "data: [DONE]"
        gate.is_broken = False


BROKEN = {(CHAT, "failed", "internal_error"): 2}


def test_ends_add_up_to_what_was_sent(serve: Serve, succ_dir: Path) -> None:
    """For each way of ending, metrics and log have as many as there were; nothing is counted twice or left out."""
    gate = Gate()
    limits: dict[str, Any] = {"queue_capacity": 2, "queue_deadline_ms": 400, "max_body_bytes": 4096}
    with captured_log() as log:
        server = serve(succ_dir, load=gate, step_delay=0.002, **limits)
        answer_some(server)
        refuse_some(server)
        give_up_some(server)
        overload(server, gate)
        break_some(server, gate)
        expected: Counter[End] = Counter()
        for part in (ANSWERED, REFUSED, GIVEN_UP, OVERLOADED, BROKEN):
            expected.update(part)
        wait_until(lambda: counted(server).total() >= expected.total())

        assert counted(server) == expected
        wait_until(lambda: len(log.of("request")) >= expected.total())
        assert logged(log.of("request")) == without_routes(expected)


def test_ends_while_it_loads_and_stops(serve: Serve, succ_dir: Path) -> None:
    """Refused while the model loads; refused on an open connection while it drains; broken off at the limit, and counted as such."""
    may_load = threading.Event()

    def load(config: ServeConfig, report: Report) -> LoadedEngine:
        assert may_load.wait(30)
        return load_engine(config, report)

    with captured_log() as log:
        server = serve(succ_dir, load=load, wait=False, step_delay=0.01, drain_timeout_s=0.5)
        server.chat("a", max_tokens=1)
        wait_until(lambda: counted(server) == {(CHAT, "failed", "loading"): 1})
        may_load.set()
        server.handle.wait_ready(10)
        assert server.metric("tlserve_model_load_seconds") > 0
        with half_sent(server) as send_rest, opened_stream(server) as lines:
            server.handle.drain()
            wait_until(lambda: server.metric("tlserve_draining") == 1)
            wait_until(lambda: bool(log.of("drain_limit")))
            assert server.metric("tlserve_drain_forced_total") == 1
            assert b"503" in send_rest()
            assert [line for line in lines if line][-1] == "data: [DONE]"
        server.handle.join(10)

    ends = logged(log.of("request"))
    assert ends == {("failed", "loading"): 1, ("failed", "draining"): 1, ("failed", "internal_error"): 1}
