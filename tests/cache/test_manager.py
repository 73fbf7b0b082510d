from __future__ import annotations

from typing import Literal

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from tlserve.cache.manager import BlockManager, Lease
from tlserve.errors import EngineError


def computed(manager: BlockManager, tokens: list[int], *, salt: str = "") -> Lease:
    """A lease whose tokens are all computed and published."""
    lease = manager.match(tokens, salt)
    assert manager.reserve(lease, len(tokens))
    manager.commit(lease, tokens, len(tokens))
    return lease


@pytest.mark.parametrize(("length", "matched"), [(3, 0), (4, 0), (5, 4), (8, 4), (9, 8), (12, 8), (100, 8)])
def test_a_match_is_whole_blocks_and_never_the_whole_prompt(length: int, matched: int) -> None:
    """The last token of a prompt is always computed, for its logits; a partly filled block is computed again."""
    manager = BlockManager(64, 4, "radix")
    manager.release(computed(manager, list(range(11))))
    lease = manager.match(list(range(length)), "")
    assert len(lease.blocks) * 4 == matched


def test_off_never_shares() -> None:
    """Without a prefix cache nothing is found and nothing stays."""
    manager = BlockManager(8, 2, "off")
    manager.release(computed(manager, [1, 2, 3, 4]))
    assert (manager.num_free, manager.num_cached) == (8, 0)
    assert len(manager.match([1, 2, 3, 4, 5], "").blocks) == 0


def test_sharing_is_by_salt() -> None:
    """Another tenant's identical prompt is not found."""
    manager = BlockManager(8, 2, "radix")
    manager.release(computed(manager, [1, 2, 3, 4], salt="a"))
    assert len(manager.match([1, 2, 3, 4], "b").blocks) == 0
    assert len(manager.match([1, 2, 3, 4], "a").blocks) == 1


def test_nothing_uncomputed_is_ever_found() -> None:
    """Reserved blocks become known only up to the last full block that is computed."""
    manager = BlockManager(8, 2, "radix")
    tokens = [1, 2, 3, 4, 5, 6]
    lease = manager.match(tokens, "")
    assert manager.reserve(lease, 6)
    assert len(manager.match(tokens, "").blocks) == 0
    manager.commit(lease, tokens, 3)
    assert list(manager.match(tokens, "").blocks) == [lease.blocks[0]]


def test_a_reservation_is_all_or_nothing() -> None:
    """Too large a wish changes nothing, and a smaller one still works."""
    manager = BlockManager(4, 2, "radix")
    lease = manager.match([1], "")
    assert not manager.reserve(lease, 9)
    assert (manager.num_free, len(lease.blocks)) == (4, 0)
    assert manager.reserve(lease, 8)
    assert manager.num_free == 0


def test_eviction_takes_the_oldest_chain_from_its_end() -> None:
    """The prefix released first goes first, its last block before its first; what is in use stays."""
    manager = BlockManager(6, 1, "radix")
    old, new = computed(manager, [1, 2, 3]), computed(manager, [4, 5, 6])
    manager.release(old)
    manager.release(new)
    user = manager.match([0], "")
    assert manager.reserve(user, 2)
    assert manager.num_evictions == 2
    assert len(manager.match([1, 2, 3, 9], "").blocks) == 1
    assert len(manager.match([4, 5, 6, 9], "").blocks) == 3


def test_a_prefix_in_use_is_never_evicted() -> None:
    """While a descendant is held, all blocks before it are as well: a hungry request gets none of them."""
    manager = BlockManager(4, 1, "radix")
    manager.release(computed(manager, [1, 2, 3]))
    user = manager.match([1, 2, 9], "")
    assert len(user.blocks) == 2
    hungry = manager.match([7], "")
    assert not manager.reserve(hungry, 3)
    assert manager.reserve(hungry, 2)
    assert list(manager.match([1, 2, 9], "").blocks) == list(user.blocks)
    manager.check_integrity()


def test_the_same_prefix_computed_twice_is_kept_once() -> None:
    """Two requests that computed the same prompt side by side end up on the same blocks."""
    manager = BlockManager(8, 2, "radix")
    tokens = [1, 2, 3, 4]
    first, second = manager.match(tokens, ""), manager.match(tokens, "")
    assert manager.reserve(first, 4)
    assert manager.reserve(second, 4)
    manager.commit(first, tokens, 4)
    manager.commit(second, tokens, 4)
    assert first.blocks == second.blocks
    assert manager.num_used == 2
    manager.check_integrity()


def test_availability_without_leases_counts_shared_blocks_once_all_holders_go() -> None:
    """A block that a third request holds would not become available."""
    manager = BlockManager(6, 1, "radix")
    one = computed(manager, [1, 2])
    two, three = computed(manager, [1, 3]), computed(manager, [1, 4])
    assert manager.num_available == 2
    assert manager.num_available_without([one]) == 3
    assert manager.num_available_without([one, two]) == 4
    assert manager.num_available_without([one, two, three]) == 6


def test_what_is_distrusted_is_found_no_more() -> None:
    """A prefix and all that continues it: cached blocks are free at once, held ones when their holders let go."""
    manager = BlockManager(8, 1, "radix")
    manager.release(computed(manager, [1, 2, 3]))
    holder, bad = computed(manager, [1, 2, 4]), computed(manager, [1, 5])
    other = computed(manager, [7, 8])
    manager.distrust(bad)
    assert (manager.num_free, manager.num_cached, manager.num_used) == (2, 0, 6)
    manager.check_integrity()
    manager.release(bad)
    assert manager.reserve(holder, 4)
    manager.commit(holder, [1, 2, 4, 6], 4)
    assert len(manager.match([1, 2, 4, 6, 9], "").blocks) == 0
    manager.release(holder)
    assert (manager.num_free, manager.num_cached) == (6, 0)
    assert list(manager.match([7, 8, 9], "").blocks) == list(other.blocks)
    manager.check_integrity()


def test_integrity_check_notices_a_forgotten_holder() -> None:
    """A block whose count differs from the leases that list it is reported."""
    manager = BlockManager(4, 1, "radix")
    lease = computed(manager, [1, 2])
    lease.blocks.pop()
    with pytest.raises(EngineError, match="wrong count of holders"):
        manager.check_integrity()


class ManagerMachine(RuleBasedStateMachine):
    """Random lives of leases over a small pool, beside a model that remembers what was written where.

    ``contents`` is the KV store's truth: for each block the tokens written into it, with all tokens before them.
    """

    mode: Literal["off", "radix"] = "radix"

    def __init__(self) -> None:
        super().__init__()
        self.manager = BlockManager(10, 2, self.mode)
        self.leases: list[tuple[Lease, list[int], int]] = []
        self.contents: dict[int, tuple[str, tuple[int, ...]]] = {}

    @rule(tokens=st.lists(st.integers(0, 1), min_size=1, max_size=12), salt=st.sampled_from(["", "b"]))
    def open(self, tokens: list[int], salt: str) -> None:
        lease = self.manager.match(tokens, salt)
        cached = len(lease.blocks) * 2
        assert cached < len(tokens)
        self.check_contents(lease, tokens, cached)
        if self.manager.reserve(lease, len(tokens)):
            self.leases.append((lease, tokens, cached))
        else:
            self.manager.release(lease)

    @precondition(lambda self: self.leases)
    @rule(data=st.data())
    def compute(self, data: st.DataObject) -> None:
        index = data.draw(st.integers(0, len(self.leases) - 1))
        lease, tokens, done = self.leases[index]
        end = data.draw(st.integers(done, len(tokens)))
        for position in range(done, end):
            self.contents[lease.blocks[position // 2]] = (lease.salt, tuple(tokens[: position + 1]))
        self.manager.commit(lease, tokens, end)
        self.leases[index] = (lease, tokens, end)
        self.check_contents(lease, tokens, end)

    @precondition(lambda self: self.leases)
    @rule(data=st.data(), token=st.integers(0, 1))
    def grow(self, data: st.DataObject, token: int) -> None:
        lease, tokens, _ = data.draw(st.sampled_from(self.leases))
        if self.manager.reserve(lease, len(tokens) + 1):
            tokens.append(token)

    @precondition(lambda self: self.leases)
    @rule(data=st.data())
    def distrust(self, data: st.DataObject) -> None:
        lease, tokens, _ = data.draw(st.sampled_from(self.leases))
        was_shared = lease.num_committed > 0
        self.manager.distrust(lease)
        if was_shared:
            found = self.manager.match([*tokens, 0], lease.salt)
            assert len(found.blocks) == 0
            self.manager.release(found)

    @precondition(lambda self: self.leases)
    @rule(data=st.data())
    def close(self, data: st.DataObject) -> None:
        lease, _, _ = self.leases.pop(data.draw(st.integers(0, len(self.leases) - 1)))
        self.manager.release(lease)

    @invariant()
    def adds_up(self) -> None:
        manager = self.manager
        manager.check_integrity()
        assert manager.num_free + manager.num_cached + manager.num_used == manager.num_blocks
        assert manager.num_used == len({block for lease, _, _ in self.leases for block in lease.blocks})

    @invariant()
    def every_lease_sees_its_own_tokens(self) -> None:
        for lease, tokens, done in self.leases:
            self.check_contents(lease, tokens, done)

    def check_contents(self, lease: Lease, tokens: list[int], done: int) -> None:
        for end in range(2, done + 1, 2):
            assert self.contents[lease.blocks[end // 2 - 1]] == (lease.salt, tuple(tokens[:end]))

    def teardown(self) -> None:
        for lease, _, _ in self.leases:
            self.manager.release(lease)
        assert self.manager.num_used == 0


class OffMachine(ManagerMachine):
    mode: Literal["off", "radix"] = "off"


@pytest.mark.parametrize("machine", [ManagerMachine, OffMachine])
def test_blocks_always_hold_the_tokens_that_their_leases_say(machine: type[ManagerMachine]) -> None:
    """Whatever is opened, computed, shared, evicted and closed, no lease ever sees another prefix's KV."""
    run_state_machine_as_test(machine, settings=settings(max_examples=60, stateful_step_count=40, deadline=None))
