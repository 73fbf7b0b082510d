"""When the engine breaks: who is told what, and what becomes of the process."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from support import Gate, Serve, wait_until
from tlserve.config import ServeConfig
from tlserve.engine.load import LoadedEngine, load_engine
from tlserve.engine.progress import LoadProgress, Report
from tlserve.errors import CheckpointError, EngineDead
from tlserve.server.handle import spawn


def test_failed_step_fails_its_requests_and_no_others(serve: Serve, succ_dir: Path) -> None:
    """A plain request gets 500, a stream an error event and [DONE]; the server goes on."""
    gate = Gate()
    server = serve(succ_dir, load=gate, step_delay=0.02)
    body = {"model": "succ", "messages": [{"role": "user", "content": "a"}], "stream": True, "max_tokens": 1000}
    with httpx.stream("POST", f"{server.base_url}/chat/completions", json=body) as response:
        lines = response.iter_lines()
        next(lines)
        gate.is_broken = True
        *_, error, done = [line for line in lines if line]
        gate.is_broken = False

    assert json.loads(error.removeprefix("data: "))["error"]["type"] == "server_error"
    assert done == "data: [DONE]"
    assert server.chat("a", max_tokens=1).status_code == 200
    assert server.health.get("/readyz").status_code == 200


def test_dead_engine_ends_the_server(serve: Serve, succ_dir: Path) -> None:
    """Three failures in a row: readiness goes, every request is told, and the server ends with the engine's error."""
    gate = Gate()
    server = serve(succ_dir, load=gate, is_joined=False)
    gate.is_broken = True
    for _ in range(2):  # One by one: a step that several requests share fails once.
        assert server.chat("a", max_tokens=5).status_code == 500

    with ThreadPoolExecutor() as pool:
        plain = [pool.submit(server.chat, "a", max_tokens=5) for _ in range(3)]
        streams = [pool.submit(server.chat, "b", max_tokens=5, stream=True) for _ in range(3)]
        answers = [answer.exception() or answer.result() for answer in plain + streams]

    told = [answer for answer in answers if isinstance(answer, httpx.Response)]
    assert told
    for answer in told:
        assert '"type":"server_error"' in answer.text
        assert answer.status_code in (500, 503) or answer.text.endswith("data: [DONE]\n\n")
    with pytest.raises(EngineDead):
        server.handle.join(10)


def test_failed_load_is_raised_where_it_can_be_read(succ_dir: Path) -> None:
    """``spawn`` raises what is wrong with the model; nothing is left running."""

    def broken(_: ServeConfig, __: Report) -> LoadedEngine:
        raise CheckpointError("model.safetensors is truncated")

    with pytest.raises(CheckpointError, match="truncated"):
        spawn(ServeConfig.for_model(succ_dir), load=broken)


def test_loading_is_told_by_phase(serve: Serve, succ_dir: Path) -> None:
    """While the model loads /readyz tells how far it is, /healthz is well, and the API says when to come back."""
    reports: list[LoadProgress] = []
    go_on = False

    def slow(config: ServeConfig, report: Report) -> LoadedEngine:
        def watched(progress: LoadProgress) -> None:
            reports.append(progress)
            report(progress)

        wait_until(lambda: go_on, seconds=10)
        return load_engine(config, watched)

    server = serve(succ_dir, load=slow, wait=False)
    early = server.health.get("/readyz")
    refused = server.api.post("/v1/completions", json={"model": "succ", "prompt": "a"})
    go_on = True
    server.handle.wait_ready(10)

    assert early.status_code == 503
    assert early.json()["status"] == "loading"
    assert server.health.get("/healthz").status_code == 200
    assert refused.status_code == 503
    assert refused.json()["error"]["code"] == "loading"
    assert int(refused.headers["retry-after"]) >= 1
    assert reports
    assert server.health.get("/readyz").json()["status"] == "ready"
