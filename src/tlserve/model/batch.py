"""What one forward pass computes, as flat arrays: rows of several sequences side by side.

A row is one token at one position. There is no prefill batch and no decode batch: a sequence contributes one row or
hundreds. Who runs, and which blocks it owns, was decided by the scheduler.
Invariant: every row has a KV slot in its sequence's block table, and every id is inside its range.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

import numpy as np
from attrs import frozen
from numpy.typing import NDArray

from tlserve.errors import EngineError

Int32Array = NDArray[np.int32]


@frozen
class SequenceRows:
    """The rows of one sequence in the next forward pass.

    Attributes:
        tokens: the token ids to compute, at least one.
        start: the position of the first of them; KV of all positions before it is already stored.
        block_ids: the sequence's KV blocks from position 0 on; they must cover start + len(tokens) positions.
        num_logits: how many of the last rows need logits: 0 in the middle of a prefill, 1 to sample the next token,
            1 + drafts to verify drafts.

    """

    tokens: Sequence[int]
    start: int
    block_ids: Sequence[int]
    num_logits: int


@frozen(eq=False, repr=False)
class ForwardBatch:
    """One forward pass over T rows of S sequences; all arrays are C-contiguous int32.

    Attributes:
        tokens: [T] token ids.
        positions: [T] position of each row in its own sequence.
        query_start: [S + 1] sequence s owns rows query_start[s] to query_start[s + 1] - 1.
        context_len: [S] KV entries valid after this pass: position of the last row + 1.
        block_tables: [S, max_blocks] KV block ids; entries beyond a sequence's need are 0.
        logit_rows: [R] rows whose logits are wanted, ascending.

    """

    tokens: Int32Array
    positions: Int32Array
    query_start: Int32Array
    context_len: Int32Array
    block_tables: Int32Array
    logit_rows: Int32Array

    @classmethod
    def build(
        cls, sequences: Sequence[SequenceRows], *, vocab_size: int, num_blocks: int, block_size: int
    ) -> ForwardBatch:
        """Lay the sequences out in the given order.

        Raises:
            EngineError: no sequence; a sequence without tokens; a token or block id out of range; a block table
                that does not cover its rows; more logits than rows.

        """
        if not sequences:
            raise EngineError("a forward pass needs at least one sequence")
        for sequence in sequences:
            _check(sequence, block_size)
        lengths = np.array([len(sequence.tokens) for sequence in sequences], dtype=np.int32)
        starts = np.array([sequence.start for sequence in sequences], dtype=np.int32)
        query_start = np.zeros(len(sequences) + 1, dtype=np.int32)
        np.cumsum(lengths, out=query_start[1:])
        tokens = np.fromiter(chain.from_iterable(s.tokens for s in sequences), np.int32, count=int(query_start[-1]))
        context_len = starts + lengths
        block_tables = _block_tables(sequences, -(-context_len // block_size))
        _check_range("token", tokens, vocab_size)
        _check_range("KV block", block_tables, num_blocks)
        logits = np.array([sequence.num_logits for sequence in sequences], dtype=np.int32)
        return cls(
            tokens=tokens,
            positions=_ranges(starts, lengths),
            query_start=query_start,
            context_len=context_len,
            block_tables=block_tables,
            logit_rows=_ranges(query_start[1:] - logits, logits),
        )

    @property
    def num_rows(self) -> int:
        """T, the tokens that this pass computes."""
        return len(self.tokens)

    @property
    def num_sequences(self) -> int:
        """S, the sequences that take part."""
        return len(self.context_len)

    def __repr__(self) -> str:
        return f"ForwardBatch(rows={self.num_rows}, sequences={self.num_sequences}, logits={len(self.logit_rows)})"


def check_text(tokens: Sequence[int], *, vocab_size: int, max_model_len: int) -> Int32Array:
    """The tokens of one text that is computed on its own, as an array [T].

    Raises:
        EngineError: no tokens, more than max_model_len, or one outside the vocabulary.

    """
    if not 0 < len(tokens) <= max_model_len:
        raise EngineError(f"{len(tokens)} tokens are not a text of 1 to {max_model_len} tokens")
    ids = np.array(tokens, dtype=np.int32)
    _check_range("token", ids, vocab_size)
    return ids


def _check(sequence: SequenceRows, block_size: int) -> None:
    num_rows = len(sequence.tokens)
    if num_rows == 0:
        raise EngineError("a sequence of the forward pass has no tokens")
    if sequence.start < 0:
        raise EngineError(f"a sequence of the forward pass starts at position {sequence.start}; the first is 0")
    if not 0 <= sequence.num_logits <= num_rows:
        raise EngineError(f"{sequence.num_logits} logit rows are asked of a sequence that has {num_rows} rows")
    end = sequence.start + num_rows
    if len(sequence.block_ids) * block_size < end:
        raise EngineError(
            f"{len(sequence.block_ids)} KV blocks of {block_size} tokens do not cover a context of {end} tokens"
        )


def _block_tables(sequences: Sequence[SequenceRows], num_used: Int32Array) -> Int32Array:
    """[S, max_blocks]; blocks that a sequence owns beyond its context are left out, they hold nothing yet."""
    tables = np.zeros((len(sequences), int(num_used.max())), dtype=np.int32)
    for row, sequence, used in zip(tables, sequences, num_used.tolist(), strict=True):
        row[:used] = sequence.block_ids[:used]
    return tables


def _ranges(starts: Int32Array, lengths: Int32Array) -> Int32Array:
    """The concatenation of start, start + 1, ... start + length - 1 over all pairs."""
    before = np.cumsum(lengths) - lengths
    return np.arange(lengths.sum(), dtype=np.int32) + np.repeat(starts - before, lengths).astype(np.int32)


def _check_range(what: str, ids: Int32Array, limit: int) -> None:
    low, high = int(ids.min()), int(ids.max())
    if low < 0 or high >= limit:
        raise EngineError(f"{what} id {low if low < 0 else high} is outside 0 to {limit - 1}")
