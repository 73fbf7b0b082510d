from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tlserve.names import RequestId
from tlserve.schedule.sequence import Sequence
from tlserve.schedule.waiting import WaitingLine


def sequence(number: int, priority: int = 0) -> Sequence:
    return Sequence(id=RequestId(number), tokens=[1], max_tokens=1, arrival=number, priority=priority)


@given(st.permutations(range(12)), st.lists(st.integers(-2, 2), min_size=12, max_size=12))
def test_the_line_is_by_priority_then_arrival(order: list[int], priorities: list[int]) -> None:
    """Whatever the order in which they stand in line, or stand in it again, the first is the one of best rank."""
    members = [sequence(number, priority) for number, priority in enumerate(priorities)]
    line = WaitingLine()
    for member in (members[number] for number in order):
        line.add(member)
    leaving = sorted(members, key=lambda member: (-member.priority, member.arrival))
    for member in leaving:
        assert line.first is member
        line.remove(member)
    assert (len(line), line.first) == (0, None)


def test_leaving_from_the_middle() -> None:
    """An aborted request leaves without disturbing its neighbours."""
    line = WaitingLine()
    members = [sequence(number) for number in range(3)]
    for member in members:
        line.add(member)
    line.remove(members[1])
    line.remove(members[0])
    assert line.first is members[2]
