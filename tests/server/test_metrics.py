"""What Prometheus reads: each request counted once, by its end; how long and how large, in buckets."""

from __future__ import annotations

import math
import subprocess
from collections.abc import Iterable
from pathlib import Path

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from ops_tools import required_tool
from support import Serve, Server, wait_until
from tlserve.server.distribution import LATENCIES_S, TOKENS, Distribution


def samples(server: Server) -> dict[tuple[str, tuple[str, ...]], float]:
    """Every sample of a scrape by name and label values."""
    families = text_string_to_metric_families(server.health.get("/metrics").text)
    return {(s.name, tuple(s.labels.values())): s.value for family in families for s in family.samples}


def test_every_end_is_counted_once(serve: Serve, succ_dir: Path) -> None:
    """Answered, cut, refused, unknown and left: the outcomes add up to what was sent, and say why."""
    server = serve(succ_dir, step_delay=0.002)
    server.chat("a", max_tokens=3)
    server.chat("a", max_tokens=50, stop=["d"], temperature=0)
    server.chat("a", max_tokens=0)
    server.chat("a", n=2)
    server.api.get("/v1/nothing")
    body = {"model": "succ", "messages": [{"role": "user", "content": "a"}], "stream": True, "max_tokens": 4000}
    with httpx.stream("POST", f"{server.base_url}/chat/completions", json=body) as response:
        next(response.iter_lines())

    def counted() -> dict[tuple[str, ...], float]:
        return {labels: value for (name, labels), value in samples(server).items() if name == "tlserve_requests_total"}

    wait_until(lambda: sum(counted().values()) == 6)
    by_end = {tuple(sorted(labels)): value for labels, value in counted().items()}
    chat = "/v1/chat/completions"
    assert by_end == {
        tuple(sorted(("length", "", chat))): 1,
        tuple(sorted(("finished", "", chat))): 1,
        tuple(sorted(("rejected", "invalid_value", chat))): 1,
        tuple(sorted(("rejected", "unsupported_parameter", chat))): 1,
        tuple(sorted(("rejected", "unknown_url", "other"))): 1,
        tuple(sorted(("aborted", "disconnect", chat))): 1,
    }


def test_histograms_tell_of_what_was_started(serve: Serve, succ_dir: Path) -> None:
    """Two answers of five tokens: two first tokens, eight gaps, two means, ten tokens written."""
    server = serve(succ_dir)
    for _ in range(2):
        server.chat("ab", max_tokens=5, temperature=0)
    wait_until(lambda: server.metric("tlserve_request_duration_seconds_count") == 2)
    seen = samples(server)
    counts = {name: value for (name, labels), value in seen.items() if name.endswith("_count") and not labels}
    assert counts == {
        "tlserve_queue_wait_seconds_count": 2,
        "tlserve_time_to_first_token_seconds_count": 2,
        "tlserve_inter_token_latency_seconds_count": 8,
        "tlserve_time_per_output_token_seconds_count": 2,
        "tlserve_request_duration_seconds_count": 2,
        "tlserve_prompt_tokens_count": 2,
        "tlserve_output_tokens_count": 2,
    }
    assert seen["tlserve_prompt_tokens_sum", ()] == 4
    assert seen["tlserve_output_tokens_sum", ()] == 10
    waited, first = (seen[f"tlserve_{name}_seconds_sum", ()] for name in ("queue_wait", "time_to_first_token"))
    assert 0 < waited <= first <= seen["tlserve_request_duration_seconds_sum", ()]


def test_a_list_of_prompts_is_one_request(serve: Serve, succ_dir: Path) -> None:
    """It waits once and has one first token, however many answers it has; gaps are within an answer, never between two."""
    server = serve(succ_dir)
    server.complete(["ab", "cd", "ef"], max_tokens=4)
    wait_until(lambda: server.metric("tlserve_request_duration_seconds_count") == 1)
    assert server.metric("tlserve_queue_wait_seconds_count") == 1
    assert server.metric("tlserve_time_to_first_token_seconds_count") == 1
    assert server.metric("tlserve_inter_token_latency_seconds_count") == 9
    assert server.metric("tlserve_prompt_tokens_sum") == 6
    assert server.metric("tlserve_output_tokens_sum") == 12


def test_saturation_is_the_fullest_of_three(serve: Serve, succ_dir: Path) -> None:
    """One of two sequence slots taken is half full; idle is empty."""
    server = serve(succ_dir, engine={"max_batch": 2}, step_delay=0.005)
    assert server.metric("tlserve_saturation_ratio") == 0
    body = {"model": "succ", "messages": [{"role": "user", "content": "a"}], "stream": True, "max_tokens": 2000}
    with httpx.stream("POST", f"{server.base_url}/chat/completions", json=body) as response:
        next(response.iter_lines())
        assert server.metric("tlserve_saturation_ratio") == 0.5
    wait_until(lambda: server.metric("tlserve_saturation_ratio") == 0)


def test_names_that_vllms_tools_know(serve: Serve, succ_dir: Path) -> None:
    """Behind a switch, with the model's name, and on the API port too; without it that port has no metrics."""
    server = serve(succ_dir, metrics_compat="vllm")
    server.chat("abc", max_tokens=2)
    text = server.api.get("/metrics").text
    assert 'vllm:num_requests_running{model_name="succ"} 0.0' in text
    assert 'vllm:prompt_tokens_total{model_name="succ"} 3.0' in text
    assert 'vllm:generation_tokens_total{model_name="succ"} 2.0' in text
    plain = serve(succ_dir)
    assert "vllm:" not in plain.health.get("/metrics").text
    assert plain.api.get("/metrics").status_code == 404


def test_the_latencies_that_vllms_dashboards_show(serve: Serve, succ_dir: Path) -> None:
    """First token, gaps, queue, mean per token and whole requests, under both names with the same numbers."""
    server = serve(succ_dir, metrics_compat="vllm")
    server.chat("abc", max_tokens=4, temperature=0)
    wait_until(lambda: server.metric("tlserve_request_duration_seconds_count") == 1)
    seen = samples(server)
    for theirs, ours in {
        "time_to_first_token": "time_to_first_token",
        "inter_token_latency": "inter_token_latency",
        "request_time_per_output_token": "time_per_output_token",
        "request_queue_time": "queue_wait",
        "e2e_request_latency": "request_duration",
    }.items():
        for part in ("sum", "count"):
            assert seen[f"vllm:{theirs}_seconds_{part}", ("succ",)] == seen[f"tlserve_{ours}_seconds_{part}", ()] > 0


def test_an_answer_is_measured_while_it_runs(serve: Serve, succ_dir: Path) -> None:
    """Its wait, its first token, its gaps and its tokens do not come minutes later, when it ends."""
    server = serve(succ_dir, step_delay=0.002)
    body = {"model": "succ", "prompt": "abc", "stream": True, "max_tokens": 4000}
    with httpx.stream("POST", f"{server.base_url}/completions", json=body) as response:
        lines = response.iter_lines()
        for _ in range(10):
            next(lines)
        assert server.metric("tlserve_queue_wait_seconds_count") == 1
        assert server.metric("tlserve_time_to_first_token_seconds_count") == 1
        assert server.metric("tlserve_prompt_tokens_sum") == 3
        assert server.metric("tlserve_inter_token_latency_seconds_count") >= 3
        assert server.metric('tlserve_tokens_total{kind="generated"}') >= 4
        assert server.metric("tlserve_request_duration_seconds_count") == 0


def test_tokens_are_totalled_by_kind(serve: Serve, succ_dir: Path) -> None:
    """Of prompts, of answers, and of what was embedded."""
    server = serve(succ_dir)
    server.chat("abc", max_tokens=2)
    server.api.post("/v1/embeddings", json={"model": "succ", "input": ["abcde", "f"]})
    totals = {kind: server.metric(f'tlserve_tokens_total{{kind="{kind}"}}') for kind in ("prompt", "generated")}
    assert totals == {"prompt": 3, "generated": 2}
    assert server.metric('tlserve_tokens_total{kind="embedded"}') == 6


def test_the_prefix_cache_is_counted_in_tokens(serve: Serve, succ_dir: Path) -> None:
    """Tokens looked up and tokens found, so that a ratio can be had over any stretch of time."""
    server = serve(succ_dir, engine={"block_size": 4})
    for _ in range(2):
        server.complete("abcdefghi", max_tokens=1)
    assert server.metric("tlserve_prefix_cache_queries_total") == 18
    assert server.metric("tlserve_prefix_cache_hits_total") == 8


@pytest.mark.ops
def test_prometheus_own_linter_is_content(serve: Serve, succ_dir: Path) -> None:
    """Names, units, help texts and types as Prometheus wants them, on a server that has every series."""
    promtool = required_tool("promtool", package="prometheus")
    server = serve(succ_dir)
    server.chat("a", max_tokens=2)
    server.chat("a", max_tokens=0)
    text = server.health.get("/metrics").text
    check = subprocess.run([promtool, "check", "metrics"], input=text, capture_output=True, text=True, check=False)
    assert (check.returncode, check.stdout, check.stderr) == (0, "", "")


@given(values=st.lists(st.floats(0, 1e6)), bounds=st.sampled_from([LATENCIES_S, TOKENS]))
def test_buckets_count_what_is_not_above_them(values: list[float], bounds: Iterable[float]) -> None:
    """As Prometheus defines them: cumulative, upper bounds included, the last one open."""
    distribution = Distribution("x", "y", tuple(bounds))
    for value in values:
        distribution.add(value)
    family = distribution.family()
    for sample in family.samples:
        if sample.name == "x_bucket":
            assert sample.value == sum(value <= float(sample.labels["le"]) for value in values)
    assert math.isclose(distribution.sum, sum(values), rel_tol=1e-9)
