"""The engine's counters, and how full it is, from its last snapshot."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from tlserve.config import ServeConfig
from tlserve.engine.messages import EngineStats


def saturation(stats: EngineStats, config: ServeConfig) -> float:
    """0.0 to 1.0: the greatest of the shares of queue places, sequence slots and KV blocks that are taken.

    Cached blocks are free for whoever needs them.
    """
    shares = (
        stats.queue_depth / config.queue_capacity,
        stats.active_sequences / config.engine.max_batch,
        stats.kv_used_share,
    )
    return min(1.0, max(shares))


class EngineMetrics(Collector):
    """Reads the engine's snapshot at each scrape."""

    def __init__(self, stats: Callable[[], EngineStats]) -> None:
        self._stats = stats

    def collect(self) -> Iterator[Metric]:
        """One family after the other."""
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
            "tlserve_prefix_cache_queries", "Prompt tokens looked up in the prefix cache.", stats.prefix_cache_queries
        )
        yield CounterMetricFamily(
            "tlserve_prefix_cache_hits", "Those of them that were found there.", stats.prefix_cache_hits
        )
        yield CounterMetricFamily("tlserve_steps", "Forward passes begun.", stats.steps_total)
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
