"""The real model through the fast runner, against what torch in float32 makes of the same file."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from feeding import forward
from tlserve.model.batch import SequenceRows
from tlserve.model.load import load_runner
from tlserve.model.matrix_format import WeightFormat
from tlserve.model.numba_runner import NumbaRunner
from tlserve.model.runner import ModelRunner
from tlserve.weights.checkpoint import open_checkpoint

pytestmark = pytest.mark.model

GOLDEN = Path(__file__).resolve().parents[1] / "data" / "golden"
BLOCKS_EACH = 24


def load(path: Path, kernels: Any, weights: WeightFormat = "auto") -> ModelRunner:
    return load_runner(
        open_checkpoint(path),
        kernels=kernels,
        weights=weights,
        num_blocks=8 * BLOCKS_EACH,
        block_size=16,
        max_model_len=2048,
        threads=2,
        report=lambda _: None,
    )


def logprobs(runner: ModelRunner, ids: list[int]) -> NDArray[np.float64]:
    """Of every position of a text."""
    wide = forward(runner, [SequenceRows(ids, 0, list(range(BLOCKS_EACH)), len(ids))]).astype(np.float64)
    wide -= wide.max(axis=-1, keepdims=True)
    result: NDArray[np.float64] = wide - np.log(np.exp(wide).sum(axis=-1, keepdims=True))
    return result


@pytest.fixture(scope="module")
def runner(smollm2_path: Path) -> Iterator[ModelRunner]:
    runner = load(smollm2_path, "numba")
    assert isinstance(runner, NumbaRunner)
    with closing(runner):
        yield runner


@pytest.fixture(scope="module")
def conversations() -> Any:
    return json.loads((GOLDEN / "smollm2-greedy.json").read_text())["greedy"]


@pytest.fixture(scope="module")
def plain_logprobs(smollm2_path: Path, conversations: Any) -> dict[str, NDArray[np.float64]]:
    """Of one conversation, by the plain runner in float32, with the file's weights and with rounded ones."""
    text = whole_text(conversations[3])
    return {
        "auto": logprobs(load(smollm2_path, "numpy"), text),
        "q4": logprobs(load(smollm2_path, "numpy", "q4"), text),
    }


def whole_text(chat: Any) -> list[int]:
    return [*chat["prompt_ids"], *(step["token"] for step in chat["steps"])]


def test_greedy_answers_are_those_of_torch(runner: ModelRunner, conversations: Any) -> None:
    """Eight conversations side by side, every token; 8-bit activations would change five of them."""
    blocks = [list(range(BLOCKS_EACH * i, BLOCKS_EACH * (i + 1))) for i in range(8)]
    rows = [SequenceRows(chat["prompt_ids"], 0, own, 1) for chat, own in zip(conversations, blocks, strict=True)]
    answers: list[list[int]] = [[] for _ in rows]
    for _ in range(max(len(chat["steps"]) for chat in conversations)):
        for answer, logits in zip(answers, forward(runner, rows), strict=True):
            answer.append(int(logits.argmax()))
        rows = [
            SequenceRows(answer[-1:], row.start + len(row.tokens), row.block_ids, 1)
            for row, answer in zip(rows, answers, strict=True)
        ]
    for chat, answer in zip(conversations, answers, strict=True):
        expected = [step["token"] for step in chat["steps"]]
        assert answer[: len(expected)] == expected


@pytest.mark.parametrize(("weights", "most"), [("auto", 1e-6), ("q8", 1e-6), ("q4", 1e-6), ("f32", 1e-9)])
def test_divergence_from_float32_is_tiny(
    conversations: Any,
    smollm2_path: Path,
    plain_logprobs: dict[str, NDArray[np.float64]],
    weights: WeightFormat,
    most: float,
) -> None:
    """Mean KL over every position of a conversation, of the same weights; 8-bit activations have 3e-3."""
    expected = plain_logprobs["q4" if weights == "q4" else "auto"]  # eight bits hold all that is in this file
    fast = logprobs(load(smollm2_path, "numba", weights), whole_text(conversations[3]))
    assert (np.exp(expected) * (expected - fast)).sum(axis=-1).mean() < most


def test_a_conversation_has_one_answer(runner: ModelRunner, conversations: Any) -> None:
    """Bitwise: alone in one chunk, token by token in other blocks, beside another conversation."""
    ids, blocks = conversations[1]["prompt_ids"], list(range(BLOCKS_EACH))
    whole = forward(runner, [SequenceRows(ids, 0, blocks, len(ids))])
    single = [forward(runner, [SequenceRows([token], i, blocks[::-1], 1)]) for i, token in enumerate(ids)]
    np.testing.assert_array_equal(np.concatenate(single), whole)
    other = SequenceRows(conversations[2]["prompt_ids"], 0, list(range(30, 60)), 1)
    together = forward(runner, [other, SequenceRows(ids, 0, blocks, len(ids))])
    np.testing.assert_array_equal(together[1:], whole)
