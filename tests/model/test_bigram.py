"""The table runner."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from tlserve.errors import EngineError
from tlserve.model.batch import SequenceRows
from tlserve.model.bigram import BigramRunner
from tlserve.model.runner import Capacity, ModelRunner

Forward = Callable[[ModelRunner, Sequence[SequenceRows]], NDArray[np.float32]]


@pytest.fixture
def runner() -> BigramRunner:
    """After byte i the table favours byte i + 1."""
    table = np.zeros((256, 256), dtype=np.float32)
    table[np.arange(256), (np.arange(256) + 1) % 256] = 10.0
    return BigramRunner(table, Capacity(num_blocks=8, block_size=4, max_model_len=32))


def test_the_current_byte_decides(runner: BigramRunner, forward: Forward) -> None:
    """Each wanted row is the table's row of its token, whatever came before."""
    logits = forward(runner, [SequenceRows([1, 2, 97], 0, [0], 1), SequenceRows([5, 255], 3, [1, 2], 2)])
    assert logits.argmax(axis=1).tolist() == [98, 6, 0]
    assert logits.dtype == np.float32


def test_the_caller_may_change_the_logits(runner: BigramRunner, forward: Forward) -> None:
    """A sampler that masks in place does not spoil the model."""
    rows = [SequenceRows([97], 0, [0], 1)]
    forward(runner, rows)[:] = np.nan
    assert forward(runner, rows).argmax() == 98


def test_hidden_states_are_the_rows(runner: BigramRunner) -> None:
    """Embeddings of a bigram are means of logits: hidden_size is 256."""
    states = runner.run_once([0, 1])
    assert states.shape == (2, runner.hidden_size)
    assert states.argmax(axis=1).tolist() == [1, 2]


@pytest.mark.parametrize("tokens", [[], [256], [0] * 33])
def test_bad_texts_are_refused(runner: BigramRunner, tokens: list[int]) -> None:
    """Nothing, a token that is no byte, or more than the context."""
    with pytest.raises(EngineError):
        runner.run_once(tokens)
