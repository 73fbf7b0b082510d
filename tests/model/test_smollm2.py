"""The real model, SmolLM2-135M-Instruct in Q4_1, against torch in float32 over the same weights."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tlserve.model.batch import SequenceRows
from tlserve.model.runner import ModelRunner
from tlserve.weights.checkpoint import open_checkpoint

pytestmark = pytest.mark.model

LogprobsOf = Callable[[ModelRunner, Sequence[SequenceRows]], NDArray[np.float64]]
Golden = Callable[[str], Any]
BLOCKS_EACH = 16


@pytest.fixture(scope="module")
def runner(smollm2_path: Path, make_runner: Callable[..., ModelRunner]) -> ModelRunner:
    return make_runner(open_checkpoint(smollm2_path), num_blocks=8 * BLOCKS_EACH, max_model_len=2048)


def blocks_of(conversation: int) -> list[int]:
    """Every eighth block, so that no two blocks of a conversation are neighbours."""
    return list(range(conversation, 8 * BLOCKS_EACH, 8))


def test_greedy_answers_are_those_of_torch(runner: ModelRunner, golden: Golden, logprobs_of: LogprobsOf) -> None:
    """Eight conversations decoded side by side: every token exact, every listed logprob within 0.001."""
    conversations = golden("smollm2-greedy")["greedy"]
    rows = {i: SequenceRows(chat["prompt_ids"], 0, blocks_of(i), 1) for i, chat in enumerate(conversations)}
    answers: dict[int, list[int]] = {i: [] for i in rows}
    while rows:
        logprobs = logprobs_of(runner, list(rows.values()))
        for row, i in enumerate(list(rows)):
            step = conversations[i]["steps"][len(answers[i])]
            for token, logprob in step["top"]:
                assert logprobs[row, token] == pytest.approx(logprob, abs=1e-3)
            token = int(logprobs[row].argmax())
            answers[i].append(token)
            done = rows.pop(i)
            if len(answers[i]) < len(conversations[i]["steps"]):
                rows[i] = SequenceRows([token], done.start + len(done.tokens), blocks_of(i), 1)
    assert list(answers.values()) == [[step["token"] for step in chat["steps"]] for chat in conversations]


def test_teacher_forced_logprobs_are_those_of_torch(
    runner: ModelRunner, golden: Golden, logprobs_of: LogprobsOf
) -> None:
    """The logprobs of a given text at every position."""
    text = golden("smollm2-teacher-forced")
    logprobs = logprobs_of(runner, [SequenceRows(text["ids"], 0, blocks_of(0), len(text["ids"]))])
    for at in text["positions"]:
        pairs = [*at["top"], *([] if at["next"] is None else [[at["next"], at["next_logprob"]]])]
        for token, logprob in pairs:
            assert logprobs[at["position"], token] == pytest.approx(logprob, abs=1e-3)


def test_embeddings_are_those_of_torch(runner: ModelRunner, golden: Golden) -> None:
    """Mean of the final-normed states at length one: its first numbers and its sum."""
    for text in golden("smollm2-embeddings"):
        mean = runner.run_once(text["ids"]).mean(axis=0)
        embedding = mean / np.linalg.norm(mean)
        np.testing.assert_allclose(embedding[:16], text["embedding_first_16"], atol=1e-4)
        assert embedding.sum() == pytest.approx(text["sum"], abs=1e-4)
