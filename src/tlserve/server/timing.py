"""When the parts of one generation happened; the histograms hear of each as it happens.

A request passes through four phases: it is prepared (its body read, rendered and tokenized), it queues, its prompt is computed (prefill,
up to its first token), it is decoded. All moments are on the clock of ``time.perf_counter``. Loop thread only.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

from attrs import define, field

from tlserve.server.request_metrics import RequestMetrics


@define(eq=False)
class Timing:
    """Filled in by the answer as it grows.

    Attributes:
        asked_at: the request's head was parsed.
        prompt_tokens: of all prompts, each counted once.
        submitted_at: it was prepared, and the engine asked.
        started_at: the first step of any of its choices; None while it waits.
        first_token_at: its first token.
        last_token_at: its latest token.
        completion_tokens: of all choices.
        gaps_s: seconds between tokens of one choice, the sum over all choices.
        num_gaps: how many those are.
    """

    _metrics: RequestMetrics = field(repr=False)
    asked_at: float
    prompt_tokens: int
    submitted_at: float = field(factory=time.perf_counter)
    started_at: float | None = None
    first_token_at: float | None = None
    last_token_at: float | None = None
    completion_tokens: int = 0
    gaps_s: float = 0.0
    num_gaps: int = 0

    def note_start(self, at: float) -> None:
        """A choice has had its first step; only the first one counts."""
        if self.started_at is None:
            self.started_at = at
            self._metrics.started(queue_s=at - self.submitted_at, prompt_tokens=self.prompt_tokens)

    def note_token(self, previous_at: float | None) -> float:
        """A token has come now, and the one before it in its choice at ``previous_at`` (None: it is the first).

        Returns:
            Now, for the next one.
        """
        now = self.last_token_at = time.perf_counter()
        self.completion_tokens += 1
        if self.first_token_at is None:
            self.first_token_at = now
            self._metrics.first_token(now - self.asked_at)
        gap_s = None if previous_at is None else now - previous_at
        if gap_s is not None:
            self.gaps_s += gap_s
            self.num_gaps += 1
        self._metrics.token(gap_s)
        return now

    def note_end(self) -> None:
        """The request is over, in whatever way; one that was never started has nothing to tell."""
        if self.started_at is not None:
            self._metrics.ended(
                duration_s=time.perf_counter() - self.asked_at,
                output_tokens=self.completion_tokens,
                per_token_s=self.per_token_s,
            )

    @property
    def per_token_s(self) -> float | None:
        """Mean seconds per token after the first; None without one."""
        return self.gaps_s / self.num_gaps if self.num_gaps else None

    def phases(self) -> Iterator[tuple[str, float, float | None]]:
        """Each phase that has begun: its name, its begin, and its end or None."""
        yield "prepare", self.asked_at, self.submitted_at
        yield "queue", self.submitted_at, self.started_at
        if self.started_at is not None:
            yield "prefill", self.started_at, self.first_token_at
        if self.first_token_at is not None:
            yield "decode", self.first_token_at, self.last_token_at

    def milliseconds(self) -> dict[str, float]:
        """For the log: how long each phase that has ended took, when the first token came, and the mean time per token."""
        seconds = {f"{name}_ms": end - begin for name, begin, end in self.phases() if end is not None}
        if self.first_token_at is not None:
            seconds["first_token_ms"] = self.first_token_at - self.asked_at
        if self.per_token_s is not None:
            seconds["ms_per_token"] = self.per_token_s
        return {name: round(value * 1000, 2) for name, value in seconds.items()}
