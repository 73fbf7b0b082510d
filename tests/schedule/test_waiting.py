from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tlserve.cache.manager import Lease
from tlserve.names import RequestId
from tlserve.schedule.sequence import Sequence
from tlserve.schedule.waiting import WaitingLine


def sequence(number: int, priority: int = 0, *, tenant: str = "") -> Sequence:
    return Sequence(id=RequestId(number), tokens=[1], max_tokens=1, arrival=number, priority=priority, tenant=tenant)


def first_id(line: WaitingLine) -> int | None:
    return None if line.first is None else line.first.id


@given(st.lists(st.integers(-2, 2), min_size=1, max_size=12))
def test_the_line_is_by_priority_then_arrival(priorities: list[int]) -> None:
    """For one tenant, whatever the order in which priorities come."""
    line = WaitingLine()
    members = [sequence(number, priority) for number, priority in enumerate(priorities)]
    for member in members:
        line.join(member)
    for member in sorted(members, key=lambda member: (-member.priority, member.arrival)):
        assert line.first is member
        line.start(member)
        line.charge(member, 100)
    assert (len(line), line.first) == (0, None)


def test_a_higher_priority_owes_nothing_to_a_lower_one() -> None:
    """What a tenant has had at one priority does not set it back at another."""
    line = WaitingLine()
    heavy = sequence(0, 0, tenant="a")
    line.join(heavy)
    line.start(heavy)
    line.charge(heavy, 1000)
    line.join(sequence(1, 5, tenant="a"))
    line.join(sequence(2, 5, tenant="b"))
    assert first_id(line) == 1


def test_leaving_from_the_middle() -> None:
    """An aborted request leaves without disturbing its neighbours."""
    line = WaitingLine()
    members = [sequence(number) for number in range(3)]
    for member in members:
        line.join(member)
    line.leave(members[1])
    line.leave(members[0])
    assert (len(line), first_id(line)) == (1, 2)


def test_accounts_end_with_the_last_request() -> None:
    """Ten thousand tenants that come and go leave nothing behind."""
    line = WaitingLine()
    for number in range(10_000):
        member = sequence(number, number % 3, tenant=f"t{number}")
        line.join(member)
        if number % 2:
            line.start(member)
            line.charge(member, 7)
            member.start(Lease(""), 0, turn=number)
        line.leave(member)
    assert (len(line), line.num_accounts) == (0, 0)
