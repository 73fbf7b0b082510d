"""A scheduler whose plans are carried out by nobody, for tests of who runs when."""

from __future__ import annotations

from tlserve.cache.manager import BlockManager
from tlserve.decode.finish import FinishReason
from tlserve.names import RequestId
from tlserve.schedule.plan import Chunk, Outcome, Plan
from tlserve.schedule.scheduler import Limits, Scheduler
from tlserve.schedule.sequence import Sequence


class Desk:
    """Every sampled token is a new number."""

    def __init__(self, num_blocks: int = 1000, block_size: int = 1, *, radix: bool = False, **limits: int) -> None:
        usual = {"max_batch": 8, "max_batch_tokens": 100, "prefill_chunk": 100, "max_waiting": 100}
        self.blocks = BlockManager(num_blocks, block_size, "radix" if radix else "off")
        self.scheduler = Scheduler(self.blocks, Limits(**{**usual, **limits}))
        self.sequences: dict[int, Sequence] = {}
        self.right_drafts = 0

    def add(
        self,
        name: int,
        length: int,
        *,
        max_tokens: int = 8,
        priority: int = 0,
        first: int = 0,
        tenant: str = "",
        weight: int = 1,
    ) -> Sequence:
        """A request whose prompt counts up from ``first``."""
        sequence = Sequence(
            id=RequestId(name),
            tokens=range(first, first + length),
            max_tokens=max_tokens,
            arrival=len(self.sequences),
            priority=priority,
            tenant=tenant,
            weight=weight,
        )
        self.scheduler.add(sequence)
        self.sequences[name] = sequence
        return sequence

    def step(self) -> dict[int, int]:
        """Plan and carry out a step; the rows of each request, in the plan's order."""
        plan = self.scheduler.schedule()
        self.carry_out(plan)
        return {chunk.sequence.id: chunk.num_rows for chunk in plan.chunks}

    def carry_out(self, plan: Plan) -> None:
        self.scheduler.on_step([self.outcome(chunk) for chunk in plan.chunks])
        self.scheduler.check_integrity()

    def outcome(self, chunk: Chunk) -> Outcome:
        if not chunk.samples:
            return Outcome(chunk)
        sequence = chunk.sequence
        tokens = (*chunk.drafts[: self.right_drafts], 1000 + sequence.num_known)
        finish = FinishReason.LENGTH if sequence.num_generated + len(tokens) >= sequence.max_tokens else None
        return Outcome(chunk, tokens, finish)
