"""Turns a plan into the arrays of a forward pass. Adds no decision: every row and block was chosen by the scheduler."""

from __future__ import annotations

from tlserve.model.batch import ForwardBatch, SequenceRows
from tlserve.model.runner import ModelRunner
from tlserve.schedule.plan import Chunk, Plan


def assemble(plan: Plan, runner: ModelRunner) -> ForwardBatch:
    """The rows of a plan in its order, checked against the runner's vocabulary and pool."""
    return ForwardBatch.build(
        [_rows(chunk) for chunk in plan.chunks],
        vocab_size=runner.vocab_size,
        num_blocks=runner.num_blocks,
        block_size=runner.block_size,
    )


def _rows(chunk: Chunk) -> SequenceRows:
    """The known tokens of a chunk, then its drafts."""
    sequence = chunk.sequence
    tokens = sequence.tokens[chunk.start : chunk.start + chunk.num_known]
    tokens.extend(chunk.drafts)
    return SequenceRows(tokens, chunk.start, sequence.held_lease().blocks, chunk.num_logits)
