"""How long requests take and how large they are: histograms, told of everything the moment it happens.

An answer may take minutes; its first token is in the next scrape all the same. Nothing here has labels, so that a token costs a binary
search and no look-up.
"""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from tlserve.server.distribution import GAPS_S, LATENCIES_S, TOKENS, Distribution


class RequestMetrics(Collector):
    """What the engine has started, in seconds and tokens. Told in the loop thread, collected in any.

    Attributes:
        generated_tokens_total: of all answers so far.
        embedded_tokens_total: of the inputs of embeddings.
    """

    def __init__(self) -> None:
        self.generated_tokens_total = 0
        self.embedded_tokens_total = 0
        self.queue_wait = Distribution(
            "tlserve_queue_wait_seconds", "From a request's submission to its first step.", LATENCIES_S
        )
        self.first_token_wait = Distribution(
            "tlserve_time_to_first_token_seconds", "From the request's head to its first token.", LATENCIES_S
        )
        self.gap = Distribution(
            "tlserve_inter_token_latency_seconds", "Between two tokens of one answer, as they arrive.", GAPS_S
        )
        self.per_token = Distribution(
            "tlserve_time_per_output_token_seconds", "Mean time per token after the first, one value a request.", GAPS_S
        )
        self.duration = Distribution(
            "tlserve_request_duration_seconds", "From the request's head to the end of its answer.", LATENCIES_S
        )
        self.prompt = Distribution("tlserve_prompt_tokens", "Tokens of prompts, one value a request.", TOKENS)
        self.output = Distribution("tlserve_output_tokens", "Tokens of answers, one value a request.", TOKENS)

    @property
    def prompt_tokens_total(self) -> float:
        """Of the prompts of generations that were started."""
        return self.prompt.sum

    def started(self, *, queue_s: float, prompt_tokens: int) -> None:
        """A generation has had its first step."""
        self.queue_wait.add(queue_s)
        self.prompt.add(prompt_tokens)

    def first_token(self, seconds: float) -> None:
        """It has had its first token."""
        self.first_token_wait.add(seconds)

    def token(self, gap_s: float | None) -> None:
        """It has had one more token, so long after the one before it; None for the first of a choice."""
        self.generated_tokens_total += 1
        if gap_s is not None:
            self.gap.add(gap_s)

    def ended(self, *, duration_s: float, output_tokens: int, per_token_s: float | None) -> None:
        """It is over, in whatever way."""
        self.duration.add(duration_s)
        self.output.add(output_tokens)
        if per_token_s is not None:
            self.per_token.add(per_token_s)

    def embedded(self, tokens: int) -> None:
        """Inputs have been embedded."""
        self.embedded_tokens_total += tokens

    def collect(self) -> Iterator[Metric]:
        """All histograms, and the tokens."""
        for distribution in (
            self.queue_wait,
            self.first_token_wait,
            self.gap,
            self.per_token,
            self.duration,
            self.prompt,
            self.output,
        ):
            yield distribution.family()
        tokens = CounterMetricFamily(
            "tlserve_tokens", "Tokens so far: of prompts, generated, and of embeddings' inputs.", labels=["kind"]
        )
        tokens.add_metric(["prompt"], self.prompt_tokens_total)
        tokens.add_metric(["generated"], self.generated_tokens_total)
        tokens.add_metric(["embedded"], self.embedded_tokens_total)
        yield tokens
