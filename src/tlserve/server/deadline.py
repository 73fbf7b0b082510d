"""The time that a client gives its request: ``X-Request-Timeout-Ms``, held in every phase of it.

Before there is a ticket (while the body arrives and the prompt is prepared) the deadline is a cancel scope around the handler. After
that it belongs to the ticket: a task of the server's, not of the request, ends it at the given moment, so that its KV blocks are
free one engine step later even if the client has stopped reading and the handler waits for it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from math import inf

import trio
from attrs import frozen

from tlserve.bridge.ticket import Ticket
from tlserve.errors import DeadlineExceeded


@frozen
class Deadline:
    """A moment on Trio's clock, and the milliseconds that lead to it as the client wrote them (None: no limit)."""

    at: float
    limit_ms: int | None

    @classmethod
    def after(cls, limit_ms: int | None) -> Deadline:
        """So many milliseconds from now; None for never."""
        return cls(inf if limit_ms is None else trio.current_time() + limit_ms / 1000, limit_ms)

    def error(self) -> DeadlineExceeded:
        """What the client is told."""
        return DeadlineExceeded(f"the request was not done within {self.limit_ms} ms, the time that its client gave it")

    @contextmanager
    def hold(self) -> Iterator[None]:
        """End the block when the time is over.

        Raises:
            DeadlineExceeded: it had to be ended.
        """
        with trio.move_on_at(self.at) as scope:
            yield
        if scope.cancelled_caught:
            raise self.error()


@frozen
class Deadlines:
    """Ends tickets whose time is over, in a nursery that outlives every request. Loop thread only."""

    _nursery: trio.Nursery

    @contextmanager
    def watch(self, ticket: Ticket, deadline: Deadline) -> Iterator[None]:
        """For the length of the block, end ``ticket`` with DeadlineExceeded when its time is over."""
        if deadline.at == inf:
            yield
            return
        scope = trio.CancelScope()
        self._nursery.start_soon(_expire, ticket, deadline, scope)
        try:
            yield
        finally:
            scope.cancel()


async def _expire(ticket: Ticket, deadline: Deadline, scope: trio.CancelScope) -> None:
    with scope:
        await trio.sleep_until(deadline.at)
        ticket.fail(deadline.error())
