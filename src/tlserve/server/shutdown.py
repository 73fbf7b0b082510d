"""The way down, as one small state: serving, then draining, then refusing, then closed.

Loop thread only. Whoever wants the server to stop calls ``begin``; who waits for it awaits the events. What happens in between is
written in ``lifecycle``.
"""

from __future__ import annotations

import trio


class Shutdown:
    """Serving until ``begin`` is called.

    While it drains, readiness is gone and connections are closed as their requests end, but whoever still comes is served. When
    it refuses, nothing new is taken. It is closed when the API has answered its last request.
    """

    def __init__(self) -> None:
        self.reason: str | None = None
        self._draining = trio.Event()
        self._refusing = trio.Event()
        self._closed = trio.Event()

    @property
    def is_draining(self) -> bool:
        """Whether the end has begun."""
        return self._draining.is_set()

    @property
    def is_refusing(self) -> bool:
        """Whether nothing new is to be taken."""
        return self._refusing.is_set()

    def begin(self, reason: str) -> None:
        """Begin to stop. The first reason counts; calling it again is harmless."""
        if self.reason is None:
            self.reason = reason
            self._draining.set()

    def refuse(self) -> None:
        """Take nothing new from now on."""
        self._refusing.set()

    def close(self) -> None:
        """Say that the API server is down."""
        self._closed.set()

    async def wait_draining(self) -> None:
        """Wait for ``begin``."""
        await self._draining.wait()

    async def wait_refusing(self) -> None:
        """Wait for ``refuse``."""
        await self._refusing.wait()

    async def wait_closed(self) -> None:
        """Wait for ``close``."""
        await self._closed.wait()
