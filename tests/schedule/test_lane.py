from __future__ import annotations

from collections import Counter, defaultdict

from attrs import define, field
from hypothesis import given
from hypothesis import strategies as st

from tlserve.names import RequestId
from tlserve.schedule.lane import Lane
from tlserve.schedule.sequence import Sequence


@define
class Counters:
    """A lane in front of one counter, at which a request is served at once and whole."""

    lane: Lane = field(factory=Lane)
    arrivals: list[Sequence] = field(factory=list)
    costs: dict[int, int] = field(factory=dict)
    served: list[Sequence] = field(factory=list)

    def join(self, tenant: str, cost: int = 1, weight: int = 1) -> Sequence:
        number = len(self.arrivals)
        sequence = Sequence(
            id=RequestId(number), tokens=[1], max_tokens=1, arrival=number, tenant=tenant, weight=weight
        )
        self.arrivals.append(sequence)
        self.costs[number] = cost
        self.lane.join(sequence)
        return sequence

    def serve(self) -> Sequence | None:
        """Start the first, take its tokens; it stays alive until ``close``."""
        first = self.lane.first
        if first is not None:
            self.lane.start(first)
            self.lane.charge(first, self.costs[first.id])
            self.served.append(first)
        return first

    def tokens(self) -> Counter[str]:
        spent: Counter[str] = Counter()
        for sequence in self.served:
            spent[sequence.tenant] += self.costs[sequence.id]
        return spent


def test_tenants_take_turns_however_much_one_sends() -> None:
    """Ten requests of one tenant stand before the two of another, which wait for one each and not for ten."""
    desk = Counters()
    for _ in range(10):
        desk.join("many")
    for _ in range(2):
        desk.join("few")
    for _ in range(12):
        desk.serve()
    assert [sequence.tenant for sequence in desk.served][:5] == ["many", "few", "many", "few", "many"]


def test_turns_are_by_tokens_not_by_requests() -> None:
    """Who sends requests ten times as long has a tenth as many served."""
    desk = Counters()
    for _ in range(100):
        desk.join("long", 100)
        desk.join("short", 10)
    for _ in range(55):
        desk.serve()
    assert Counter(sequence.tenant for sequence in desk.served) == {"short": 50, "long": 5}


def test_weights_divide_what_there_is() -> None:
    """Three times the weight, three times the tokens."""
    desk = Counters()
    for _ in range(100):
        desk.join("gold", 12, weight=3)
        desk.join("plain", 12)
    for _ in range(80):
        desk.serve()
    assert Counter(sequence.tenant for sequence in desk.served) == {"gold": 60, "plain": 20}


def test_who_has_idled_has_saved_nothing_up() -> None:
    """A tenant that comes back after the other has had a thousand tokens gets every second turn, not the next hundred."""
    desk = Counters()
    for _ in range(150):
        desk.join("steady", 10)
    early = desk.join("late", 10)
    while desk.serve() is not early:
        pass
    for _ in range(100):
        desk.serve()
    before = desk.tokens()
    for _ in range(20):
        desk.join("late", 10)
    for _ in range(20):
        desk.serve()
    assert 90 <= (desk.tokens() - before)["late"] <= 110


def test_the_preempted_stand_before_all_that_have_not_started() -> None:
    """In the order in which they had started, and at no cost to their tenant."""
    desk = Counters()
    sequences = [desk.join("a"), desk.join("b"), desk.join("a")]
    for turn in range(2):
        first = desk.serve()
        assert first is sequences[turn]
        first.rank = (0, turn, first.arrival)
    for sequence in (sequences[1], sequences[0]):
        desk.lane.rejoin(sequence)
    order = []
    while (first := desk.lane.first) is not None:
        desk.lane.start(first)
        order.append(first)
    assert order == sequences


crowds = st.lists(
    st.tuples(st.sampled_from("abc"), st.integers(1, 9), st.integers(0, 3)), min_size=1, max_size=40
)  # (tenant, cost, requests served before it comes)


@given(crowds)
def test_one_tenant_is_served_in_order_of_arrival(crowd: list[tuple[str, int, int]]) -> None:
    """Whatever its requests cost and whenever they come."""
    desk = Counters()
    for _, cost, pause in crowd:
        for _ in range(pause):
            desk.serve()
        desk.join("only", cost)
    while desk.serve():
        pass
    assert desk.served == desk.arrivals


@given(crowds)
def test_requests_of_one_tenant_never_overtake_each_other(crowd: list[tuple[str, int, int]]) -> None:
    """Among others as well, and all are served in the end."""
    desk = Counters()
    for tenant, cost, pause in crowd:
        for _ in range(pause):
            desk.serve()
        desk.join(tenant, cost)
    while desk.serve():
        pass
    lines = defaultdict(list)
    for sequence in desk.served:
        lines[sequence.tenant].append(sequence.arrival)
    assert all(line == sorted(line) for line in lines.values())
    assert len(desk.served) == len(crowd)


@given(
    st.dictionaries(st.sampled_from("abcd"), st.tuples(st.integers(1, 4), st.integers(1, 20)), min_size=2),
    st.integers(1, 60),
)
def test_tenants_that_always_wait_get_shares_by_weight(tenants: dict[str, tuple[int, int]], count: int) -> None:
    """After any number of turns, two tenants' tokens per weight differ by no more than one request of each."""
    desk = Counters()
    for tenant, (weight, cost) in tenants.items():
        for _ in range(count):
            desk.join(tenant, cost, weight)
    for _ in range(count):
        desk.serve()
    spent = desk.tokens()
    for one, (weight, cost) in tenants.items():
        for other, (weights, costs) in tenants.items():
            assert abs(spent[one] / weight - spent[other] / weights) <= cost / weight + costs / weights + 1e-9


@given(
    st.integers(1, 30),
    st.lists(st.tuples(st.integers(1, 3), st.integers(1, 6), st.booleans()), min_size=200, max_size=400),
)
def test_a_stream_of_new_tenants_starves_nobody(debt: int, newcomers: list[tuple[int, int, bool]]) -> None:
    """A tenant ahead of its share is overtaken by a bounded number of later requests, though ever new tenants come."""
    desk = Counters()
    old, waiting = [desk.join("old", debt), desk.join("old")], desk.join("new")
    assert desk.serve() is old[0]
    lead, overtaking, most_weights = desk.lane.lead("old"), -1, 0  # -1: the one that waits is not a later one
    assert lead > 0
    for number, (weight, cost, repeats) in enumerate(newcomers):
        desk.join("again" if repeats else f"new {number}", cost, weight)
        most_weights = max(most_weights, sum(account.weight for account in desk.lane._accounts.values()))
        served = desk.serve()
        assert served is not None
        if served is old[1]:
            break
        overtaking += 1
        if served.tenant != "again":
            desk.lane.leave(served)
    assert waiting in desk.served
    assert overtaking <= most_weights * (2 * lead + 1) + 1


def test_new_tenants_do_not_go_on_for_ever() -> None:
    """With a newcomer always in line and nobody's counter catching up, the old tenant's turn comes nonetheless."""
    desk = Counters()
    old, waiting = [desk.join("old", 20), desk.join("old", 20)], desk.join("new", 5)
    assert desk.serve() is old[0]
    for number in range(1000):
        following = desk.join(f"new {number}", 5)
        served = desk.serve()
        if served is old[1]:
            break
        assert served is waiting
        desk.lane.leave(served)
        waiting = following
    assert old[1] in desk.served
