"""Cases about what operators hold on to: request ids, probes, metrics. All but the ids are tlserve's own and may be skipped."""

from __future__ import annotations

from tlserve.conform.case import Case, Skipped, expect, member, shown
from tlserve.conform.reading import error_of, ok
from tlserve.conform.refusals import MESSAGES
from tlserve.conform.target import Answer, Target

METRICS = (
    "tl_engine_kv_blocks",
    "tl_engine_queue_depth",
    "tl_engine_active_sequences",
    "tl_engine_batch_tokens",
    "tl_engine_prefix_cache_hit_ratio",
    "tl_engine_preemptions_total",
    "tl_engine_kv_evictions_total",
)


def _request_id(target: Target) -> str:
    made = target.get("models").headers.get("x-request-id")
    expect(made, "no X-Request-Id")
    for path in ("models", "no/such/route"):
        echoed = target.get(path, X_Request_Id="conform-1").headers.get("x-request-id")
        expect(echoed == "conform-1", f"{path}: the client's X-Request-Id became {echoed!r}")
    return f"own ids are kept, made ones look like {shown(made, 40)}"


def _our_headers(target: Target) -> str:
    owner = member(ok(target.get(target.model_path)), "owned_by")
    if owner != "tlserve":
        raise Skipped(f"headers of tlserve; this server says {shown(owner, 30)}")
    body = {"messages": MESSAGES, "max_tokens": 1}
    error_of(target.post("chat/completions", body, X_TL_Priority="101"), 400, "a priority of 101")
    ok(target.post("chat/completions", body, X_TL_Priority="-100"))
    error = error_of(target.post("chat/completions", body, X_TL_KV_Handle="x"), 404, "a KV handle")
    expect(error["code"] == "kv_handle_not_found", f"code is {shown(error['code'])}")
    return "priority and KV handle"


def _probes(target: Target) -> str:
    for path in ("healthz", "readyz"):
        answer = _probe(target, path)
        expect(answer.status == 200, f"/{path}: status {answer.status}: {shown(answer.text)}")
    return "alive and ready"


def _metrics(target: Target) -> str:
    answer = _probe(target, "metrics")
    expect(answer.status == 200, f"status {answer.status}: {shown(answer.text)}")
    typed = {line.split()[2] for line in answer.text.splitlines() if line.startswith("# TYPE ") and line.count(" ") > 2}
    missing = [name for name in METRICS if name not in typed]
    expect(not missing, f"no {', '.join(missing)}")
    return f"{len(typed)} metrics, these {len(METRICS)} among them"


def _probe(target: Target, path: str) -> Answer:
    answer = target.probe(path)
    if answer is None:
        raise Skipped("give --health-url; probes and metrics are not OpenAI's")
    return answer


CASES = (
    Case("headers.request_id", _request_id),
    Case("headers.tlserve", _our_headers),
    Case("health.probes", _probes),
    Case("health.metrics", _metrics),
)
