"""A server in a thread and on a loop of its own: whatever keeps the caller's loop busy does not keep its clients waiting.

What it answers with must be readable from another thread: values that are replaced whole, never built up in place.
"""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable
from functools import partial

import trio

from tlserve.server.http import HttpServer


async def serve_aside(server: HttpServer, until: Callable[[], Awaitable[None]], *, name: str) -> None:
    """Serve as ``server.serve`` does, in a thread called ``name``.

    Args:
        server: is used by that thread alone.
        until: awaited here; when it returns, or is cancelled, the server stops.
        name: of the thread.
    """
    stop = _Stop()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(
            partial(
                trio.to_thread.run_sync,
                partial(trio.run, server.serve, stop.wait, strict_exception_groups=True),
                limiter=trio.CapacityLimiter(1),  # Its own: a worker for life must not eat one of the shared threads.
                thread_name=name,
            )
        )
        try:
            await until()
        finally:
            stop.set()


class _Stop:
    """An event that one loop waits for and another thread sets, in whichever order."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._is_set = False
        self._wake: Callable[[], None] | None = None

    async def wait(self) -> None:
        event = trio.Event()
        token = trio.lowlevel.current_trio_token()
        with self._lock:
            if self._is_set:
                return
            self._wake = partial(token.run_sync_soon, event.set)
        await event.wait()

    def set(self) -> None:
        with self._lock:
            self._is_set = True
            wake = self._wake
        if wake is not None:
            try:
                wake()
            except trio.RunFinishedError:
                return  # Its loop has failed; that is told by the thread's end.
