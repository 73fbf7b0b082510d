"""Hands what the engine did to the tickets that wait for it.

Loop thread only; its attributes may be read in any. ``deliver`` is called through ``TrioToken.run_sync_soon``, where an exception
would end the whole run; so it never raises. Every open ticket is in here, and leaves when it closes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tlserve.bridge.messages import NO_STATS, Abort, Command, Delivery
from tlserve.bridge.ticket import Ticket
from tlserve.errors import EngineError
from tlserve.names import RequestId


class Mailroom:
    """The open tickets by the ids they hold, and the engine's last counters.

    Attributes:
        stats: after the engine's last turn.
        num_waiting: generations that have not had their first step yet.
    """

    def __init__(self, post_command: Callable[[Command], None]) -> None:
        self.stats = NO_STATS
        self.num_waiting = 0
        self._post_command = post_command
        self._ticket_of: dict[RequestId, Ticket] = {}

    @property
    def num_open(self) -> int:
        """Generations whose ticket is open."""
        return len(self._ticket_of)

    def open_ticket(self, ids: Sequence[RequestId], *, max_events: int) -> Ticket:
        """A ticket for generations that are about to be submitted."""
        ticket = Ticket(ids, max_events=max_events, abort=self._abort, on_start=self._started, on_close=self._forget)
        self.num_waiting += len(ids)
        self._ticket_of.update(dict.fromkeys(ids, ticket))
        return ticket

    def deliver(self, delivery: Delivery) -> None:
        """Take in what one turn of the engine thread did."""
        self.stats = delivery.stats
        for event in delivery.events:
            ticket = self._ticket_of.get(event.id)
            if ticket is not None:
                ticket.deliver(event)

    def fail_all(self, error: EngineError) -> None:
        """End every generation with ``error``; what the engine still says about them is dropped."""
        for ticket in set(self._ticket_of.values()):
            ticket.fail(error)

    def _abort(self, request_id: RequestId) -> None:
        self._post_command(Abort(request_id))

    def _started(self) -> None:
        self.num_waiting -= 1

    def _forget(self, ticket: Ticket) -> None:
        for request_id in ticket.ids:
            del self._ticket_of[request_id]
