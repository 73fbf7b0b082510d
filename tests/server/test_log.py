"""The request log: one line for every request however it ends, with what it cost, and no word of what was said."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from log_lines import LogLines, captured_log
from support import Gate, Serve, Server, wait_until
from tlserve.server.log import LOGGER, TRACING_LOGGER, configure_logging

SECRET = "the launch code is G"


@pytest.fixture
def log() -> Iterator[LogLines]:
    """The server's log."""
    with captured_log() as lines:
        yield lines


def stream(server: Server, request_id: str = "a-stream", **fields: object) -> httpx.Response:
    """A whole chat stream under a known id."""
    body = {"model": server.model, "messages": [{"role": "user", "content": "a"}], "stream": True, **fields}
    return server.api.post("/v1/chat/completions", json=body, headers={"X-Request-Id": request_id})


def test_a_generation_tells_what_it_cost(serve: Serve, succ_dir: Path, log: LogLines) -> None:
    """Ids of the request and of the answer, counts, the finish, and phases in milliseconds that add up to the whole."""
    server = serve(succ_dir, step_delay=0.01)

    answer = stream(server, max_tokens=5, temperature=0)

    wait_until(lambda: len(log.of("request")) == 1)
    line = log.request("a-stream")
    assert (line["method"], line["path"], line["status"]) == ("POST", "/v1/chat/completions", 200)
    assert line["id"] == json.loads(answer.text.split("\n")[0].removeprefix("data: "))["id"]
    assert (line["outcome"], line["finish"], line["stream"]) == ("length", ["length"], True)
    assert (line["prompt_tokens"], line["completion_tokens"], line["cached_tokens"]) == (1, 5, 0)
    assert line["prefill_ms"] > 9
    assert line["decode_ms"] > 20
    phases = [line[f"{phase}_ms"] for phase in ("prepare", "queue", "prefill", "decode")]
    assert all(phase >= 0 for phase in phases)
    assert sum(phases[:3]) == pytest.approx(line["first_token_ms"], abs=0.1)
    assert sum(phases) <= line["duration_ms"] + 0.1
    assert line["ms_per_token"] == pytest.approx(line["decode_ms"] / 4, abs=0.1)


def test_what_never_began_has_no_phases_that_it_did_not_reach(serve: Serve, succ_dir: Path, log: LogLines) -> None:
    """A refused request has its reason and its status; a request that timed out in the queue has no prefill."""
    gate = Gate()
    server = serve(succ_dir, load=gate, queue_deadline_ms=100)
    server.chat("a", max_tokens=0)
    gate.is_open.clear()
    try:
        server.chat("a", max_tokens=1)
    finally:
        gate.is_open.set()

    wait_until(lambda: len(log.of("request")) == 2)
    refused, waited = log.of("request")
    assert (refused["outcome"], refused["reason"], refused["status"]) == ("rejected", "invalid_value", 400)
    assert not {"queue_ms", "prefill_ms", "finish"} & refused.keys()
    assert (waited["outcome"], waited["reason"], waited["status"]) == ("failed", "no_capacity", 503)
    assert waited["finish"] == [None]
    assert not {"queue_ms", "prefill_ms", "decode_ms", "first_token_ms"} & waited.keys()


def test_nothing_that_was_said_is_logged(serve: Serve, succ_dir: Path) -> None:
    """No prompt, no answer, no stop string, at the finest level, whether it ends well, badly or in an error of ours."""
    gate = Gate()
    with captured_log("hypercorn", "quart", "trio", "asyncio", level=logging.DEBUG) as log:
        server = serve(succ_dir, load=gate)
        answered = server.chat(SECRET, max_tokens=6, stop=[SECRET], user=SECRET, temperature=0)
        said = answered.json()["choices"][0]["message"]["content"]
        stream(server, messages=[{"role": "user", "content": SECRET}], max_tokens=2)
        server.complete(SECRET, max_tokens=0)
        server.complete(SECRET, stop=[SECRET] * 9)
        server.api.post("/v1/completions", content=b'{"prompt": "' + SECRET.encode() + b'\xff"}')
        server.api.post("/v1/embeddings", json={"model": server.model, "input": [SECRET]})
        server.api.post("/v1/tokenize", json={"model": server.model, "text": SECRET})
        server.api.post(f"/v1/completions?prompt={SECRET}", json={"model": SECRET, "prompt": SECRET})
        lone_surrogate = json.dumps({"model": server.model, "prompt": SECRET + "\ud800", "max_tokens": 1})
        server.api.post("/v1/completions", content=lone_surrogate)
        gate.is_broken = True
        assert server.chat(SECRET, max_tokens=1).status_code == 500
        gate.is_broken = False
        with httpx.stream(
            "POST",
            f"{server.base_url}/completions",
            json={"model": server.model, "prompt": SECRET, "stream": True, "max_tokens": 4000},
        ) as response:
            next(response.iter_lines())
        wait_until(lambda: any(line["outcome"] == "aborted" for line in log.of("request")))

    assert said == "HIJKLM"
    assert len(log.of("request")) == 11
    for words in (SECRET, "launch", said):
        assert words not in log.text


def test_an_error_is_told_without_the_text_that_it_holds() -> None:
    """The repr of a UnicodeError holds everything that was to be encoded; a line has its type and message."""
    with captured_log() as log:
        try:
            f"{SECRET}\ud800".encode()
        except UnicodeError:
            LOGGER.exception("unexpected_error")

    (line,) = log.of("unexpected_error")
    assert line["error"].startswith("UnicodeEncodeError: 'utf-8' codec can't encode")
    assert "test_log.py" in line["traceback"]
    assert SECRET not in log.text.replace(__file__, "")


def test_troubles_of_tracing_are_lines_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """What OpenTelemetry has to say is JSON like everything else, under one event name."""
    for logger in (LOGGER, TRACING_LOGGER):
        for name in ("handlers", "level", "propagate"):
            monkeypatch.setattr(logger, name, getattr(logger, name))
    stream = io.StringIO()
    configure_logging(stream)

    logging.getLogger("opentelemetry.exporter.otlp").warning("no answer from %s", "collector")

    line = json.loads(stream.getvalue())
    assert (line["event"], line["level"], line["message"]) == ("tracing", "warning", "no answer from collector")
