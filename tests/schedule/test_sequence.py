from __future__ import annotations

from collections.abc import Callable

import pytest

from tlserve.cache.manager import Lease
from tlserve.decode.finish import FinishReason
from tlserve.errors import EngineError
from tlserve.names import RequestId
from tlserve.schedule.sequence import Sequence, SequenceState


@pytest.fixture
def sequence() -> Sequence:
    return Sequence(id=RequestId(7), tokens=[5, 6, 7], max_tokens=3, arrival=0, stop_ids=frozenset({9}))


def test_computed_tokens_chase_known_ones(sequence: Sequence) -> None:
    """A chunk brings the computed ones nearer; a new token is known and not computed."""
    sequence.start(Lease(""), 1, turn=0)
    assert (sequence.num_known, sequence.num_behind) == (3, 2)
    sequence.advance(2, [8])
    assert (sequence.num_known, sequence.num_behind, sequence.num_generated) == (4, 1, 1)


def test_preemption_keeps_what_is_known(sequence: Sequence) -> None:
    """Only the computing is undone: tokens and rank stay, and a second start is counted as one."""
    sequence.start(Lease(""), 0, turn=5)
    sequence.advance(3, [8])
    rank = sequence.rank
    sequence.preempt()
    assert (sequence.state, sequence.num_generated, sequence.num_behind) == (SequenceState.WAITING, 1, 4)
    sequence.start(Lease(""), 2, turn=9)
    assert (sequence.rank, sequence.num_behind, sequence.num_starts) == (rank, 2, 2)


def test_an_answer_ends_by_a_stop_id_or_by_its_length(sequence: Sequence) -> None:
    """A stop id wins over the length when both come with the same token."""
    assert sequence.finish_after(1, 2) is None
    assert sequence.finish_after(1, 3) is FinishReason.LENGTH
    assert sequence.finish_after(9, 1) is FinishReason.STOP
    assert sequence.finish_after(9, 3) is FinishReason.STOP


@pytest.mark.parametrize(
    "transition",
    [
        lambda sequence: sequence.preempt(),
        lambda sequence: sequence.end(SequenceState.FINISHED),
        lambda sequence: sequence.held_lease(),
    ],
)
def test_a_waiting_sequence_cannot_do_what_a_running_one_can(
    sequence: Sequence, transition: Callable[[Sequence], object]
) -> None:
    """A transition that the state does not allow is an error that names both."""
    with pytest.raises(EngineError, match=r"request 7 (cannot go from waiting|is waiting)"):
        transition(sequence)


@pytest.mark.parametrize("last", [SequenceState.FINISHED, SequenceState.ABORTED, SequenceState.FAILED])
def test_the_end_is_final(sequence: Sequence, last: SequenceState) -> None:
    """Nothing follows an end, not even another end."""
    lease = Lease("")
    sequence.start(lease, 0, turn=0)
    assert sequence.end(last) is lease
    with pytest.raises(EngineError, match=f"cannot go from {last.value} to aborted"):
        sequence.end(SequenceState.ABORTED)
