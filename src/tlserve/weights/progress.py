"""How far a fetch has come, and printing it: a bar on a terminal, a line now and then in a log."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, Literal, TextIO, TypeAlias

from attrs import define, field, frozen

Phase: TypeAlias = Literal["waiting", "downloading", "unpacking", "copying", "verifying"]
"""``waiting``: another process fetches the same model."""

BAR_WIDTH: Final = 30
BAR_INTERVAL: Final = 0.1
LOG_INTERVAL: Final = 10.0
"""Seconds between two updates of the bar, and between two lines of a log."""


@frozen
class Progress:
    """One observation.

    Attributes:
        phase: what is going on.
        bytes_done: of this phase.
        bytes_total: None where nobody has said how much will come.
    """

    phase: Phase
    bytes_done: int
    bytes_total: int | None


@define
class ProgressPrinter:
    """A ``report`` for `tlserve.weights.pull.pull` that writes to a stream.

    Call `finish` when the fetch has ended, well or not, so that the terminal's next line begins at its start.
    """

    stream: TextIO
    clock: Callable[[], float] = time.monotonic
    _last: Progress | None = field(default=None, init=False)
    _shown_at: float = field(default=float("-inf"), init=False)
    _width: int = field(default=0, init=False)

    def __call__(self, progress: Progress) -> None:
        """Show the observation unless the last one is recent; a new phase and the end of one are always shown."""
        now = self.clock()
        is_bar = self.stream.isatty()
        new_phase = self._last is None or self._last.phase != progress.phase
        ended = progress.bytes_done == progress.bytes_total and progress != self._last
        self._last = progress
        if new_phase or ended or now - self._shown_at >= (BAR_INTERVAL if is_bar else LOG_INTERVAL):
            self._shown_at = now
            self._draw(describe(progress)) if is_bar else self._write(describe(progress) + "\n")

    def finish(self) -> None:
        """End the bar's line."""
        if self._width:
            self._write("\n")
            self._width = 0

    def _draw(self, text: str) -> None:
        """Over the line before, blanking what is left of it."""
        self._write("\r" + text.ljust(self._width))
        self._width = len(text)

    def _write(self, text: str) -> None:
        self.stream.write(text)
        self.stream.flush()


def describe(progress: Progress) -> str:
    """One line, such as ``downloading  41.9 MB of 98.4 MB  [###   ]  43%``."""
    done = f"{progress.phase}  {progress.bytes_done / 1e6:.1f} MB"
    if not progress.bytes_total:
        return f"model: {done}" if progress.bytes_done else f"model: {progress.phase}"
    share = min(1.0, progress.bytes_done / progress.bytes_total)
    bar = ("#" * round(share * BAR_WIDTH)).ljust(BAR_WIDTH)
    return f"model: {done} of {progress.bytes_total / 1e6:.1f} MB  [{bar}] {share:4.0%}"
