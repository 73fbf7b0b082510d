"""One priority's requests: whose turn it is, fair between tenants by the tokens that they cost.

This is start-time fair queueing (Goyal, Vin, Cheng: "Start-time Fair Queueing", 1996) with the tokens of a request as its
length, counted as they are spent, since nobody knows how long an answer gets (as in Sheng et al.: "Fairness in Serving Large
Language Models", 2024). Each tenant has a counter of virtual tokens, those spent for it divided by its weight; the tenant
with the lowest counter starts its oldest request. Who comes back after a pause starts at the *virtual time*, the lowest
counter that waits, so idling saves nothing up.

The virtual time also moves with each start, by a token shared among all weights. So a stream of ever new tenants cannot stand
before an old one for good: of later requests at most W * (2 * lead + 1) + 1 start before an earlier one, W being the sum of
the weights alive and ``lead`` the virtual tokens by which its tenant's counter is ahead when its turn is next in its own line.
Requests of one tenant start in order of arrival; when there is only one, that is all.

Invariant: an account lives as long as a request of its tenant does, so there are never more accounts than requests.
"""

from __future__ import annotations

from bisect import insort
from collections import deque

from attrs import define, field

from tlserve.schedule.sequence import Sequence


@define(eq=False)
class _Account:
    """What a tenant has alive in a lane, and the virtual tokens that it has had."""

    spent: float
    weight: int
    queue: deque[Sequence] = field(factory=deque)
    num_live: int = 0


def _turn(account: _Account) -> tuple[float, int]:
    return account.spent, account.queue[0].arrival


class Lane:
    """The live requests of one priority. Engine thread only."""

    def __init__(self) -> None:
        self._accounts: dict[str, _Account] = {}
        self._returned: list[Sequence] = []
        self._virtual_time = 0.0

    @property
    def is_empty(self) -> bool:
        """Whether no request of this priority is alive."""
        return not self._accounts

    @property
    def num_accounts(self) -> int:
        """Tenants that have a request alive."""
        return len(self._accounts)

    @property
    def first(self) -> Sequence | None:
        """Who starts next: whoever had started before and was preempted, then by turns."""
        if self._returned:
            return self._returned[0]
        account = self._next_account()
        return account.queue[0] if account else None

    def lead(self, tenant: str) -> float:
        """Virtual tokens that a tenant has had beyond the virtual time."""
        return self._accounts[tenant].spent - self._virtual_time

    def join(self, sequence: Sequence) -> None:
        """A new request stands behind those of its tenant."""
        following = self._next_account()
        if following:
            self._virtual_time = max(self._virtual_time, following.spent)
        account = self._accounts.setdefault(sequence.tenant, _Account(self._virtual_time, sequence.weight))
        account.weight = sequence.weight
        if not account.queue:
            account.spent = max(account.spent, self._virtual_time)
        account.queue.append(sequence)
        account.num_live += 1

    def rejoin(self, sequence: Sequence) -> None:
        """A preempted request stands before all that have not started."""
        insort(self._returned, sequence, key=lambda other: other.rank)

    def start(self, sequence: Sequence) -> None:
        """A waiting request leaves the line to run."""
        if sequence in self._returned:
            self._returned.remove(sequence)
            return
        account = self._accounts[sequence.tenant]
        account.queue.remove(sequence)
        whole = sum(other.weight for other in self._accounts.values())
        self._virtual_time = max(self._virtual_time, account.spent) + 1.0 / whole

    def charge(self, sequence: Sequence, num_tokens: int) -> None:
        """Put tokens on the account of a request's tenant."""
        account = self._accounts[sequence.tenant]
        account.spent += num_tokens / account.weight

    def leave(self, sequence: Sequence) -> None:
        """A request has ended, wherever it stood."""
        account = self._accounts[sequence.tenant]
        if sequence in account.queue:
            account.queue.remove(sequence)
        elif sequence in self._returned:
            self._returned.remove(sequence)
        account.num_live -= 1
        if not account.num_live:
            del self._accounts[sequence.tenant]

    def _next_account(self) -> _Account | None:
        return min((account for account in self._accounts.values() if account.queue), key=_turn, default=None)
