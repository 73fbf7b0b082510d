"""How long the engine thread has been at its present turn: one number, written by that thread, read in any."""

from __future__ import annotations

import time


class Pulse:
    """A stopwatch that any thread may look at; a float is written and read in one piece."""

    def __init__(self) -> None:
        self._began_at: float | None = None

    def begin(self) -> None:
        """A turn begins: a step, a piece of an embedding, or both."""
        self._began_at = time.monotonic()

    def end(self) -> None:
        """It is over; the thread posts, or waits for work."""
        self._began_at = None

    def busy_s(self) -> float:
        """Seconds since the present turn began; 0.0 between turns, however long nothing has been asked for."""
        began_at = self._began_at
        return 0.0 if began_at is None else time.monotonic() - began_at
