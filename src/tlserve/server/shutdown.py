"""The way down, as one small state: serving, then draining, then closed.

Loop thread only. Whoever wants the server to stop calls ``begin``; who waits for it awaits the events. What happens in between is
written in ``lifecycle``.
"""

from __future__ import annotations

import trio


class Shutdown:
    """Serving until ``begin`` is called, then draining; ``closed`` when the API has answered its last request."""

    def __init__(self) -> None:
        self.reason: str | None = None
        self._draining = trio.Event()
        self._closed = trio.Event()

    @property
    def is_draining(self) -> bool:
        """Whether nothing new is to be taken."""
        return self._draining.is_set()

    def begin(self, reason: str) -> None:
        """Stop taking requests and let those that run finish. The first reason counts; calling it again is harmless."""
        if self.reason is None:
            self.reason = reason
            self._draining.set()

    def close(self) -> None:
        """Say that the API server is down."""
        self._closed.set()

    async def wait_draining(self) -> None:
        """Wait for ``begin``."""
        await self._draining.wait()

    async def wait_closed(self) -> None:
        """Wait for ``close``."""
        await self._closed.wait()
