"""Tiny models, runners over them, and the few steps that every test of this room takes."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import feeding
from tlserve.model.batch import SequenceRows
from tlserve.model.load import load_runner
from tlserve.model.runner import ModelRunner
from tlserve.weights.checkpoint import open_checkpoint
from tlserve.weights.contents import Checkpoint

DATA = Path(__file__).resolve().parents[1] / "data"


@pytest.fixture(scope="session")
def open_tiny() -> Callable[[str], Checkpoint]:
    """The tiny random model of a name such as "llama3"."""
    return lambda name: open_checkpoint(DATA / "models" / f"tiny-{name}")


@pytest.fixture(scope="session")
def tiny_reference() -> Callable[[str], Mapping[str, Any]]:
    """What torch computed for a tiny model: ids, next_logprobs, last_logprobs, greedy, embedding."""

    def read(name: str) -> Mapping[str, Any]:
        reference: Mapping[str, Any] = json.loads((DATA / "models" / f"tiny-{name}" / "reference.json").read_text())
        return reference

    return read


@pytest.fixture(scope="session")
def golden() -> Callable[[str], Any]:
    """A file of tests/data/golden."""
    return lambda name: json.loads((DATA / "golden" / f"{name}.json").read_text())


@pytest.fixture(scope="session")
def make_runner() -> Callable[..., ModelRunner]:
    """A numpy runner over a checkpoint, with a pool of 64 blocks of 16 unless told otherwise."""

    def make(checkpoint: Checkpoint, **settings: Any) -> ModelRunner:
        usual = {"num_blocks": 64, "block_size": 16, "max_model_len": 512, "threads": None, "report": lambda _: None}
        return load_runner(checkpoint, **{"kernels": "numpy", "weights": "auto", **usual, **settings})

    return make


@pytest.fixture(scope="session")
def forward() -> Callable[[ModelRunner, Sequence[SequenceRows]], NDArray[np.float32]]:
    """One forward pass over some sequences: logits [R, vocab]."""
    return feeding.forward


@pytest.fixture(scope="session")
def logprobs_of(
    forward: Callable[[ModelRunner, Sequence[SequenceRows]], NDArray[np.float32]],
) -> Callable[[ModelRunner, Sequence[SequenceRows]], NDArray[np.float64]]:
    """One forward pass over some sequences: logprobs [R, vocab], in float64."""

    def compute(runner: ModelRunner, sequences: Sequence[SequenceRows]) -> NDArray[np.float64]:
        logits = forward(runner, sequences).astype(np.float64)
        logits -= logits.max(axis=-1, keepdims=True)
        logprobs: NDArray[np.float64] = logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))
        return logprobs

    return compute
