"""The names under which endpoint pickers, scalers and dashboards made for vLLM look for a server's load and latencies."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from tlserve.engine.messages import EngineStats
from tlserve.server.request_metrics import RequestMetrics


class VllmMetrics(Collector):
    """The same numbers once more, under other names; each has the model's name as a label."""

    def __init__(self, stats: Callable[[], EngineStats], requests: RequestMetrics, model: str) -> None:
        self._stats = stats
        self._requests = requests
        self._model = model

    def collect(self) -> Iterator[Metric]:
        """Gauges of now; counters and histograms since the start."""
        stats = self._stats()
        yield from self._gauges(stats)
        yield from self._counters(stats)
        yield from self._histograms()

    def _gauges(self, stats: EngineStats) -> Iterator[Metric]:
        for name, documentation, value in (
            ("vllm:num_requests_running", "Sequences that are running.", stats.active_sequences),
            ("vllm:num_requests_waiting", "Requests that wait.", stats.queue_depth),
            ("vllm:kv_cache_usage_perc", "The share of KV blocks in use, 0 to 1.", stats.kv_used_share),
        ):
            gauge = GaugeMetricFamily(name, documentation, labels=["model_name"])
            gauge.add_metric([self._model], value)
            yield gauge

    def _counters(self, stats: EngineStats) -> Iterator[Metric]:
        for name, documentation, total in (
            ("vllm:prompt_tokens", "Tokens of prompts.", self._requests.prompt_tokens_total),
            ("vllm:generation_tokens", "Tokens of answers.", self._requests.generated_tokens_total),
            ("vllm:num_preemptions", "Sequences sent back to wait.", stats.preemptions_total),
            ("vllm:prefix_cache_queries", "Prompt tokens looked up in the prefix cache.", stats.prefix_cache_queries),
            ("vllm:prefix_cache_hits", "Those of them that were found.", stats.prefix_cache_hits),
        ):
            counter = CounterMetricFamily(name, documentation, labels=["model_name"])
            counter.add_metric([self._model], total)
            yield counter

    def _histograms(self) -> Iterator[Metric]:
        requests = self._requests
        for name, distribution in (
            ("vllm:time_to_first_token_seconds", requests.first_token_wait),
            ("vllm:inter_token_latency_seconds", requests.gap),
            ("vllm:request_time_per_output_token_seconds", requests.per_token),
            ("vllm:request_queue_time_seconds", requests.queue_wait),
            ("vllm:e2e_request_latency_seconds", requests.duration),
        ):
            yield distribution.family(name, model_name=self._model)
