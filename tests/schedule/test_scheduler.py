from __future__ import annotations

from collections.abc import Callable

import pytest
from attrs import frozen
from hypothesis import given
from hypothesis import strategies as st

from schedule.desk import Desk
from tlserve.config import SpeculativeConfig
from tlserve.decode.speculative import PromptLookup
from tlserve.errors import DuplicateRequest, NeverFits, QueueFull
from tlserve.names import RequestId
from tlserve.schedule.sequence import Sequence, SequenceState

# ---- the budget of a step --------------------------------------------------------------------------------------------


def test_decodes_go_first_and_prefills_take_the_rest() -> None:
    """A long prompt arrives beside two running answers: each step still has a row for both, and never more than it may."""
    desk = Desk(max_batch_tokens=10)
    desk.add(1, 2)
    desk.add(2, 2)
    desk.step()
    desk.add(3, 25)
    assert [desk.step() for _ in range(5)] == [
        {1: 1, 2: 1, 3: 8},
        {1: 1, 2: 1, 3: 8},
        {1: 1, 2: 1, 3: 8},
        {1: 1, 2: 1, 3: 1},
        {1: 1, 2: 1, 3: 1},
    ]
    assert desk.sequences[3].num_generated == 2


def test_a_chunk_is_at_most_prefill_chunk() -> None:
    """The rest of the budget goes to the next prompt."""
    desk = Desk(max_batch_tokens=10, prefill_chunk=4)
    desk.add(1, 6)
    desk.add(2, 9)
    assert [desk.step() for _ in range(3)] == [{1: 4, 2: 4}, {1: 2, 2: 4}, {1: 1, 2: 1}]


def test_only_the_chunk_that_reaches_the_end_samples() -> None:
    """Within a prefill no logits are asked for, and no token comes."""
    desk = Desk(prefill_chunk=2)
    sequence = desk.add(1, 5)
    wanted = []
    for _ in range(4):
        plan = desk.scheduler.schedule()
        wanted.append([(chunk.start, chunk.num_logits) for chunk in plan.chunks])
        desk.carry_out(plan)
    assert wanted == [[(0, 0)], [(2, 0)], [(4, 1)], [(5, 1)]]
    assert sequence.num_generated == 2


def test_no_more_sequences_run_than_the_budget_has_tokens() -> None:
    """A budget smaller than max_batch still has a token for everyone who runs, so nobody is left standing half done."""
    desk = Desk(max_batch=8, max_batch_tokens=3)
    for name in range(5):
        desk.add(name, 4, max_tokens=3)
    generated = []
    while desk.scheduler.has_work():
        assert sum(desk.step().values()) <= 3
        assert desk.scheduler.num_running <= 3
        generated.append([sequence.num_generated for sequence in desk.sequences.values()])
    assert generated[-1] == [3] * 5
    assert all(one[k] >= one[k + 1] for one in generated for k in range(4))


def test_prefix_hits_are_computed_from_the_start() -> None:
    """A prompt whose beginning is cached costs the budget only its new part, and the hit is counted in tokens."""
    desk = Desk(radix=True, block_size=4)
    desk.add(1, 10, max_tokens=1)
    desk.step()
    later = desk.add(2, 12)
    assert desk.step() == {2: 4}
    assert later.num_generated == 1
    assert (desk.scheduler.counters.num_queried, desk.scheduler.counters.num_hit) == (22, 8)


# ---- who goes first --------------------------------------------------------------------------------------------------


def test_waiting_requests_start_by_priority_then_arrival() -> None:
    """A late request of higher priority starts before all others that wait."""
    desk = Desk(max_batch=1)
    order = []
    for name, priority in [(1, 0), (2, 0), (3, 5), (4, 5), (5, -1)]:
        desk.add(name, 1, max_tokens=1, priority=priority)
    while desk.scheduler.has_work():
        order += list(desk.step())
    assert order == [3, 4, 1, 2, 5]


def test_a_prefill_of_higher_priority_overtakes_a_half_done_one() -> None:
    """The budget for chunks goes by rank, running or not."""
    desk = Desk(max_batch_tokens=10)
    desk.add(1, 30)
    desk.step()
    desk.add(2, 15, priority=1)
    assert [desk.step() for _ in range(3)] == [{2: 10}, {2: 5, 1: 5}, {2: 1, 1: 9}]


def test_nobody_overtakes_a_request_that_waits_for_blocks() -> None:
    """A small request behind a large one waits, so the large one's turn comes; running ones go on."""
    desk = Desk(num_blocks=20)
    desk.add(1, 10, max_tokens=4)
    desk.step()
    desk.add(2, 15, max_tokens=1)
    desk.add(3, 1, max_tokens=1)
    assert [list(desk.step()) for _ in range(4)] == [[1], [1], [1], [2, 3]]


def test_a_start_leaves_room_for_the_running_to_grow() -> None:
    """A request that fits exactly, but would be preempted with the next token, waits instead."""
    desk = Desk(num_blocks=10)
    desk.add(1, 4, max_tokens=3)
    desk.step()
    desk.add(2, 5, max_tokens=2)
    while desk.scheduler.has_work():
        desk.step()
    assert desk.scheduler.counters.num_preemptions == 0


def test_an_urgent_prompt_is_computed_though_decodes_use_up_the_budget() -> None:
    """With a decode for each token of the budget, a newcomer of higher priority takes a place and its token."""
    desk = Desk(max_batch_tokens=2)
    desk.add(1, 1)
    desk.add(2, 1)
    desk.step()
    desk.add(3, 4, priority=1)
    assert desk.step() == {1: 1, 3: 1}


# ---- preemption ------------------------------------------------------------------------------------------------------


def test_the_lowest_priority_is_preempted_newest_first() -> None:
    """When blocks run out, rank decides who recomputes; it comes back, with its tokens, when there is room."""
    desk = Desk(num_blocks=13)
    desk.add(1, 3, max_tokens=8, priority=1)
    desk.add(2, 3, max_tokens=8)
    desk.add(3, 3, max_tokens=8)
    running = []
    while desk.scheduler.has_work():
        desk.step()
        running.append([n for n, sequence in desk.sequences.items() if sequence.state is SequenceState.RUNNING])
    assert running[0] == [1, 2, 3]
    assert running.index([1, 2]) < running.index([1]) < len(running)
    assert [sequence.num_generated for sequence in desk.sequences.values()] == [8, 8, 8]
    assert desk.scheduler.counters.num_preemptions >= 2


def test_a_sequence_may_preempt_itself() -> None:
    """The one that needs a block is itself the one of worst rank: it steps back, and comes back later."""
    desk = Desk(num_blocks=9)
    desk.add(1, 3, max_tokens=5)
    desk.add(2, 3, max_tokens=5)
    assert [desk.step() for _ in range(3)] == [{1: 3, 2: 3}, {1: 1, 2: 1}, {1: 1}]
    assert desk.sequences[2].state is SequenceState.WAITING
    assert [desk.step() for _ in range(3)] == [{1: 1}, {1: 1}, {2: 5}]
    assert desk.scheduler.counters.num_preemptions == 1


def test_a_higher_priority_takes_a_slot() -> None:
    """With the batch full, the newest of the lowest priority makes way, in one step."""
    desk = Desk(max_batch=2)
    desk.add(1, 3)
    desk.add(2, 3)
    desk.step()
    desk.add(3, 4, priority=1)
    assert desk.step() == {1: 1, 3: 4}
    assert desk.sequences[2].state is SequenceState.WAITING


def test_a_higher_priority_takes_blocks() -> None:
    """Only as many are preempted as it needs."""
    desk = Desk(num_blocks=22)
    for name in (1, 2, 3):
        desk.add(name, 6)
    desk.step()
    desk.add(4, 7, priority=1)
    assert desk.step() == {1: 1, 2: 1, 4: 7}


def test_equal_priority_takes_nothing() -> None:
    """Among equals, who runs goes on."""
    desk = Desk(max_batch=1)
    desk.add(1, 3, priority=2)
    desk.step()
    desk.add(2, 3, priority=2)
    assert desk.step() == {1: 1}
    assert desk.scheduler.counters.num_preemptions == 0


def test_nobody_is_preempted_in_vain() -> None:
    """If all lower ones together could not make room beside the equal ones, none of them is disturbed."""
    desk = Desk(num_blocks=20)
    desk.add(1, 10, priority=1)
    desk.add(2, 3)
    desk.step()
    desk.add(3, 12, max_tokens=1, priority=1)
    for _ in range(3):
        assert desk.step() == {1: 1, 2: 1}
    assert desk.scheduler.counters.num_preemptions == 0


def test_room_is_judged_with_the_prefix_that_is_shared() -> None:
    """A newcomer that shares most of its prompt with those who stay needs few places."""
    desk = Desk(num_blocks=18, radix=True)
    desk.add(1, 11, priority=1, max_tokens=5)
    desk.add(2, 5, first=500)
    desk.step()
    desk.add(3, 12, priority=1, max_tokens=1)
    desk.step()
    assert desk.sequences[2].state is SequenceState.WAITING
    assert desk.sequences[3].state is SequenceState.FINISHED


# ---- admission -------------------------------------------------------------------------------------------------------


def test_what_can_never_fit_is_refused_with_both_numbers() -> None:
    """The last token of an answer is never computed, so a request may need exactly all blocks."""
    desk = Desk(num_blocks=5, block_size=4)
    with pytest.raises(NeverFits, match=r"need 6 KV blocks of 4 tokens; there are 5"):
        desk.add(1, 10, max_tokens=12)
    desk.add(2, 10, max_tokens=11)
    while desk.scheduler.has_work():
        desk.step()
    assert desk.sequences[2].num_generated == 11


def test_a_full_line_refuses_whoever_comes_and_displaces_nobody() -> None:
    """Also a request of high priority is refused rather than pushing another one out."""
    desk = Desk(max_waiting=2)
    desk.add(1, 1)
    desk.add(2, 1)
    with pytest.raises(QueueFull, match="2 requests wait already"):
        desk.add(3, 1, priority=100)
    assert list(desk.step()) == [1, 2]
    desk.add(3, 1)


def test_an_id_is_taken_until_its_request_ends() -> None:
    """Twice the same live id is refused, and the first request is not touched."""
    desk = Desk()
    desk.add(1, 3, max_tokens=1)
    with pytest.raises(DuplicateRequest, match="request 1 is still alive"):
        desk.add(1, 3)
    desk.step()
    desk.add(1, 3)


# ---- leaving ---------------------------------------------------------------------------------------------------------


def test_abort_returns_blocks_at_once_in_every_state() -> None:
    """Waiting, half prefilled, decoding, preempted, ended, never seen: abort is always right and never an error."""
    desk = Desk(num_blocks=30, max_batch_tokens=6, max_batch=3)
    desk.add(1, 5)
    desk.step()
    desk.add(2, 20)
    desk.step()
    desk.add(3, 5)
    for name in (3, 2, 2, 1, 77):
        desk.scheduler.abort(RequestId(name))
        desk.scheduler.check_integrity()
    assert desk.blocks.num_free == 30
    assert not desk.scheduler.has_work()


def test_an_unfinished_chunk_is_not_published() -> None:
    """A request that ends between plan and outcome leaves only what earlier steps have computed in the cache."""
    desk = Desk(radix=True, block_size=2, prefill_chunk=4)
    desk.add(1, 20)
    desk.step()
    desk.scheduler.schedule()
    desk.scheduler.abort(RequestId(1))
    assert desk.blocks.num_cached == 2


# ---- drafts ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def draft() -> Callable[[Sequence], None]:
    """Make a sequence guess four tokens in every step: its prompt is one number, repeated."""

    def prepare(sequence: Sequence) -> None:
        for index in range(sequence.num_known):
            sequence.tokens[index] = 9
        sequence.drafter = PromptLookup(SpeculativeConfig(num_tokens=4, ngram_max=1, ngram_min=1))

    return prepare


def test_accepted_drafts_are_computed_and_rejected_ones_are_not(draft: Callable[[Sequence], None]) -> None:
    """Two right guesses of four: three tokens are known, and the answer is one token behind as ever."""
    desk = Desk()
    sequence = desk.add(1, 6)
    draft(sequence)
    desk.step()
    sequence.tokens[-1] = 9
    desk.right_drafts = 2
    assert desk.step() == {1: 5}
    assert (sequence.num_generated, sequence.num_behind) == (4, 1)
    assert (desk.scheduler.counters.num_drafted, desk.scheduler.counters.num_accepted) == (4, 2)


def test_drafts_take_what_prefills_leave(draft: Callable[[Sequence], None]) -> None:
    """Guesses come last: with a prompt that fills the step there are none."""
    desk = Desk(max_batch_tokens=8)
    sequence = desk.add(1, 6)
    draft(sequence)
    desk.step()
    sequence.tokens[-1] = 9
    desk.add(2, 12)
    assert desk.step() == {1: 1, 2: 7}
    sequence.tokens[-1] = 9
    assert desk.step() == {1: 3, 2: 5}


def test_drafts_share_what_is_left(draft: Callable[[Sequence], None]) -> None:
    """Two that guess do not exceed the budget together."""
    desk = Desk(max_batch_tokens=7)
    for name in (1, 2):
        draft(desk.add(name, 3))
    desk.step()
    for sequence in desk.sequences.values():
        sequence.tokens[-1] = 9
    assert desk.step() == {1: 5, 2: 2}


def test_drafts_stop_before_the_last_token(draft: Callable[[Sequence], None]) -> None:
    """An answer with two tokens to go can accept one draft; with one to go, none."""
    desk = Desk()
    sequence = desk.add(1, 6, max_tokens=3)
    draft(sequence)
    desk.step()
    sequence.tokens[-1] = 9
    assert desk.step() == {1: 2}
    sequence.tokens[-1] = 9
    assert desk.step() == {1: 1}


def test_drafts_take_no_block_that_is_needed(draft: Callable[[Sequence], None]) -> None:
    """A guess is not worth a preemption: with a block left for each running request and no more, none is drafted."""
    desk = Desk(num_blocks=17)
    sequence = desk.add(1, 6, max_tokens=5)
    draft(sequence)
    desk.add(2, 6, max_tokens=5)
    desk.step()
    sequence.tokens[-1] = 9
    assert desk.step() == {1: 1, 2: 1}


# ---- the law ---------------------------------------------------------------------------------------------------------


@frozen
class Load:
    """Requests that arrive over time, as (length, max_tokens, priority, tenant, steps since the one before)."""

    requests: list[tuple[int, int, int, str, int]]
    limits: dict[str, int]
    num_blocks: int
    radix: bool


loads = st.builds(
    Load,
    requests=st.lists(
        st.tuples(
            st.integers(1, 12), st.integers(1, 8), st.integers(-1, 1), st.sampled_from(["", "", "b"]), st.integers(0, 6)
        ),
        min_size=1,
        max_size=8,
    ),
    limits=st.fixed_dictionaries(
        {"max_batch": st.integers(1, 4), "max_batch_tokens": st.integers(1, 9), "prefill_chunk": st.integers(1, 9)}
    ),
    num_blocks=st.sampled_from([19, 24, 60]),
    radix=st.booleans(),
)


@given(loads)
def test_the_best_rank_always_computes_and_so_nothing_starves(load: Load) -> None:
    """In every step the live request of best rank has rows, or the first in line if none of the highest priority has started.

    No step is over its limits, and all end within the bound.

    The bound: from the last arrival, as many steps as the requests have tokens.
    """
    desk = Desk(load.num_blocks, radix=load.radix, **load.limits)
    for name, (length, max_tokens, priority, tenant, pause) in enumerate(load.requests):
        run(desk, load, pause)
        desk.add(name, length, max_tokens=max_tokens, priority=priority, tenant=tenant)
    assert run(desk, load) <= sum(length + max_tokens for length, max_tokens, *_ in load.requests)
    wanted = [max_tokens for _, max_tokens, *_ in load.requests]
    assert [sequence.num_generated for sequence in desk.sequences.values()] == wanted


def run(desk: Desk, load: Load, max_steps: int = 1000) -> int:
    """Step while there is work; returns how often."""
    for step in range(max_steps):
        if not desk.scheduler.has_work():
            return step
        best = best_of(desk)
        rows = desk.step()
        assert best.id in rows
        assert sum(rows.values()) <= load.limits["max_batch_tokens"]
        assert max(rows.values()) <= load.limits["prefill_chunk"]
        assert len(rows) <= load.limits["max_batch"]
    return max_steps


def best_of(desk: Desk) -> Sequence:
    """The best in rank, where the first in line stands for all who have not started."""
    started = [desk.sequences[name] for name in desk.scheduler.live_ids if desk.sequences[name].num_starts]
    first = desk.scheduler._waiting.first
    return min([*started, *([first] if first else [])], key=lambda sequence: sequence.rank)
