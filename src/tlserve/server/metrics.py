"""What Prometheus may ask, from snapshots: a scrape never waits for the engine.

The engine does not know this file; it publishes ``EngineStats``, which are read here. One registry per server, so that several
servers can live in one process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from prometheus_client import CollectorRegistry, Counter, Gauge, Info, disable_created_metrics, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from tlserve.engine.messages import EngineStats
from tlserve.server.room import Room

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

KNOWN_ROUTES = frozenset(
    {
        "/healthz",
        "/v1/chat/completions",
        "/v1/completions",
        "/v1/embeddings",
        "/v1/models",
        "/v1/tokenize",
    }
)


def metrics_text(stats: EngineStats) -> str:
    """The engine's counters in Prometheus' text format, under the names that dashboards of this system know."""
    registry = CollectorRegistry()
    registry.register(_EngineCollector(lambda: stats))
    return generate_latest(registry).decode()


class Metrics:
    """Everything that one server exposes. Loop thread only."""

    def __init__(self, *, stats: Callable[[], EngineStats], version: str, model_id: str) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self._registry = CollectorRegistry()
        self._registry.register(_EngineCollector(stats))
        self._requests = Counter(
            "tlserve_requests",
            "Requests by route and by how they ended; each is counted once.",
            ["route", "outcome"],
            registry=self._registry,
        )
        self._ready = Gauge("tlserve_ready", "1 while /readyz answers 200.", registry=self._registry)
        self._draining = Gauge("tlserve_draining", "1 from the stop signal on.", registry=self._registry)
        Info("tlserve_build", "What runs here.", registry=self._registry).info({"version": version, "model": model_id})

    def request_ended(self, room: Room) -> None:
        """Count one request of the API."""
        route = room.path if room.path in KNOWN_ROUTES else "other"
        self._requests.labels(route, room.final_outcome()).inc()

    def text(self, *, is_ready: bool, is_draining: bool) -> bytes:
        """The whole exposition."""
        self._ready.set(is_ready)
        self._draining.set(is_draining)
        return generate_latest(self._registry)


class _EngineCollector(Collector):
    """Reads the engine's snapshot at each scrape."""

    def __init__(self, stats: Callable[[], EngineStats]) -> None:
        self._stats = stats

    def collect(self) -> Iterator[Metric]:
        stats = self._stats()
        blocks = GaugeMetricFamily("tl_engine_kv_blocks", "KV blocks by state.", labels=["state"])
        for state, count in _block_states(stats):
            blocks.add_metric([state], count)
        yield blocks
        yield GaugeMetricFamily("tl_engine_queue_depth", "Requests that wait for their first step.", stats.queue_depth)
        yield GaugeMetricFamily("tl_engine_active_sequences", "Sequences that are running.", stats.active_sequences)
        yield GaugeMetricFamily("tl_engine_batch_tokens", "Tokens in the last step.", stats.batch_tokens)
        yield GaugeMetricFamily(
            "tl_engine_prefix_cache_hit_ratio",
            "Prompt tokens taken from the prefix cache, as a part of all prompt tokens looked up.",
            stats.prefix_cache_hit_ratio,
        )
        yield CounterMetricFamily(
            "tl_engine_preemptions", "Sequences sent back to wait for blocks.", stats.preemptions_total
        )
        yield CounterMetricFamily(
            "tl_engine_kv_evictions", "Cached KV blocks given up for new ones.", stats.kv_evictions_total
        )
        yield CounterMetricFamily(
            "tlserve_drafted_tokens", "Tokens guessed by speculation.", stats.drafted_tokens_total
        )
        yield CounterMetricFamily(
            "tlserve_accepted_tokens", "Guessed tokens that turned out right.", stats.accepted_tokens_total
        )


def _block_states(stats: EngineStats) -> Iterable[tuple[str, int]]:
    return (
        ("free", stats.kv_blocks_free),
        ("cached", stats.kv_blocks_cached),
        ("used", stats.kv_blocks_used),
    )
