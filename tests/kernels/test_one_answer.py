"""A row's logits have the same bits in a batch of any size, in chunks of any size, on prefixes that others computed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from feeding import forward
from tlserve.model.batch import SequenceRows
from tlserve.model.load import load_runner
from tlserve.model.runner import ModelRunner
from tlserve.weights.checkpoint import open_checkpoint

BLOCK_SIZE = 16
NUM_BLOCKS = 192
TINY = ["gemma3", "llama", "llama3", "mistral", "qwen2", "qwen3"]

Load = Callable[[int], ModelRunner]
Floats = NDArray[np.float32]


@pytest.fixture(params=[*TINY, pytest.param("smollm2", marks=pytest.mark.model)])
def load(request: pytest.FixtureRequest, tiny_models: Path) -> Iterator[Load]:
    """Load one model for so many threads; they end with the test."""
    is_tiny = request.param in TINY
    path = tiny_models / f"tiny-{request.param}" if is_tiny else request.getfixturevalue("smollm2_path")
    runners: list[ModelRunner] = []

    def run(threads: int) -> ModelRunner:
        runner = load_runner(
            open_checkpoint(path),
            kernels="numba",
            weights="q4" if is_tiny else "auto",
            num_blocks=NUM_BLOCKS,
            block_size=BLOCK_SIZE,
            max_model_len=512 if is_tiny else 1024,
            threads=threads,
            report=lambda _: None,
        )
        runners.append(runner)
        return runner

    yield run
    for runner in runners:
        runner.close()


def random_text(length: int, seed: int = 0) -> list[int]:
    ids: list[int] = np.random.default_rng(seed).integers(3, 256, length).tolist()
    return ids


def test_in_batches_of_any_size(load: Load) -> None:
    """The next token of a text, alone and as the last, first or middle one of 2, 5, 16 and 33, with one thread or two."""
    text = random_text(60)
    expected = None
    for threads in (1, 2):
        runner = load(threads)
        forward(runner, [SequenceRows(text[:-1], 0, [0, 1, 2, 3], 0)])
        own = SequenceRows(text[-1:], len(text) - 1, [0, 1, 2, 3], 1)
        alone = forward(runner, [own])[0]
        expected = alone if expected is None else expected
        np.testing.assert_array_equal(alone, expected)
        for count in (2, 5, 16, 33):
            others = [SequenceRows(random_text(1 + i % 5, i), 0, [4 + i], 1) for i in range(count - 1)]
            for place in (0, count // 2, count - 1):
                got = forward(runner, [*others[:place], own, *others[place:]])
                np.testing.assert_array_equal(got[place], expected)


def test_in_chunks_of_any_size(load: Load) -> None:
    """A text in chunks of 1, 7, 64 and 512 tokens, with one thread or two: every chunk's last row is the whole text's."""
    text = random_text(512)
    blocks = list(range(512 // BLOCK_SIZE))
    whole = forward(load(1), [SequenceRows(text, 0, blocks, len(text))])
    runner = load(2)
    for size in (1, 7, 64, 512):
        for start, stop in pairwise([*range(0, len(text), size), len(text)]):
            last = forward(runner, [SequenceRows(text[start:stop], start, blocks, 1)])
            np.testing.assert_array_equal(last[0], whole[stop - 1])


def test_on_blocks_that_another_sequence_wrote(load: Load) -> None:
    """A prefix that is shared, as in the prefix cache, though its first owner ended otherwise and others run beside it."""
    head, mine, other = random_text(64), random_text(30, 1), random_text(45, 2)
    runner = load(2)
    expected = forward(runner, [SequenceRows([*head, *mine], 0, range(20, 26), 1)])
    forward(runner, [SequenceRows([*head, *other], 0, range(7), 1)])
    tails = [
        SequenceRows(other, 64, [0, 1, 2, 3, 30, 31, 32], 1),
        SequenceRows(mine, 64, [0, 1, 2, 3, 40, 41], 1),
    ]
    np.testing.assert_array_equal(forward(runner, tails)[1:], expected)


def test_after_being_computed_again(load: Load) -> None:
    """Prompt and answer in one go, as after a preemption or to verify a draft, give the logits of token by token."""
    text, prompt = random_text(90), 50
    runner = load(2)
    step = [forward(runner, [SequenceRows(text[:prompt], 0, range(6), 1)])]
    step += [forward(runner, [SequenceRows(text[i : i + 1], i, range(6), 1)]) for i in range(prompt, len(text))]
    again = forward(runner, [SequenceRows(text, 0, range(6, 12), len(text) - prompt + 1)])
    np.testing.assert_array_equal(again, np.concatenate(step))
