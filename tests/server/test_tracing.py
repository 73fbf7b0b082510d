"""Traces over OTLP, as a collector receives them; and what they may never cost."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import httpx
import pytest

from collector import Collector, running_collector
from log_lines import captured_log
from processes import Launch
from support import Gate, Serve, Server, wait_until

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
TRACEPARENT = f"00-{TRACE}-{SPAN}-01"
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
INTERNAL, SERVER, ERROR = 1, 2, 2
SECRET = "the launch code is G"


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    """A collector that the servers of this process send to."""
    with running_collector() as collector:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.endpoint)
        monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "20")
        yield collector


@pytest.fixture
def server(serve: Serve, succ_dir: Path, collector: Collector) -> Server:
    """A server that traces, with a token every 5 ms."""
    del collector  # It is named in the environment before the server starts.
    return serve(succ_dir, tracing="otlp", step_delay=0.005)


def body(server: Server, **fields: object) -> dict[str, object]:
    """A short chat."""
    messages = [{"role": "user", "content": SECRET}]
    return {"model": server.model, "messages": messages, "max_tokens": 4, "temperature": 0, **fields}


def test_a_request_is_a_tree_under_the_clients_span(server: Server, collector: Collector) -> None:
    """Its span continues the client's trace; inside of it the model's, inside of that the phases, one after the other."""
    headers = {"traceparent": TRACEPARENT, "tracestate": "vendor=1"}
    server.api.post(CHAT, json=body(server, stream=True), headers=headers)

    wait_until(lambda: len(collector.spans) == 6)
    request, model = collector.named(f"POST {CHAT}"), collector.named("chat succ")
    phases = [collector.named(name) for name in ("prepare", "queue", "prefill", "decode")]
    assert {span.trace_id for span in collector.spans} == {TRACE}
    assert (request.kind, request.parent_id) == (SERVER, SPAN)
    assert (model.kind, model.parent_id) == (INTERNAL, request.span_id)
    assert {phase.parent_id for phase in phases} == {model.span_id}
    assert phases[0].begin == model.begin == request.begin
    for before, after in pairwise(phases):
        assert before.begin <= before.end == after.begin
    assert phases[-1].end <= model.end == request.end
    assert phases[-1].end - phases[-1].begin > 5e6
    assert abs(request.end / 1e9 - time.time()) < 30


def test_a_span_says_what_was_asked_and_what_came(server: Server, collector: Collector) -> None:
    """In the words of OpenTelemetry's conventions for HTTP and for generative AI."""
    answer = server.api.post(
        CHAT, json=body(server, seed=7, top_p=0.5, stop=[SECRET]), headers={"X-Request-Id": "my-request"}
    ).json()

    wait_until(lambda: len(collector.spans) == 6)
    request, model = collector.named(f"POST {CHAT}"), collector.named("chat succ")
    assert request.attributes == {
        "http.request.method": "POST",
        "http.route": CHAT,
        "http.response.status_code": 200,
        "url.path": CHAT,
        "tlserve.request_id": "my-request",
        "tlserve.outcome": "length",
    }
    assert model.attributes.pop("gen_ai.response.time_to_first_chunk") > 0.004
    assert model.attributes == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "tlserve",
        "gen_ai.output.type": "text",
        "gen_ai.request.model": "succ",
        "gen_ai.request.max_tokens": 4,
        "gen_ai.request.temperature": 0.0,
        "gen_ai.request.top_p": 0.5,
        "gen_ai.request.frequency_penalty": 0.0,
        "gen_ai.request.presence_penalty": 0.0,
        "gen_ai.request.seed": 7,
        "gen_ai.request.stream": False,
        "gen_ai.response.id": answer["id"],
        "gen_ai.response.model": "succ",
        "gen_ai.response.finish_reasons": ["length"],
        "gen_ai.usage.input_tokens": len(SECRET),
        "gen_ai.usage.output_tokens": 4,
        "gen_ai.usage.cache_read.input_tokens": 0,
        "tlserve.outcome": "length",
    }
    assert request.service["service.name"] == "tlserve"
    assert request.service["service.version"]
    assert request.status == model.status == 0


def test_nothing_that_was_said_is_sent(server: Server, collector: Collector) -> None:
    """No prompt, no stop string, no answer leaves in a span."""
    said = server.api.post(CHAT, json=body(server, stop=[SECRET], user=SECRET)).json()["choices"][0]["message"]
    server.api.post("/v1/embeddings", json={"model": server.model, "input": [SECRET]})
    server.api.post(CHAT, json=body(server, max_tokens=0))

    wait_until(lambda: len(collector.spans) == 6 + 2 + 1)
    sent = b"".join(collector.bodies)
    assert b"embeddings succ" in sent
    for words in (SECRET, said["content"]):
        assert words.encode() not in sent


def test_ends_that_are_no_answers(serve: Serve, succ_dir: Path, collector: Collector) -> None:
    """A refusal names its reason and is no error of ours; a failure is one; a client that leaves is neither."""
    gate = Gate()
    server = serve(succ_dir, load=gate, tracing="otlp", step_delay=0.002)
    server.api.post(CHAT, json=body(server, max_tokens=0))
    wait_until(lambda: len(collector.spans) == 1)
    refused = collector.named(f"POST {CHAT}")
    assert (refused.status, refused.attributes["error.type"]) == (0, "invalid_value")
    assert refused.attributes["http.response.status_code"] == 400

    gate.is_broken = True
    server.complete("a")
    gate.is_broken = False
    wait_until(lambda: len(collector.spans) > 1 and collector.spans[-1].kind == SERVER)
    failed = collector.named(f"POST {COMPLETIONS}")
    assert (failed.status, failed.attributes["error.type"]) == (ERROR, "internal_error")
    assert collector.named("text_completion succ").status == ERROR

    collector.bodies.clear()
    with httpx.stream(
        "POST", f"{server.base_url}/chat/completions", json=body(server, stream=True, max_tokens=4000)
    ) as r:
        next(r.iter_lines())
    wait_until(lambda: any(span.kind == SERVER for span in collector.spans))
    left = collector.named(f"POST {CHAT}")
    assert (left.status, left.attributes["error.type"]) == (0, "disconnect")
    assert left.attributes["tlserve.outcome"] == "aborted"


def test_a_phase_that_was_not_reached_has_no_span(serve: Serve, succ_dir: Path, collector: Collector) -> None:
    """A request that waited in vain has spent all of its time in the queue."""
    gate = Gate()
    server = serve(succ_dir, load=gate, tracing="otlp", queue_deadline_ms=100)
    gate.is_open.clear()
    try:
        assert server.api.post(CHAT, json=body(server)).status_code == 503
    finally:
        gate.is_open.set()

    wait_until(lambda: len(collector.spans) == 4)
    assert {span.name for span in collector.spans} == {"prepare", "queue", "chat succ", f"POST {CHAT}"}
    queue = collector.named("queue")
    assert queue.end - queue.begin >= 90e6
    assert queue.end == collector.named(f"POST {CHAT}").end


@pytest.mark.parametrize(
    "headers",
    [
        [],
        [("traceparent", "00-xyz-1-01")],
        [("traceparent", TRACEPARENT), ("traceparent", TRACEPARENT)],
        [("traceparent", f"00-{'0' * 32}-{SPAN}-01")],
        [("traceparent", TRACEPARENT + "-" + "9" * 3000)],
        [("tracestate", "vendor=1")],
    ],
    ids=["none", "malformed", "two", "zero", "long", "state alone"],
)
def test_a_trace_begins_where_no_good_one_came(
    server: Server, collector: Collector, headers: list[tuple[str, str]]
) -> None:
    """Missing or bad context is no reason to refuse anything; the request is the root of a trace of its own."""
    assert server.api.get("/v1/models", headers=headers).status_code == 200

    wait_until(lambda: len(collector.spans) == 1)
    root = collector.named("GET /v1/models")
    assert root.parent_id == ""
    assert root.trace_id not in (TRACE, "0" * 32)


def test_a_client_that_does_not_sample_is_obeyed(server: Server, collector: Collector) -> None:
    """The flag of its traceparent counts; the next request is traced again."""
    with captured_log() as log:
        server.api.get("/v1/models", headers={"traceparent": f"00-{TRACE}-{SPAN}-00", "X-Request-Id": "unsampled"})
        server.api.get("/v1/models/other")
        wait_until(lambda: len(collector.spans) == 1)
        assert collector.spans[0].attributes["http.response.status_code"] == 404
        assert log.request("unsampled")["trace_id"] == TRACE


def test_paths_and_methods_of_clients_make_no_names(server: Server, collector: Collector) -> None:
    """Span names are few: an unknown path has its method alone, an unknown method is HTTP. Probes leave no spans."""
    server.api.get("/healthz")
    server.api.get("/nothing/here")
    server.api.request("BREW", "/v1/coffee")
    server.api.get(f"/v1/models/{server.model}")

    wait_until(lambda: len(collector.spans) == 3)
    assert [span.name for span in collector.spans] == ["GET", "HTTP", "GET /v1/models"]


def test_the_environment_names_the_service(
    serve: Serve, succ_dir: Path, collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    """OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES are the operator's."""
    monkeypatch.setenv("OTEL_SERVICE_NAME", "chat-backend")
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "k8s.pod.name=tlserve-0")
    serve(succ_dir, tracing="otlp").api.get("/v1/models")

    wait_until(lambda: len(collector.spans) == 1)
    service = collector.spans[0].service
    assert (service["service.name"], service["k8s.pod.name"]) == ("chat-backend", "tlserve-0")


def test_the_last_spans_are_sent_at_the_stop(launch: Launch, succ_dir: Path) -> None:
    """A batch that would wait for half a minute goes out before the process ends."""
    with running_collector() as collector:
        variables = {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.endpoint, "OTEL_BSP_SCHEDULE_DELAY": "30000"}
        server = launch(succ_dir, env=variables, tracing="otlp")
        server.wait_ready()
        httpx.get(f"{server.api}/v1/models", headers={"X-Request-Id": "the-last"})

        server.process.stop()

        assert server.process.exit_code() == 0
        assert collector.named("GET /v1/models").attributes["tlserve.request_id"] == "the-last"


def test_a_collector_that_hangs_holds_up_nobody(launch: Launch, succ_dir: Path) -> None:
    """Requests are answered as ever, and the process stops a moment later; the log says that spans were lost."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        endpoint = f"http://127.0.0.1:{silent.getsockname()[1]}"
        variables = {"OTEL_EXPORTER_OTLP_ENDPOINT": endpoint, "OTEL_BSP_SCHEDULE_DELAY": "10"}
        server = launch(succ_dir, env=variables, tracing="otlp")
        server.wait_ready()
        asked = time.monotonic()
        for _ in range(20):
            assert httpx.get(f"{server.api}/v1/models").status_code == 200
        assert time.monotonic() - asked < 5

        server.process.stop()

        stopped = time.monotonic()
        assert server.process.wait_for("spans_lost")
        assert server.process.exit_code() == 0
        assert time.monotonic() - stopped < 4


RUN = "import sys; {before}; from tlserve.cli import main; code = main(sys.argv[1:]); {after}; sys.exit(code)"


def run_main(config: Path, *, before: str = "pass", after: str = "pass") -> subprocess.CompletedProcess[str]:
    """``tlserve --config`` in a process that is prepared and looked at."""
    code = RUN.format(before=before, after=after)
    return subprocess.run(
        [sys.executable, "-c", code, "--config", config], capture_output=True, text=True, timeout=60, check=False
    )


def test_without_the_extra_asking_for_traces_is_one_clear_line(succ_dir: Path, tmp_path: Path) -> None:
    """Exit code 2, and what to install."""
    config = tmp_path / "runtime.toml"
    config.write_text(f'[engine]\nmodel_dir = "{succ_dir}"\ntracing = "otlp"\nhttp_listen = "127.0.0.1:0"\n')

    result = run_main(config, before="sys.modules['opentelemetry'] = None")

    assert result.returncode == 2
    (line,) = result.stderr.splitlines()
    assert line.startswith("tlserve: engine.tracing = 'otlp' needs opentelemetry")
    assert "pip install 'tlserve[otel]'" in line


def test_nothing_of_it_is_loaded_when_it_is_off(tmp_path: Path) -> None:
    """A server without traces does not import OpenTelemetry (here: one that stops because its model is not there)."""
    config = tmp_path / "runtime.toml"
    config.write_text(
        f'[engine]\nmodel_dir = "{tmp_path}/none"\nhttp_listen = "127.0.0.1:0"\nhealth_listen = "127.0.0.1:0"\n'
    )

    result = run_main(config, after="print([name for name in sys.modules if 'opentelemetry' in name])")

    assert result.returncode == 1
    assert result.stdout.splitlines()[-1] == "[]"
