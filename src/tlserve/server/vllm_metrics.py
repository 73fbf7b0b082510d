"""The names under which endpoint pickers and scalers made for vLLM look for a server's load."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from tlserve.engine.messages import EngineStats
from tlserve.server.request_metrics import RequestMetrics


class VllmMetrics(Collector):
    """The same snapshot once more, under other names."""

    def __init__(self, stats: Callable[[], EngineStats], requests: RequestMetrics, model: str) -> None:
        self._stats = stats
        self._requests = requests
        self._model = model

    def collect(self) -> Iterator[Metric]:
        """Gauges of now, counters since the start; each has the model's name."""
        stats = self._stats()
        used = stats.kv_blocks_used / stats.kv_blocks_total if stats.kv_blocks_total else 0.0
        gauges = (
            ("vllm:num_requests_running", "Sequences that are running.", stats.active_sequences),
            ("vllm:num_requests_waiting", "Requests that wait.", stats.queue_depth),
            ("vllm:kv_cache_usage_perc", "The share of KV blocks in use, 0 to 1.", used),
        )
        for name, documentation, value in gauges:
            gauge = GaugeMetricFamily(name, documentation, labels=["model_name"])
            gauge.add_metric([self._model], value)
            yield gauge
        prompt, output = self._requests.token_totals()
        counters = (
            ("vllm:prompt_tokens", "Tokens of prompts.", prompt),
            ("vllm:generation_tokens", "Tokens of answers.", output),
            ("vllm:num_preemptions", "Sequences sent back to wait.", stats.preemptions_total),
        )
        for name, documentation, total in counters:
            counter = CounterMetricFamily(name, documentation, labels=["model_name"])
            counter.add_metric([self._model], total)
            yield counter
