"""Laying out the rows of a forward pass."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tlserve.errors import EngineError
from tlserve.model.batch import ForwardBatch, SequenceRows, check_text

LIMITS: dict[str, int] = {"vocab_size": 100, "num_blocks": 8, "block_size": 4}


def test_mixed_batch_lies_flat() -> None:
    """A decode, a prefill chunk without logits and a verification of two drafts, side by side."""
    batch = ForwardBatch.build(
        [
            SequenceRows([7], 9, [3, 1, 6], 1),
            SequenceRows([1, 2, 3, 4], 4, [0, 5], 0),
            SequenceRows([11, 12, 13], 2, [2, 7], 3),
        ],
        **LIMITS,
    )
    assert batch.tokens.tolist() == [7, 1, 2, 3, 4, 11, 12, 13]
    assert batch.positions.tolist() == [9, 4, 5, 6, 7, 2, 3, 4]
    assert batch.query_start.tolist() == [0, 1, 5, 8]
    assert batch.context_len.tolist() == [10, 8, 5]
    assert batch.block_tables.tolist() == [[3, 1, 6], [0, 5, 0], [2, 7, 0]]
    assert batch.logit_rows.tolist() == [0, 5, 6, 7]
    assert (batch.num_rows, batch.num_sequences) == (8, 3)


def test_every_array_is_contiguous_int32() -> None:
    """Compiled kernels read the arrays as plain memory."""
    batch = ForwardBatch.build([SequenceRows([1, 2], 3, [0, 1], 1), SequenceRows([1], 0, [2], 0)], **LIMITS)
    for name in ("tokens", "positions", "query_start", "context_len", "block_tables", "logit_rows"):
        array = getattr(batch, name)
        assert array.dtype == np.int32, name
        assert array.flags.c_contiguous, name


@st.composite
def sequences(draw: st.DrawFn) -> SequenceRows:
    start, length = draw(st.integers(0, 12)), draw(st.integers(1, 12))
    num_blocks = -(-(start + length) // 4) + draw(st.integers(0, 2))
    return SequenceRows(
        tokens=draw(st.lists(st.integers(0, 99), min_size=length, max_size=length)),
        start=start,
        block_ids=draw(st.lists(st.integers(0, 7), min_size=num_blocks, max_size=num_blocks)),
        num_logits=draw(st.integers(0, length)),
    )


@given(st.lists(sequences(), min_size=1, max_size=6))
def test_each_sequence_finds_its_own_rows(given_sequences: list[SequenceRows]) -> None:
    """Cutting the flat arrays at query_start gives every sequence back, in order."""
    batch = ForwardBatch.build(given_sequences, **LIMITS)
    logit_rows = set(batch.logit_rows.tolist())
    assert batch.logit_rows.tolist() == sorted(logit_rows)
    for number, sequence in enumerate(given_sequences):
        first, end = batch.query_start[number : number + 2].tolist()
        assert batch.tokens[first:end].tolist() == sequence.tokens
        assert batch.positions[first:end].tolist() == list(range(sequence.start, sequence.start + end - first))
        used = -(-int(batch.context_len[number]) // 4)
        assert batch.block_tables[number, :used].tolist() == list(sequence.block_ids[:used])
        assert not batch.block_tables[number, used:].any()
        assert logit_rows & set(range(first, end)) == set(range(end - sequence.num_logits, end))


@pytest.mark.parametrize(
    ("sequence", "complaint"),
    [
        (SequenceRows([], 0, [0], 0), "no tokens"),
        (SequenceRows([1], -1, [0], 1), "position -1"),
        (SequenceRows([1, 2], 0, [0], 3), "3 logit rows"),
        (SequenceRows([1, 2], 3, [0], 1), "context of 5 tokens"),
        (SequenceRows([100], 0, [0], 1), "token id 100"),
        (SequenceRows([-1], 0, [0], 1), "token id -1"),
        (SequenceRows([1], 0, [8], 1), "KV block id 8"),
        (SequenceRows([1], 0, [-1], 1), "KV block id -1"),
    ],
)
def test_nonsense_is_refused_before_it_reaches_memory(sequence: SequenceRows, complaint: str) -> None:
    """A row without a slot, or an id out of range, would write into another request's KV."""
    with pytest.raises(EngineError, match=complaint):
        ForwardBatch.build([SequenceRows([1], 0, [0], 1), sequence], **LIMITS)


def test_an_empty_pass_is_refused() -> None:
    """There is nothing to compute."""
    with pytest.raises(EngineError, match="at least one sequence"):
        ForwardBatch.build([], **LIMITS)


@pytest.mark.parametrize("tokens", [[], [1] * 6, [3, 10], [-1]])
def test_text_on_its_own_is_checked(tokens: list[int]) -> None:
    """Nothing, too much, or tokens that the model does not know."""
    with pytest.raises(EngineError):
        check_text(tokens, vocab_size=10, max_model_len=5)


def test_text_may_be_any_sequence() -> None:
    """Tuples, as requests hold them, become an array."""
    sequence: Any = (1, 2, 9)
    assert check_text(sequence, vocab_size=10, max_model_len=5).tolist() == [1, 2, 9]
