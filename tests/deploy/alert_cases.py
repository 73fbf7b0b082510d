"""What each alert should make of some minutes of series: when it fires, and a case close by in which it stays silent.

Series are in the notation of promtool, a value each 30 s: ``0+5x60`` is 0, 5, 10 and so on, sixty times.
"""

from __future__ import annotations

import attrs

Series = dict[str, str]


@attrs.frozen
class Case:
    """One alert, two histories.

    Attributes:
        alert: its name.
        after: how long after the beginning of the series it is looked at.
        fires: series with which it fires.
        silent: series with which it must not.
        why: what makes the silent case harmless.

    """

    alert: str
    after: str
    fires: Series
    silent: Series
    why: str


def requests(outcome: str, reason: str = "") -> str:
    """The counter of requests that ended in one way."""
    labels = f'route="/v1/chat/completions",outcome="{outcome}",reason="{reason}"'
    return f'tlserve_requests_total{{namespace="n",pod="a",{labels}}}'


def histogram(name: str, bound: str, within: int) -> Series:
    """A histogram to which a hundred values are added every 30 s, ``within`` of them up to the bound."""
    return {
        f'{name}_bucket{{namespace="n",pod="a",le="{bound}"}}': f"0+{within}x900",
        f'{name}_count{{namespace="n",pod="a"}}': "0+100x900",
    }


def pods(name: str, **values: str) -> Series:
    """One series for each pod."""
    return {f'{name}{{namespace="n",pod="{pod}",job="tlserve"}}': value for pod, value in values.items()}


def blocks(*, used: int, cached: int, free: int) -> Series:
    """The KV blocks of one pod."""
    states = {"used": used, "cached": cached, "free": free}
    return {f'tl_engine_kv_blocks{{namespace="n",pod="a",state="{k}"}}': f"{v}+0x60" for k, v in states.items()}


CASES = [
    Case(
        "TlserveNoReplicaReady",
        "3m",
        fires=pods("tlserve_ready", a="0+0x20", b="0+0x20"),
        silent=pods("tlserve_ready", a="1+0x20", b="0+0x20"),
        why="one of two is ready",
    ),
    Case(
        "TlserveNoReplicaReady",
        "3m",
        fires={},
        silent=pods("tlserve_ready", a="0+0x2 1+0x20"),
        why="it is ready in time, whereas no series at all is an outage too",
    ),
    Case(
        "TlserveTargetDown",
        "5m",
        fires=pods("up", a="0+0x20"),
        silent=pods("up", a="0+0x3 1+0x20"),
        why="it was away for a minute and a half",
    ),
    Case(
        "TlserveNotReady",
        "8m",
        fires={**pods("tlserve_ready", a="0+0x30"), **pods("tlserve_draining", a="0+0x30")},
        silent={**pods("tlserve_ready", a="0+0x30"), **pods("tlserve_draining", a="1+0x30")},
        why="it is on its way out",
    ),
    Case(
        "TlserveRestarting",
        "20m",
        fires=pods("process_start_time_seconds", a="100+0x8 200+0x8 300+0x8 400+0x20"),
        silent=pods("process_start_time_seconds", a="100+0x20 200+0x30"),
        why="once is no pattern",
    ),
    Case(
        "TlserveFailuresFast",
        "70m",
        fires={requests("finished"): "0+90x200", requests("failed"): "0+10x200"},
        silent={requests("finished"): "0+95x200", requests("failed"): "0+5x200"},
        why="a twentieth is the slow alert's business",
    ),
    Case(
        "TlserveFailuresFast",
        "70m",
        fires={requests("finished"): "0+90x200", requests("failed"): "0+10x200"},
        silent={requests("finished"): "0+90x200", requests("failed"): "0+10x110 1100+0x90"},
        why="it has stopped",
    ),
    Case(
        "TlserveFailuresSlow",
        "6h10m",
        fires={requests("finished"): "0+96x900", requests("failed"): "0+4x900"},
        silent={requests("finished"): "0+96x900", requests("rejected", "rate_limit_exceeded"): "0+4x900"},
        why="a refusal is no failure",
    ),
    Case(
        "TlserveFirstTokenSlow",
        "25m",
        fires=histogram("tlserve_time_to_first_token_seconds", "2.5", 90),
        silent=histogram("tlserve_time_to_first_token_seconds", "2.5", 96),
        why="one in twenty-five may be slow",
    ),
    Case(
        "TlserveTokensSlow",
        "25m",
        fires=histogram("tlserve_inter_token_latency_seconds", "0.3", 90),
        silent=histogram("tlserve_inter_token_latency_seconds", "0.3", 96),
        why="one in twenty-five may be slow",
    ),
    Case(
        "TlserveQueueBacklog",
        "15m",
        fires=histogram("tlserve_queue_wait_seconds", "5.0", 90),
        silent=histogram("tlserve_queue_wait_seconds", "5.0", 96),
        why="one in twenty-five may wait",
    ),
    Case(
        "TlserveRefusing",
        "10m",
        fires={requests("finished"): "0+95x40", requests("rejected", "rate_limit_exceeded"): "0+5x40"},
        silent={requests("finished"): "0+95x40", requests("rejected", "invalid_request"): "0+5x40"},
        why="clients send bad requests",
    ),
    Case(
        "TlserveConnectionsRefused",
        "15m",
        fires=pods("tlserve_http_connections_refused_total", a="0+2x60"),
        silent=pods("tlserve_http_connections_refused_total", a="0+2x4 8+0x56"),
        why="it was over in two minutes",
    ),
    Case(
        "TlserveSaturated",
        "20m",
        fires=pods("tlserve_saturation_ratio", a="0.95+0x60", b="0.93+0x60"),
        silent=pods("tlserve_saturation_ratio", a="1+0x60", b="0.5+0x60"),
        why="the other one has room",
    ),
    Case(
        "TlserveKvCacheFull",
        "10m",
        fires=blocks(used=97, cached=2, free=1),
        silent=blocks(used=50, cached=50, free=0),
        why="cached blocks can be given up",
    ),
    Case(
        "TlservePreempting",
        "20m",
        fires=pods("tl_engine_preemptions_total", a="0+6x60"),
        silent=pods("tl_engine_preemptions_total", a="0+1x60"),
        why="now and then is what preemption is for",
    ),
    Case(
        "TlserveDrainSlow",
        "2m30s",
        fires=pods("tlserve_draining", a="0 0 1 1 stale"),
        silent=pods("tlserve_draining", a="0 0 1 stale"),
        why="it was gone by the next scrape",
    ),
]
