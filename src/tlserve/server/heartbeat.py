"""Whether the loop turns: one number, written in the loop's thread and read in that of the probes."""

from __future__ import annotations

import time

import trio

INTERVAL_S = 1.0
"""How often it beats, in seconds."""

LIMIT_S = 5.0
"""So long without a beat means stuck: many times what the longest callback takes on a machine that is far too busy."""


class Heartbeat:
    """Beats as long as the loop turns; a float is written and read in one piece."""

    def __init__(self) -> None:
        self._last_at = time.monotonic()

    @property
    def silent_s(self) -> float:
        """Seconds since the last beat."""
        return time.monotonic() - self._last_at

    @property
    def has_stopped(self) -> bool:
        """Whether something holds the loop; it may still let go."""
        return self.silent_s > LIMIT_S

    async def beat(self) -> None:
        """Beat until cancelled."""
        while True:
            self._last_at = time.monotonic()
            await trio.sleep(INTERVAL_S)
