"""Tickets and the mailroom: one end for every request, whoever ends it."""

from __future__ import annotations

from typing import Any

import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from tlserve.bridge.mailroom import Mailroom
from tlserve.bridge.messages import NO_STATS, Abort, Command, Delivery, Event
from tlserve.bridge.ticket import Ticket
from tlserve.engine.messages import Failed, FinishReason, Started, TokenOut
from tlserve.errors import EngineDead, StepFailed
from tlserve.names import RequestId


def token(request_id: RequestId, finish: FinishReason | None = None) -> TokenOut:
    """A token of a request."""
    return TokenOut(request_id, 7, -0.5, finish)


def deliver(mailroom: Mailroom, *events: Event) -> None:
    """One turn of an engine."""
    mailroom.deliver(Delivery(events, NO_STATS))


async def drain(ticket: Ticket) -> list[Event]:
    """Everything that has been delivered, to the end of the channel."""
    events = []
    while True:
        try:
            events.append(await ticket.receive())
        except trio.EndOfChannel:
            return events


async def test_events_come_in_order_and_end() -> None:
    """A receiver sees the start, the tokens and then the end of the channel; nothing is aborted."""
    commands: list[Command] = []
    mailroom = Mailroom(commands.append)
    request = RequestId(1)
    with mailroom.open_ticket([request], max_events=5) as ticket:
        deliver(mailroom, Started(request, 0, 0.0), token(request))
        deliver(mailroom, token(request, FinishReason.LENGTH), token(request))

        events = await drain(ticket)

    assert [type(event) for event in events] == [Started, TokenOut, TokenOut]
    assert commands == []
    assert mailroom.num_open == 0


async def test_closing_early_aborts_what_runs_and_nothing_else() -> None:
    """Of two generations the one that is over is left alone."""
    commands: list[Command] = []
    mailroom = Mailroom(commands.append)
    over, running = RequestId(1), RequestId(2)
    ticket = mailroom.open_ticket([over, running], max_events=10)
    deliver(mailroom, token(over, FinishReason.STOP))

    ticket.close()
    ticket.close()
    deliver(mailroom, token(running))

    assert commands == [Abort(running)]
    assert mailroom.num_open == 0


async def test_ending_one_generation_keeps_the_others() -> None:
    """A stop string ends its own choice; the other goes on to its end."""
    commands: list[Command] = []
    mailroom = Mailroom(commands.append)
    stopped, other = RequestId(1), RequestId(2)
    with mailroom.open_ticket([stopped, other], max_events=10) as ticket:
        ticket.end(stopped)
        deliver(mailroom, token(stopped), token(other, FinishReason.STOP))

        events = await drain(ticket)

    assert [event.id for event in events] == [other]
    assert commands == [Abort(stopped)]


async def test_failing_all_reaches_every_open_ticket() -> None:
    """Each live generation gets the error as its last event, and is aborted in the engine."""
    commands: list[Command] = []
    mailroom = Mailroom(commands.append)
    first, second = RequestId(1), RequestId(2)
    tickets = [mailroom.open_ticket([request], max_events=10) for request in (first, second)]
    deliver(mailroom, token(second, FinishReason.STOP))

    mailroom.fail_all(EngineDead("gone"))

    assert [type(event) for event in await drain(tickets[0])] == [Failed]
    assert [type(event) for event in await drain(tickets[1])] == [TokenOut]
    assert commands == [Abort(first)]


async def test_a_receiver_that_waits_is_woken_by_its_event() -> None:
    """Waiting costs nothing and loses nothing, even when a wait is cancelled."""
    mailroom = Mailroom(lambda _: None)
    request = RequestId(1)
    with mailroom.open_ticket([request], max_events=4) as ticket:
        with trio.move_on_after(0) as scope:
            await ticket.receive()
        assert scope.cancelled_caught
        async with trio.open_nursery() as nursery:
            received: list[Event] = []

            async def receive() -> None:
                received.append(await ticket.receive())

            nursery.start_soon(receive)
            await trio.testing.wait_all_tasks_blocked()
            deliver(mailroom, token(request))
        assert received == [token(request)]


@given(st.lists(st.integers(1, 5), max_size=30))
def test_delivering_to_nobody_is_harmless(ids: list[int]) -> None:
    """Events of requests that nobody holds are dropped; deliver never raises."""
    deliver(Mailroom(lambda _: None), *(token(RequestId(number)) for number in ids))


class Tickets(RuleBasedStateMachine):
    """Whatever happens in whatever order, a generation is aborted at most once, and never after its end."""

    def __init__(self) -> None:
        super().__init__()
        self.commands: list[Any] = []
        self.mailroom = Mailroom(self.commands.append)
        self.tickets: list[Ticket] = []
        self.over: set[RequestId] = set()
        self.next_id = 0

    @rule(count=st.integers(1, 3))
    def open(self, count: int) -> None:
        """A client comes."""
        ids = [RequestId(self.next_id + offset) for offset in range(count)]
        self.next_id += count
        self.tickets.append(self.mailroom.open_ticket(ids, max_events=100 * count))  # More than the steps of a run.

    @rule(pick=st.integers(0), last=st.booleans())
    def engine_says(self, pick: int, last: bool) -> None:  # noqa: FBT001
        """The engine makes progress with something, alive or not."""
        if self.next_id:
            request = RequestId(pick % self.next_id)
            aborted = Abort(request) in self.commands
            deliver(self.mailroom, Failed(request, StepFailed("x")) if last else Started(request, 0, 0.0))
            if last and not aborted:
                self.over.add(request)

    @rule(pick=st.integers(0))
    def close(self, pick: int) -> None:
        """A client leaves."""
        if self.tickets:
            self.tickets[pick % len(self.tickets)].close()

    @invariant()
    def every_generation_ends_once(self) -> None:
        """No abort twice, none after an end."""
        aborted = [command.id for command in self.commands]
        assert len(aborted) == len(set(aborted))
        assert not set(aborted) & self.over
        assert self.mailroom.num_waiting <= self.mailroom.num_open


TestTickets = Tickets.TestCase
