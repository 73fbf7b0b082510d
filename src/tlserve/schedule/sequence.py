"""One request on its way: the tokens it knows, how many of them are computed, and the state it is in.

Leaves to the scheduler when to move it, and to the cache which blocks it gets. The map of its tokens::

    |<-------------- tokens (known) ---------------->|<- drafts of a step ->|
    |<- prompt ->|<- generated ->|                   |   (in the plan only)
    |<---- num_computed: KV is in the lease ---->|<->|
                                           num_behind >= 1

A generated token is known before it is computed: it is the input of the next step. So a running sequence is always at
least one token behind, and exactly one when it decodes.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence as Items
from enum import Enum

from attrs import define, field

from tlserve.cache.manager import Lease
from tlserve.decode.finish import FinishReason
from tlserve.decode.speculative import PromptLookup
from tlserve.errors import EngineError
from tlserve.names import RequestId


class SequenceState(Enum):
    """Where a sequence stands, and which state may follow which.

    ::

        WAITING ---start---> RUNNING ---finish---> FINISHED
           ^----preempt---------'
        WAITING or RUNNING ---abort---> ABORTED, ---fail---> FAILED
    """

    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"
    ABORTED = "aborted"
    FAILED = "failed"


_NEXT = {
    SequenceState.WAITING: {SequenceState.RUNNING, SequenceState.ABORTED, SequenceState.FAILED},
    SequenceState.RUNNING: {
        SequenceState.WAITING,
        SequenceState.FINISHED,
        SequenceState.ABORTED,
        SequenceState.FAILED,
    },
}


def _int32(tokens: Items[int]) -> array[int]:
    return array("i", tokens)


@define(eq=False, kw_only=True)
class Sequence:
    """A live request inside the scheduler. Engine thread only.

    Attributes:
        id: the request's.
        tokens: prompt and generated tokens, int32; only ever appended to.
        num_prompt: how many of them are the prompt's.
        max_tokens: generated tokens after which it ends with LENGTH.
        stop_ids: generated tokens that end it with STOP.
        priority: higher goes first.
        arrival: position in the order of arrival, kept through preemptions.
        salt: only sequences with the same salt share KV blocks.
        tenant: on whose account its tokens go.
        weight: the tenant's share beside others of the same priority.
        drafter: proposes drafts; None when not speculating.
        state: see SequenceState; changed by the named transitions only.
        lease: its KV blocks while it runs.
        num_computed: leading tokens whose KV is in the lease.
        num_starts: how often it has left the waiting line.
        rank: smaller goes first: higher priority, then who started first and never loses that place, then arrival.

    """

    id: RequestId
    tokens: array[int] = field(converter=_int32, repr=False)
    max_tokens: int
    arrival: int
    stop_ids: frozenset[int] = field(default=frozenset(), repr=False)
    priority: int = 0
    salt: str = field(default="", repr=False)
    tenant: str = ""
    weight: int = 1
    drafter: PromptLookup | None = field(default=None, repr=False)
    num_prompt: int = field(init=False)
    state: SequenceState = field(default=SequenceState.WAITING, init=False)
    lease: Lease | None = field(default=None, init=False, repr=False)
    num_computed: int = field(default=0, init=False)
    num_starts: int = field(default=0, init=False)
    rank: tuple[int, float, int] = field(init=False, repr=False)

    def __attrs_post_init__(self) -> None:
        self.num_prompt = len(self.tokens)
        self.rank = (-self.priority, math.inf, self.arrival)

    @property
    def num_known(self) -> int:
        """Prompt and generated tokens."""
        return len(self.tokens)

    @property
    def num_behind(self) -> int:
        """Known tokens that are not computed yet."""
        return len(self.tokens) - self.num_computed

    @property
    def num_generated(self) -> int:
        """Tokens of the answer so far."""
        return len(self.tokens) - self.num_prompt

    @property
    def max_drafts(self) -> int:
        """Drafts that could still be accepted: one token of the answer always comes from the last row itself."""
        return self.max_tokens - self.num_generated - 1

    def held_lease(self) -> Lease:
        """Its KV blocks.

        Raises:
            EngineError: it does not run, so it has none.

        """
        if self.lease is None:
            raise EngineError(f"request {self.id} is {self.state.value} and holds no KV blocks")
        return self.lease

    def finish_after(self, token: int, num_generated: int) -> FinishReason | None:
        """Whether the answer ends with ``token`` as its token number ``num_generated`` (counted from 1)."""
        if token in self.stop_ids:
            return FinishReason.STOP
        return FinishReason.LENGTH if num_generated >= self.max_tokens else None

    def start(self, lease: Lease, num_cached: int, turn: int) -> None:
        """WAITING -> RUNNING, with blocks for all known tokens, the first ``num_cached`` of them computed.

        ``turn`` numbers the starts of all sequences; the first one that this sequence gets is its rank for life.
        """
        self._move(SequenceState.RUNNING)
        if not self.num_starts:
            self.rank = (-self.priority, turn, self.arrival)
        self.lease = lease
        self.num_computed = num_cached
        self.num_starts += 1

    def advance(self, num_rows: int, new_tokens: Items[int]) -> None:
        """``num_rows`` more positions are computed, and these tokens, chosen from their logits, are known."""
        self.tokens.extend(new_tokens)
        self.num_computed += num_rows

    def preempt(self) -> Lease:
        """RUNNING -> WAITING: what is known stays known, nothing is computed. Returns the lease to release."""
        self._move(SequenceState.WAITING)
        self.num_computed = 0
        return self._give_up_lease()

    def end(self, state: SequenceState) -> Lease | None:
        """To one of the last states: FINISHED, ABORTED or FAILED. Returns the lease to release, if it ran."""
        self._move(state)
        return None if self.lease is None else self._give_up_lease()

    def _move(self, state: SequenceState) -> None:
        if state not in _NEXT.get(self.state, ()):
            raise EngineError(f"request {self.id} cannot go from {self.state.value} to {state.value}")
        self.state = state

    def _give_up_lease(self) -> Lease:
        lease = self.held_lease()
        self.lease = None
        return lease
