"""Decides which tokens the next step computes.

There is no prefill phase and no decode phase. A sequence knows tokens and has computed some of them; each step the
computed ones chase the known ones, within a budget. That one idea is everything:

- chunked prefill: a sequence many tokens behind catches up by a chunk per step;
- decode: a sequence one token behind computes it, and its logits yield the next known token;
- a prefix hit: some tokens are computed from the start;
- preemption: no token is computed any more, all stay known;
- speculation: guessed tokens are computed along, and stay computed if they turn out to be the known ones.

Rank is higher priority, then earlier start; among those that have not started, tenants take turns (see `lane`), which for a
single tenant is the order of arrival. Nobody overtakes the first in line. Within a step, sequences one token behind go before
longer chunks, and drafts take what is left of the budget. At most as many sequences run as the budget has tokens, so
every step has a token for each decode and at least one for the first prefill: a long prompt stalls nobody.

When blocks run out, the running sequence of worst rank is preempted: lowest priority, latest start; it keeps its rank, and
so stands before all of its priority that have not started. A waiting sequence starts when there is a slot, and blocks for
all that it knows plus one for each running sequence to grow into, so that it is not preempted at once. If it lacks those
while sequences of strictly lower priority run, it takes their places: one such newcomer per step, and only if that suffices.

Invariant: of those that have started, the best in rank computes in every step, and is never preempted but by a higher priority.
So from any moment on, the first k in rank and line end within as many steps as they have tokens, prompts and answers
together, if nobody comes before them; and how many may come before one in line is bounded too: nothing starves.

Knows ids and counts; never a logit. Whether a token ends an answer is judged by whoever samples, by the sequence's rules.
"""

from __future__ import annotations

from collections import deque

from attrs import define, evolve, field, frozen

from tlserve.cache.manager import BlockManager, Lease
from tlserve.errors import DuplicateRequest, EngineError, NeverFits, QueueFull
from tlserve.names import RequestId
from tlserve.schedule.plan import Chunk, Outcome, Plan
from tlserve.schedule.sequence import Sequence, SequenceState
from tlserve.schedule.waiting import WaitingLine


@frozen(kw_only=True)
class Limits:
    """What a step, and the scheduler, may take on.

    Attributes:
        max_batch: sequences that run at once.
        max_batch_tokens: rows of a step.
        prefill_chunk: rows of one sequence in a step, drafts aside.
        max_waiting: sequences in the waiting line, beyond which new ones are refused.

    """

    max_batch: int
    max_batch_tokens: int
    prefill_chunk: int
    max_waiting: int


@define
class Counters:
    """What has happened since the start, in tokens unless the name says otherwise."""

    num_preemptions: int = 0
    num_queried: int = 0
    num_hit: int = 0
    num_drafted: int = 0
    num_accepted: int = 0


@define
class _Step:
    """A plan in the making."""

    budget: int
    chunks: list[Chunk] = field(factory=list)
    started: list[Sequence] = field(factory=list)

    def add(self, sequence: Sequence, num_known: int) -> None:
        self.chunks.append(Chunk(sequence, sequence.num_computed, num_known, samples=num_known == sequence.num_behind))
        self.budget -= num_known


class Scheduler:
    """Holds the live sequences: ``add`` and ``abort`` at any time; ``schedule`` and ``on_step`` in turns.

    Engine thread only.
    """

    def __init__(self, blocks: BlockManager, limits: Limits) -> None:
        self._blocks = blocks
        self._limits = limits
        self._max_running = min(limits.max_batch, limits.max_batch_tokens)
        self._live: dict[RequestId, Sequence] = {}
        self._waiting = WaitingLine()
        self._running: list[Sequence] = []
        self._num_starts = 0
        self.counters = Counters()

    @property
    def num_waiting(self) -> int:
        """Sequences in the waiting line."""
        return len(self._waiting)

    @property
    def num_running(self) -> int:
        """Sequences that hold KV blocks."""
        return len(self._running)

    @property
    def live_ids(self) -> list[RequestId]:
        """Every sequence that has not ended."""
        return list(self._live)

    def has_work(self) -> bool:
        """Whether any sequence is alive."""
        return bool(self._live)

    # ---- joining and leaving -------------------------------------------------------------------------------------

    def add(self, sequence: Sequence) -> None:
        """Put a new sequence into the waiting line.

        Raises:
            DuplicateRequest: its id is alive.
            NeverFits: it needs more blocks than there are.
            QueueFull: the line is as long as it may be.

        """
        if sequence.id in self._live:
            raise DuplicateRequest(f"request {sequence.id} is still alive; wait for its end or use another id")
        needed = self._blocks.num_blocks_for(sequence.num_known + sequence.max_tokens - 1)  # the last is never computed
        if needed > self._blocks.num_blocks:
            raise NeverFits(
                f"prompt ({sequence.num_known} tokens) and max_tokens ({sequence.max_tokens}) need {needed} KV blocks of"
                f" {self._blocks.block_size} tokens; there are {self._blocks.num_blocks}: shorten one of the two"
            )
        if len(self._waiting) >= self._limits.max_waiting:
            raise QueueFull(f"{len(self._waiting)} requests wait already, the limit; try again later")
        self._live[sequence.id] = sequence
        self._waiting.join(sequence)

    def abort(self, request: RequestId) -> None:
        """End a sequence whose client does not want it any more; its blocks are back at once. Unknown ids are ignored."""
        self._end(request, SequenceState.ABORTED)

    def fail(self, request: RequestId, *, distrusted: bool = False) -> None:
        """End a sequence that cannot be continued. Like abort, it publishes no KV of the running step.

        If its KV is ``distrusted``, what earlier steps have published, or others before it, is found no more either.
        """
        if distrusted and request in self._live:
            self._blocks.distrust(self._live[request].held_lease())
        self._end(request, SequenceState.FAILED)

    def _end(self, request: RequestId, state: SequenceState) -> None:
        sequence = self._live.pop(request, None)
        if sequence is None:
            return
        self._waiting.leave(sequence)
        if sequence.state is SequenceState.RUNNING:
            self._running.remove(sequence)
        lease = sequence.end(state)
        if lease is not None:
            self._blocks.release(lease)

    # ---- deciding ------------------------------------------------------------------------------------------------

    def schedule(self) -> Plan:
        """The next step. It must be executed and told to ``on_step``, or its sequences ended, before the next call."""
        step = _Step(self._limits.max_batch_tokens)
        self._make_way(step)
        self._continue_decodes(step)
        self._continue_prefills(step)
        self._add_drafts(step)
        return Plan(tuple(step.chunks), tuple(step.started))

    def _make_way(self, step: _Step) -> None:
        """Let the first in line take the place of running sequences of lower priority, if it needs to and can.

        This comes before any row is planned, so that whoever is preempted has none in this step.
        """
        first = self._waiting.first
        if first is None:
            return
        lower = [sequence for sequence in self._running_by_rank() if sequence.priority < first.priority]
        if not lower:
            return
        lease = self._blocks.match(first.tokens, first.salt)
        if not self._has_room(first, lease, without=lower):
            self._blocks.release(lease)
            return
        while not self._has_room(first, lease):
            self._preempt(lower.pop())
        self._admit(first, lease, step)

    def _continue_decodes(self, step: _Step) -> None:
        """One row for each sequence that is one token behind, best rank first."""
        for sequence in self._running_by_rank():
            if sequence.state is SequenceState.RUNNING and sequence.num_behind == 1 and self._secure(sequence):
                step.add(sequence, 1)

    def _continue_prefills(self, step: _Step) -> None:
        """Chunks for those further behind, best rank first, while the budget lasts."""
        behind = deque(sequence for sequence in self._running_by_rank() if sequence.num_behind > 1)
        while step.budget:
            sequence = self._next_prefill(behind, step)
            if sequence is None:
                return
            step.add(sequence, min(sequence.num_behind, self._limits.prefill_chunk, step.budget))

    def _next_prefill(self, behind: deque[Sequence], step: _Step) -> Sequence | None:
        """The best rank among those that run and the first in line, if that one can start."""
        first = self._waiting.first
        if first is not None and (not behind or first.rank < behind[0].rank) and self._start(first, step):
            return first
        return behind.popleft() if behind else None

    def _add_drafts(self, step: _Step) -> None:
        """Fill what is left of the budget with guesses, without taking a block that somebody is about to need."""
        for index, chunk in enumerate(step.chunks):
            drafter = chunk.sequence.drafter
            if drafter is None or not step.budget or chunk.num_known > 1 or not chunk.samples:
                continue
            sequence = chunk.sequence
            drafts = drafter.propose(sequence.tokens, min(step.budget, sequence.max_drafts))
            drafts = drafts[: self._room_for_drafts(sequence, len(drafts))]
            if drafts:
                step.chunks[index] = evolve(chunk, drafts=drafts)
                step.budget -= len(drafts)

    # ---- learning what came of it ----------------------------------------------------------------------------------

    def on_step(self, outcomes: list[Outcome]) -> None:
        """Take in a step: computed positions, new tokens, ends. Only now, when the KV is in place, is it published."""
        for outcome in outcomes:
            sequence, chunk = outcome.chunk.sequence, outcome.chunk
            sequence.advance(chunk.num_known + outcome.num_accepted, outcome.tokens)
            self._waiting.charge(sequence, len(outcome.tokens))
            self._blocks.commit(sequence.held_lease(), sequence.tokens, sequence.num_computed)
            if sequence.drafter is not None and chunk.drafts:
                sequence.drafter.learn(len(chunk.drafts), outcome.num_accepted)
                self.counters.num_drafted += len(chunk.drafts)
                self.counters.num_accepted += outcome.num_accepted
            if outcome.finish is not None:
                self._end(sequence.id, SequenceState.FINISHED)

    def check_integrity(self) -> None:
        """The blocks add up, and each live sequence is in one place.

        Raises:
            EngineError: they do not.

        """
        self._blocks.check_integrity()
        states = [sequence.state for sequence in self._live.values()]
        waiting, running = states.count(SequenceState.WAITING), states.count(SequenceState.RUNNING)
        if (waiting, running, waiting + running) != (len(self._waiting), len(self._running), len(self._live)):
            raise EngineError(
                f"{len(self._live)} live requests are not {len(self._waiting)} waiting + {len(self._running)}"
            )
        if not self._running and self._blocks.num_used:
            raise EngineError(f"nothing runs, but {self._blocks.num_used} KV blocks are used")

    # ---- moving sequences ------------------------------------------------------------------------------------------

    def _running_by_rank(self) -> list[Sequence]:
        return sorted(self._running, key=lambda sequence: sequence.rank)

    def _start(self, sequence: Sequence, step: _Step) -> bool:
        """Start a waiting sequence if there is room for it beside those that run."""
        if len(self._running) >= self._max_running:
            return False
        lease = self._blocks.match(sequence.tokens, sequence.salt)
        if not self._has_room(sequence, lease):
            self._blocks.release(lease)
            return False
        self._admit(sequence, lease, step)
        return True

    def _has_room(self, sequence: Sequence, lease: Lease, *, without: list[Sequence] | None = None) -> bool:
        """Whether a slot and enough blocks are there, or would be without these running sequences."""
        others = len(self._running) - len(without or ())
        if others >= self._max_running:
            return False
        missing = self._blocks.num_blocks_for(sequence.num_known) - len(lease.blocks)
        leases = [other.held_lease() for other in without or ()]
        return missing + others <= self._blocks.num_available_without(leases)

    def _admit(self, sequence: Sequence, lease: Lease, step: _Step) -> None:
        num_cached = len(lease.blocks) * self._blocks.block_size
        self._blocks.reserve(lease, sequence.num_known)
        self._waiting.start(sequence)
        self._running.append(sequence)
        sequence.start(lease, num_cached, self._num_starts)
        self._num_starts += 1
        if sequence.num_starts == 1:
            step.started.append(sequence)
            self._waiting.charge(sequence, sequence.num_prompt - num_cached)
            self.counters.num_queried += sequence.num_prompt
            self.counters.num_hit += num_cached

    def _secure(self, sequence: Sequence) -> bool:
        """Blocks for all known tokens, whatever it costs those of lower rank; False if it was itself the lowest."""
        while not self._blocks.reserve(sequence.held_lease(), sequence.num_known):
            victim = max(self._running, key=lambda other: other.rank)
            self._preempt(victim)
            if victim is sequence:
                return False
        return True

    def _preempt(self, sequence: Sequence) -> None:
        self._running.remove(sequence)
        self._blocks.release(sequence.preempt())
        self._waiting.rejoin(sequence)
        self.counters.num_preemptions += 1

    def _room_for_drafts(self, sequence: Sequence, wanted: int) -> int:
        """How many of the wanted drafts have KV slots: in blocks that it has, or that nobody else will need next."""
        lease = sequence.held_lease()
        total = sequence.num_known + wanted
        missing = self._blocks.num_blocks_for(total) - len(lease.blocks)
        if missing <= self._blocks.num_available - len(self._running):
            self._blocks.reserve(lease, total)
        return min(wanted, len(lease.blocks) * self._blocks.block_size - sequence.num_known)
