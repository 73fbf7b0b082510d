"""The waiting line: highest priority first, then order of arrival. Nobody is ever pushed out of it."""

from __future__ import annotations

from bisect import bisect_left, insort

from tlserve.schedule.sequence import Sequence


def _rank(sequence: Sequence) -> tuple[int, int]:
    return sequence.rank


class WaitingLine:
    """Sequences that do not run, by rank. A preempted one keeps its rank, so it stands before those that came later."""

    def __init__(self) -> None:
        self._line: list[Sequence] = []

    def __len__(self) -> int:
        return len(self._line)

    @property
    def first(self) -> Sequence | None:
        """Who runs next."""
        return self._line[0] if self._line else None

    def add(self, sequence: Sequence) -> None:
        """Stand in line, at the place that the rank gives."""
        insort(self._line, sequence, key=_rank)

    def remove(self, sequence: Sequence) -> None:
        """Leave the line; ranks are unique, so the place is found by the rank."""
        del self._line[bisect_left(self._line, sequence.rank, key=_rank)]
