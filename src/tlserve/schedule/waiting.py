"""The waiting line: highest priority first, then fair turns between tenants. Nobody is ever pushed out of it.

Leaves to `lane` who is next within one priority.
"""

from __future__ import annotations

from tlserve.schedule.lane import Lane
from tlserve.schedule.sequence import Sequence, SequenceState


class WaitingLine:
    """Who waits, and the accounts of whoever is alive. Every live sequence is known here until it leaves."""

    def __init__(self) -> None:
        self._lanes: dict[int, Lane] = {}
        self._length = 0

    def __len__(self) -> int:
        return self._length

    @property
    def first(self) -> Sequence | None:
        """Who runs next."""
        if not self._length:
            return None
        firsts = (self._lanes[priority].first for priority in sorted(self._lanes, reverse=True))
        return next(filter(None, firsts))

    @property
    def num_accounts(self) -> int:
        """Accounts of tenants, over all priorities."""
        return sum(lane.num_accounts for lane in self._lanes.values())

    def lead(self, sequence: Sequence) -> float:
        """Virtual tokens that a sequence's tenant has had more than its share; only so far may others overtake it."""
        return self._lane(sequence).lead(sequence.tenant)

    def join(self, sequence: Sequence) -> None:
        """A new sequence stands in line."""
        self._lanes.setdefault(sequence.priority, Lane()).join(sequence)
        self._length += 1

    def rejoin(self, sequence: Sequence) -> None:
        """A preempted one stands in line again, before all of its priority that have not started."""
        self._lane(sequence).rejoin(sequence)
        self._length += 1

    def start(self, sequence: Sequence) -> None:
        """Leave the line to run."""
        self._lane(sequence).start(sequence)
        self._length -= 1

    def charge(self, sequence: Sequence, num_tokens: int) -> None:
        """Put tokens that were computed for a sequence on its tenant's account."""
        self._lane(sequence).charge(sequence, num_tokens)

    def leave(self, sequence: Sequence) -> None:
        """Leave for good, out of the line or out of the batch; to be told before the sequence's state changes."""
        lane = self._lane(sequence)
        lane.leave(sequence)
        self._length -= sequence.state is SequenceState.WAITING
        if lane.is_empty:
            del self._lanes[sequence.priority]

    def _lane(self, sequence: Sequence) -> Lane:
        return self._lanes[sequence.priority]
