"""Feeding a runner by hand, for tests below the engine."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tlserve.model.batch import ForwardBatch, SequenceRows
from tlserve.model.runner import ModelRunner


def forward(runner: ModelRunner, sequences: Sequence[SequenceRows]) -> NDArray[np.float32]:
    """One forward pass over some sequences: logits [R, vocab]."""
    batch = ForwardBatch.build(
        sequences, vocab_size=runner.vocab_size, num_blocks=runner.num_blocks, block_size=runner.block_size
    )
    return runner.forward(batch)
