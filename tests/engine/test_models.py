from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from attrs import evolve

from engine.bench import SPECULATIVE
from tlserve.config import EngineConfig
from tlserve.decode.params import SamplingParams
from tlserve.engine.engine import Engine
from tlserve.engine.messages import Failed, GenRequest, TokenOut
from tlserve.errors import BadLogits
from tlserve.model.load import load_runner
from tlserve.names import RequestId
from tlserve.weights.checkpoint import open_checkpoint
from tlserve.weights.contents import Checkpoint
from tlserve.weights.tensor import Tensor

MODELS = Path(__file__).resolve().parents[1] / "data" / "models"
NAMES = ["gemma3", "llama", "llama3", "mistral", "qwen2", "qwen3"]

Kernels = Literal["numba", "numpy"]
Answer = list[tuple[int, float, tuple[tuple[int, float], ...]]]


def reference(name: str) -> dict[str, Any]:
    """What torch computed: the prompt ``ids`` and the ``greedy`` answer with its logprobs."""
    content: dict[str, Any] = json.loads((MODELS / f"tiny-{name}" / "reference.json").read_text())
    return content


def engine(
    name: str,
    kernels: Kernels,
    *,
    block_size: int = 16,
    num_blocks: int = 64,
    weights: Literal["auto", "q8"] = "auto",
    damaged: int | None = None,
    **settings: Any,
) -> Engine:
    checkpoint = open_checkpoint(MODELS / f"tiny-{name}")
    runner = load_runner(
        checkpoint if damaged is None else damage(checkpoint, damaged),
        kernels=kernels,
        weights=weights,
        num_blocks=num_blocks,
        block_size=block_size,
        max_model_len=128,
        threads=2,
        report=lambda _: None,
    )
    return Engine(runner, EngineConfig(**settings), max_waiting=10)


def answers(loaded: Engine, name: str, params: SamplingParams, *, copies: int = 1) -> list[Answer]:
    """The reference's prompt, several times at once; the checked engine's answer to each."""
    prompt, length = tuple(reference(name)["ids"]), len(reference(name)["greedy"])
    requests = [
        loaded.add_request(GenRequest(prompt=prompt, params=params, seed=4, max_tokens=length)) for _ in range(copies)
    ]
    outputs: dict[RequestId, list[TokenOut]] = {request: [] for request in requests}
    while loaded.has_work():
        for out in loaded.step():
            outputs[out.id].append(out)
        loaded.check_integrity()
    return [[(out.token, out.logprob, out.top) for out in outputs[request]] for request in requests]


GREEDY = SamplingParams(temperature=0.0, logprobs=3)
SAMPLED = SamplingParams(temperature=0.8, top_p=0.9, frequency_penalty=0.3, repetition_penalty=1.1, logprobs=3)
WAYS: dict[str, dict[str, Any]] = {
    "whole": {},
    "chunks of 1": {"prefill_chunk": 1},
    "chunks of 3": {"prefill_chunk": 3},
    "chunks of 7": {"prefill_chunk": 7},
    "without a cache": {"prefix_cache": "off"},
    "speculating": {"speculative": SPECULATIVE},
}


@pytest.mark.parametrize("kernels", ["numpy", "numba"])
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("block_size", [4, 16])
@pytest.mark.parametrize("way", WAYS)
def test_greedy_answers_are_torchs(name: str, kernels: Kernels, block_size: int, way: str) -> None:
    """Cold and from the cache, whole, in chunks or guessed ahead: the tokens and logprobs that torch computes."""
    loaded = engine(name, kernels, block_size=block_size, **WAYS[way])
    expected = reference(name)["greedy"]
    for hits in (False, way != "without a cache"):
        [answer] = answers(loaded, name, GREEDY)
        assert [token for token, _, _ in answer] == [step["token"] for step in expected]
        assert [logprob for _, logprob, _ in answer] == pytest.approx([s["logprob"] for s in expected], abs=1e-4)
        assert (loaded.stats().prefix_cache_hits > 0) == hits


@pytest.mark.parametrize("weights", ["auto", "q8"])
@pytest.mark.parametrize("kernels", ["numpy", "numba"])
@pytest.mark.parametrize("name", NAMES)
def test_nan_that_a_failed_request_leaves_behind_is_seen_by_nobody(
    name: str, kernels: Kernels, weights: Literal["auto", "q8"]
) -> None:
    """Its blocks are the next ones to be lent, half filled with NaN; answers in them are those of a fresh pool."""
    prompt = reference(name)["ids"]
    bad = min(set(range(200)) - {step["token"] for step in reference(name)["greedy"]} - set(prompt))
    expected = answers(engine(name, kernels, weights=weights, damaged=bad), name, GREEDY)
    damaged = engine(name, kernels, weights=weights, damaged=bad)
    damaged.add_request(GenRequest(prompt=(*prompt[:20], bad) * 2, params=GREEDY, seed=0, max_tokens=1))
    damaged.step()
    [failure] = [notice for notice in damaged.take_notices() if isinstance(notice, Failed)]
    assert isinstance(failure.error, BadLogits)
    assert answers(damaged, name, GREEDY) == expected


def damage(checkpoint: Checkpoint, token: int) -> Checkpoint:
    """A model that embeds one token as NaN."""
    embedding = checkpoint.tensors["model.embed_tokens.weight"]
    broken = embedding.dequantize().copy()
    broken[token] = np.nan
    output = {} if "lm_head.weight" in checkpoint.tensors else {"lm_head.weight": embedding.dequantize()}
    changed = {embedding.name: broken, **output}
    tensors = {name: Tensor.from_array(name, values) for name, values in changed.items()}
    config = {**checkpoint.config, "tie_word_embeddings": False}
    return evolve(checkpoint, config=config, tensors={**checkpoint.tensors, **tensors})


@pytest.mark.parametrize("kernels", ["numpy", "numba"])
@pytest.mark.parametrize("name", NAMES)
def test_preempted_answers_are_torchs(name: str, kernels: Kernels) -> None:
    """Three copies in a pool for two: each is right, though some are computed again."""
    loaded = engine(name, kernels, block_size=4, num_blocks=34, prefix_cache="off")
    expected = [step["token"] for step in reference(name)["greedy"]]
    assert [[token for token, _, _ in answer] for answer in answers(loaded, name, GREEDY, copies=3)] == [expected] * 3
    assert loaded.stats().preemptions_total > 0


@pytest.mark.parametrize("params", [GREEDY, SAMPLED])
@pytest.mark.parametrize("name", NAMES)
def test_answers_are_the_same_to_the_last_bit(name: str, params: SamplingParams) -> None:
    """With the compiled kernels, tokens, logprobs and alternatives do not depend on how they were computed.

    They may on the block size: it is where the kernels divide a context, and the same for all requests of a server.
    """
    [expected] = answers(engine(name, "numba", block_size=4, prefix_cache="off"), name, params)
    for way in WAYS.values():
        loaded = engine(name, "numba", **{**way, "block_size": 4})
        assert answers(loaded, name, params) == [expected]
        assert answers(loaded, name, params, copies=5) == [expected] * 5
    crowded = engine(name, "numba", block_size=4, num_blocks=34, prefix_cache="off")
    assert answers(crowded, name, params, copies=4) == [expected] * 4
    assert crowded.stats().preemptions_total > 0


@pytest.mark.parametrize("kernels", ["numpy", "numba"])
@pytest.mark.parametrize("name", NAMES)
def test_embeddings_are_torchs(name: str, kernels: Kernels) -> None:
    """The mean of the final-normed states at length one."""
    expected = reference(name)
    assert engine(name, kernels).embed(expected["ids"]) == pytest.approx(expected["embedding"], abs=1e-5)
