"""How long requests took and how large they were, as histograms over all that the engine has started."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from tlserve.server.distribution import GAPS_S, LATENCIES_S, TOKENS, Distribution
from tlserve.server.room import Room


class RequestMetrics(Collector):
    """Takes in each room at its end. Loop thread only."""

    def __init__(self) -> None:
        self._queue_wait = Distribution(
            "tlserve_queue_wait_seconds", "From the request's head to its first step.", LATENCIES_S
        )
        self._first_token = Distribution(
            "tlserve_time_to_first_token_seconds", "From the request's head to its first token.", LATENCIES_S
        )
        self._gap = Distribution(
            "tlserve_inter_token_latency_seconds", "Between two tokens of one answer, as they arrive.", GAPS_S
        )
        self._per_token = Distribution(
            "tlserve_time_per_output_token_seconds", "Mean time per token after the first, one value a request.", GAPS_S
        )
        self._duration = Distribution(
            "tlserve_request_duration_seconds", "From the request's head to the end of its answer.", LATENCIES_S
        )
        self._prompt = Distribution("tlserve_prompt_tokens", "Tokens of prompts, one value a request.", TOKENS)
        self._output = Distribution("tlserve_output_tokens", "Tokens of answers, one value a request.", TOKENS)

    def add(self, room: Room) -> None:
        """Count one request; one that was never started has nothing to tell."""
        timing = room.timing
        if timing is None or timing.started_at is None:
            return
        self._queue_wait.add(timing.started_at - room.started_at)
        self._duration.add(room.elapsed_ms() / 1000)
        self._prompt.add(timing.prompt_tokens)
        self._output.add(timing.completion_tokens)
        for gap in timing.gaps:
            self._gap.add(gap)
        if timing.first_token_at is not None:
            self._first_token.add(timing.first_token_at - room.started_at)
        if timing.gaps:
            self._per_token.add(sum(timing.gaps) / len(timing.gaps))

    def token_totals(self) -> tuple[float, float]:
        """Tokens of all prompts, and of all answers."""
        return self._prompt.sum, self._output.sum

    def collect(self) -> Iterator[Metric]:
        """All histograms."""
        for distribution in (
            self._queue_wait,
            self._first_token,
            self._gap,
            self._per_token,
            self._duration,
            self._prompt,
            self._output,
        ):
            yield distribution.family()
