"""Probes are answered in a thread of their own, whatever the loop does; and they say when the loop does not turn."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from support import Serve, Server, wait_until
from tlserve.server import heartbeat
from tlserve.server.exposition import expose
from wire import connect


def hold_loop(server: Server) -> Callable[[], None]:
    """Keep the server's loop from turning until the result is called."""
    release, is_held = threading.Event(), threading.Event()
    token = server.handle._token
    assert token is not None

    def hold() -> None:
        is_held.set()
        release.wait(30)

    token.run_sync_soon(hold)
    assert is_held.wait(10)
    return release.set


@pytest.mark.parametrize("path", ["/healthz", "/readyz", "/metrics"])
def test_a_busy_loop_holds_up_no_probe(serve: Serve, succ_dir: Path, path: str) -> None:
    """200 while one callback keeps the loop, which is still well within its time."""
    server = serve(succ_dir)
    let_go = hold_loop(server)
    try:
        assert httpx.get(f"http://{server.handle.health_addr}{path}", timeout=3).status_code == 200
    finally:
        let_go()
    assert server.chat("a", max_tokens=1).status_code == 200


def test_a_loop_that_hangs_is_told(serve: Serve, succ_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """503 from /healthz and /readyz while nothing turns, and 200 again when it does."""
    monkeypatch.setattr(heartbeat, "LIMIT_S", heartbeat.INTERVAL_S + 0.5)
    server = serve(succ_dir)
    let_go = hold_loop(server)
    try:
        wait_until(lambda: server.health.get("/healthz").status_code == 503)
        document = server.health.get("/healthz").json()
        assert document["status"] == "stuck"
        assert document["silent_s"] > heartbeat.INTERVAL_S
        answer = server.health.get("/readyz")
        assert (answer.status_code, answer.json()["status"]) == (503, "stalled")
        assert server.metric("tlserve_ready") == 0
    finally:
        let_go()
    wait_until(lambda: server.health.get("/readyz").status_code == 200)
    assert server.health.get("/healthz").json() == {"status": "ok"}


def test_an_answer_of_known_length_comes_in_one_piece(serve: Serve, succ_dir: Path) -> None:
    """Head and body are sent together, so that a peer reads both at once; a HEAD request gets the same head."""
    server = serve(succ_dir)
    with connect(server) as connection:
        connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
        head, _, body = connection.recv(65536).partition(b"\r\n\r\n")
        assert body == b'{"status":"ok"}'
        connection.sendall(b"HEAD /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
        bare = connection.recv(65536)
    assert bare.endswith(b"\r\n\r\n")
    assert b"content-length: 15" in head.lower()
    assert b"content-length: 15" in bare.lower()


def test_the_exposition_is_that_of_prometheus_client() -> None:
    """To the byte, for every kind of metric in use, with labels and numbers of all sorts."""
    registry = CollectorRegistry()
    counter = Counter("requests", 'Of "all"\\ kinds\nand more.', ["route", "reason"], registry=registry)
    counter.labels("/v1/models", 'a "quoted"\\ word\nand a line').inc()
    counter.labels("other", "").inc(1234567)
    for number, value in enumerate((0, -1.5, 1e6, 999_999.5, 2.5e-9, float("inf"), float("nan"), -float("inf"), 1e21)):
        Gauge(f"gauge_{number}", "A number.", registry=registry).set(value)
    Histogram("seconds", "Of waiting.", buckets=(0.005, 1, 2.5), registry=registry).observe(1)
    Info("build", "What runs.", registry=registry).info({"version": "1", "model": "m"})

    samples = [line for line in generate_latest(registry).splitlines() if b"_created" not in line]

    assert [line for line in expose(registry.collect()).splitlines() if b"_created" not in line] == samples


def test_a_scrape_tells_of_the_process(serve: Serve, succ_dir: Path) -> None:
    """Memory and open files are there from the first scrape on, and all of it is well formed for Prometheus' parser."""
    server = serve(succ_dir, metrics_compat="vllm")
    server.chat("a", max_tokens=3)
    names = [family.name for family in text_string_to_metric_families(server.health.get("/metrics").text)]
    assert {"tlserve_requests", "tlserve_inter_token_latency_seconds", "vllm:num_requests_running"} <= set(names)
    assert server.metric("process_resident_memory_bytes") > 0
    assert server.metric("process_open_fds") > 0
