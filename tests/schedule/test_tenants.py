from __future__ import annotations

from schedule.desk import Desk
from tlserve.names import RequestId
from tlserve.schedule.sequence import SequenceState


def starts(desk: Desk) -> list[int]:
    """The ids in the order in which they start, until all have ended."""
    order: list[int] = []
    while desk.scheduler.has_work():
        plan = desk.scheduler.schedule()
        order += [sequence.id for sequence in plan.started]
        desk.carry_out(plan)
    return order


def test_a_flood_of_one_tenant_does_not_hold_up_another() -> None:
    """Whose single request comes behind twenty of the other waits for the one that runs and for no more."""
    desk = Desk(max_batch=1)
    for name in range(20):
        desk.add(name, 5, tenant="flood")
    desk.step()
    desk.add(99, 5, tenant="drop")
    assert starts(desk).index(99) == 0


def test_a_tenant_pays_for_the_tokens_of_its_answers() -> None:
    """Two tenants ask equally much and one gets answers four times as long: it starts a quarter as often."""
    desk = Desk(max_batch=1)
    for name in range(20):
        desk.add(name, 1, max_tokens=39, tenant="long")
        desk.add(100 + name, 1, max_tokens=9, tenant="short")
    order = starts(desk)[:20]
    assert 3 <= sum(name < 100 for name in order) <= 5


def test_what_max_tokens_allows_and_nobody_used_is_not_paid_for() -> None:
    """A generous max_tokens is no reason to wait: the counters hold what was computed."""
    desk = Desk(max_batch=1)
    for name in range(10):
        desk.add(name, 4, max_tokens=500, tenant="generous")
        desk.add(100 + name, 4, max_tokens=4, tenant="exact")
    order = []
    while desk.scheduler.has_work():
        plan = desk.scheduler.schedule()
        order += [sequence.id for sequence in plan.started]
        desk.carry_out(plan)
        for sequence in desk.sequences.values():
            if sequence.state is SequenceState.RUNNING and sequence.num_generated == 4:
                desk.scheduler.abort(sequence.id)
    assert [name < 100 for name in order] == [True, False] * 10


def test_what_the_cache_has_is_not_paid_for() -> None:
    """A tenant whose long prompts are found in the cache has the turns of one with short prompts."""
    desk = Desk(max_batch=1, radix=True)
    desk.add(0, 40, max_tokens=1, tenant="cached")
    desk.step()
    for name in range(1, 9):
        desk.add(name, 40, max_tokens=1, tenant="cached")
        desk.add(100 + name, 1, max_tokens=1, tenant="short")
    assert [name < 100 for name in starts(desk)] == [True, False] * 8


def test_a_preempted_request_costs_its_tenant_no_turn() -> None:
    """Computing it again is not its fault: it comes back before whoever has not started, and is not charged."""
    desk = Desk(max_batch=1)
    desk.add(1, 30, tenant="a")
    desk.step()
    desk.add(2, 1, tenant="b")
    desk.add(3, 5, priority=1)
    assert list(desk.step()) == [3]
    lead = desk.scheduler._waiting.lead(desk.sequences[1])
    desk.scheduler.abort(RequestId(3))
    assert desk.step() == {1: 31}
    assert desk.scheduler._waiting.lead(desk.sequences[1]) == lead + 1


def test_room_for_a_weighty_tenant() -> None:
    """A weight of three starts three requests for each one of a weight of one."""
    desk = Desk(max_batch=1)
    for name in range(40):
        desk.add(name, 5, max_tokens=5, tenant="gold", weight=3)
        desk.add(100 + name, 5, max_tokens=5, tenant="plain")
    assert 29 <= sum(name < 100 for name in starts(desk)[:40]) <= 31
