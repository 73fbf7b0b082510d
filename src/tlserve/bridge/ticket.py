"""One HTTP request's claim on the engine.

Holds the channel that the events of its generations come through and knows which of them are over. Loop thread only. A ticket
that closes early aborts what is still running: closing is the one way to end, whoever wants it (a client that hung up, a stop
string, a deadline, a drain that has run out of time).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Self

import trio

from tlserve.bridge.messages import Event, is_last
from tlserve.engine.messages import Failed
from tlserve.errors import EngineError
from tlserve.names import RequestId


class Ticket:
    """The receiving side of one or more generations that one client waits for.

    The buffer holds every event that can ever come, so delivering never waits and a slow reader costs memory in proportion to its
    own ``max_tokens`` and nothing else.

    Args:
        ids: the generations, in the order of the answer's choices.
        max_events: the most events that they can have together.
        abort: told each id that the claim is given up for; never told an id that is over.
        on_start: told once for each id, when it no longer waits for its first step, whatever became of it.
        on_close: told once, when the ticket closes.
    """

    def __init__(
        self,
        ids: Sequence[RequestId],
        *,
        max_events: int,
        abort: Callable[[RequestId], None],
        on_start: Callable[[], None],
        on_close: Callable[[Ticket], None],
    ) -> None:
        self.ids = tuple(ids)
        self._unstarted = set(ids)
        self._live = set(ids)
        self._abort = abort
        self._on_start = on_start
        self._on_close = on_close
        self._is_closed = False
        self._send, self._receive = trio.open_memory_channel[Event](max_events)

    @property
    def live(self) -> frozenset[RequestId]:
        """The generations that are not over."""
        return frozenset(self._live)

    def deliver(self, event: Event) -> None:
        """Take one event in; never raises, never waits. What comes after the end of its generation is dropped."""
        if event.id not in self._live:
            return
        self._start(event.id)
        try:
            self._send.send_nowait(event)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            return
        if is_last(event):
            self._is_over(event.id)

    async def receive(self) -> Event:
        """Wait for the next event. Cancelling the wait loses nothing.

        Raises:
            trio.EndOfChannel: every generation is over and its last event received.
            trio.ClosedResourceError: the ticket was closed.
        """
        return await self._receive.receive()

    def end(self, request_id: RequestId) -> None:
        """Give up one generation, within one engine step; the others go on."""
        if request_id in self._live:
            self._abort(request_id)
            self._is_over(request_id)

    def fail(self, error: EngineError) -> None:
        """End every generation that is not over with ``error``; what the engine still says about them is dropped."""
        for request_id in tuple(self._live):
            self._abort(request_id)
            self.deliver(Failed(request_id, error))

    def close(self) -> None:
        """Give up all that is still running. Closing twice is harmless."""
        if self._is_closed:
            return
        self._is_closed = True
        for request_id in tuple(self._live):
            self.end(request_id)
        self._receive.close()
        self._send.close()
        self._on_close(self)

    def _start(self, request_id: RequestId) -> None:
        if request_id in self._unstarted:
            self._unstarted.discard(request_id)
            self._on_start()

    def _is_over(self, request_id: RequestId) -> None:
        self._live.discard(request_id)
        self._start(request_id)
        if not self._live:
            self._send.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Ticket {self.ids}, {len(self._live)} live{', closed' if self._is_closed else ''}>"
