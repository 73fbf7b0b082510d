"""The fast runner on whole models: torch's numbers, and one answer whatever else runs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from feeding import forward
from tlserve.errors import EngineError, LoadCancelled
from tlserve.model.batch import SequenceRows
from tlserve.model.load import load_runner
from tlserve.model.matrix_format import WeightFormat
from tlserve.model.numba_runner import NumbaRunner
from tlserve.weights.checkpoint import open_checkpoint

DATA = Path(__file__).resolve().parents[1] / "data"
MODELS = ["llama", "llama3", "mistral", "qwen2", "qwen3", "gemma3"]
NUM_BLOCKS = 64

Floats = NDArray[np.float32]
Load = Callable[..., NumbaRunner]


@pytest.fixture
def load() -> Iterator[Load]:
    """Load a model of tests/data; its threads end with the test."""
    runners = []

    def run(
        name: str, *, weights: WeightFormat = "auto", threads: int = 2, block_size: int = 16, kernels: str = "numba"
    ) -> Any:
        runner = load_runner(
            open_checkpoint(DATA / "models" / f"tiny-{name}"),
            kernels=kernels,  # type: ignore[arg-type]
            weights=weights,
            num_blocks=NUM_BLOCKS,
            block_size=block_size,
            max_model_len=512,
            threads=threads,
            report=lambda _: None,
        )
        if isinstance(runner, NumbaRunner):
            runners.append(runner)
        return runner

    yield run
    for runner in runners:
        runner.close()


def reference_of(name: str) -> Any:
    return json.loads((DATA / "models" / f"tiny-{name}" / "reference.json").read_text())


def in_chunks(runner: Any, ids: list[int], chunks: Sequence[int], blocks: list[int]) -> Floats:
    """Logits of every row of a text that is computed in chunks of the given sizes."""
    edges = np.cumsum([0, *chunks]).tolist()
    parts = [
        forward(runner, [SequenceRows(ids[start:stop], start, blocks, stop - start)]) for start, stop in pairwise(edges)
    ]
    return np.concatenate(parts)


def logprobs(logits: Floats) -> NDArray[np.float64]:
    wide = logits.astype(np.float64)
    wide -= wide.max(axis=-1, keepdims=True)
    result: NDArray[np.float64] = wide - np.log(np.exp(wide).sum(axis=-1, keepdims=True))
    return result


@pytest.mark.parametrize("name", MODELS)
def test_logprobs_and_embedding_are_those_of_torch(load: Load, name: str) -> None:
    """Six architectures in float32."""
    runner, expected = load(name), reference_of(name)
    ids = expected["ids"]
    got = logprobs(in_chunks(runner, ids, [len(ids)], [9, 1, 4]))
    np.testing.assert_allclose(got[-1], expected["last_logprobs"], atol=1e-4)
    np.testing.assert_allclose(got[np.arange(len(ids) - 1), ids[1:]], expected["next_logprobs"], atol=1e-4)
    mean = runner.run_once(ids).astype(np.float64).mean(axis=0)
    np.testing.assert_allclose(mean / np.linalg.norm(mean), expected["embedding"], atol=1e-4)


@pytest.mark.parametrize("weights", ["auto", "q4", "q8"])
@pytest.mark.parametrize("name", MODELS)
def test_a_row_has_one_answer(load: Load, name: str, weights: WeightFormat) -> None:
    """Bitwise: whole or in chunks of 1, 7 and 64, alone or in company, with one thread or two, in other blocks."""
    runner, ids = load(name, weights=weights), np.random.default_rng(0).integers(3, 256, 150).tolist()
    whole = in_chunks(runner, ids, [150], list(range(10)))
    for chunks in ([1] * 150, [7] * 21 + [3], [64, 64, 22]):
        np.testing.assert_array_equal(in_chunks(runner, ids, chunks, list(range(40, 30, -1))), whole)
    np.testing.assert_array_equal(in_chunks(load(name, weights=weights, threads=1), ids, [150], list(range(10))), whole)
    company = [
        SequenceRows([7] * 33, 0, [50, 51, 52], 1),
        SequenceRows(ids[100:], 100, list(range(10)), 50),
        SequenceRows([1], 60, [53, 54, 55, 56], 1),
    ]
    np.testing.assert_array_equal(forward(runner, company)[1:51], whole[100:])


@pytest.mark.parametrize("weights", ["q4", "q8"])
@pytest.mark.parametrize("name", ["llama", "gemma3"])
def test_rounded_weights_are_those_of_the_plain_runner(load: Load, name: str, weights: WeightFormat) -> None:
    """Integers and 16-bit activations stay close to float32 arithmetic over the same rounded weights."""
    ids = reference_of(name)["ids"]
    fast, plain = (
        logprobs(in_chunks(load(name, weights=weights, kernels=kernels), ids, [40], [0, 1, 2]))
        for kernels in ("numba", "numpy")
    )
    divergence = (np.exp(plain) * (plain - fast)).sum(axis=-1)
    assert divergence.mean() < 1e-6
    np.testing.assert_allclose(fast, plain, atol=1e-3)


@pytest.mark.parametrize("block_size", [4, 20])
def test_blocks_of_any_size(load: Load, block_size: int) -> None:
    """The size of KV blocks is the operator's choice."""
    expected = reference_of("mistral")
    runner = load("mistral", block_size=block_size)
    got = logprobs(in_chunks(runner, expected["ids"], [3, 30, 7], list(range(20, 0, -1))))
    np.testing.assert_allclose(got[-1], expected["last_logprobs"], atol=1e-4)


def test_a_batch_larger_than_ever_before(load: Load) -> None:
    """Buffers grow when they must, and rows keep their bits."""
    runner, ids = load("llama"), np.random.default_rng(1).integers(3, 256, 300).tolist()
    alone = in_chunks(runner, ids, [300], list(range(19)))
    many = [SequenceRows(ids, 0, list(range(20 * i, 20 * i + 19)), 300) for i in range(3)]
    got = forward(runner, many)
    for i in range(3):
        np.testing.assert_array_equal(got[300 * i : 300 * i + 300], alone)


def test_a_step_without_logits(load: Load) -> None:
    """The middle of a prefill yields an empty result and stores its keys."""
    runner, expected = load("llama"), reference_of("llama")
    ids = expected["ids"]
    assert forward(runner, [SequenceRows(ids[:30], 0, [3, 2, 1], 0)]).shape == (0, 256)
    last = forward(runner, [SequenceRows(ids[30:], 30, [3, 2, 1], 1)])
    np.testing.assert_allclose(logprobs(last)[0], expected["last_logprobs"], atol=1e-4)


def test_run_once_touches_no_block(load: Load) -> None:
    """An embedding between two steps of a sequence changes nothing, however long its text."""
    runner, ids = load("qwen3"), reference_of("qwen3")["ids"]
    whole = in_chunks(runner, ids, [40], [0, 1, 2])
    forward(runner, [SequenceRows(ids[:39], 0, [5, 6, 7], 0)])
    hidden = runner.run_once([*ids, *[9] * 472])
    np.testing.assert_array_equal(forward(runner, [SequenceRows(ids[39:], 39, [5, 6, 7], 1)])[0], whole[-1])
    np.testing.assert_array_equal(hidden[:40], runner.run_once(ids))
    with pytest.raises(EngineError, match="513 tokens"):
        runner.run_once([1] * 513)


def test_results_are_the_callers_to_keep(load: Load) -> None:
    """The next step does not write into the last one's logits."""
    runner = load("llama")
    first = forward(runner, [SequenceRows([5, 6], 0, [0], 1)])
    kept = first.copy()
    forward(runner, [SequenceRows([9, 8], 0, [1], 1)])
    np.testing.assert_array_equal(first, kept)


def test_a_position_beyond_the_rotary_tables_is_refused(load: Load) -> None:
    """The kernels would read behind the end of an array."""
    with pytest.raises(EngineError, match="513 tokens is longer than max_model_len 512"):
        forward(load("llama"), [SequenceRows([5], 512, list(range(33)), 1)])


def test_loading_can_be_cancelled() -> None:
    """Whatever ``report`` raises ends the load."""

    def report(share: float) -> None:
        if share > 0.5:
            raise LoadCancelled("enough")

    with pytest.raises(LoadCancelled, match="enough"):
        load_runner(
            open_checkpoint(DATA / "models" / "tiny-llama"),
            kernels="numba",
            weights="auto",
            num_blocks=4,
            block_size=16,
            max_model_len=64,
            threads=1,
            report=report,
        )


PRINT_BITS = """
import hashlib, sys
from pathlib import Path
from tlserve.kernels.target import simd_level
from tlserve.model.batch import ForwardBatch, SequenceRows
from tlserve.model.load import load_runner
from tlserve.weights.checkpoint import open_checkpoint

runner = load_runner(
    open_checkpoint(Path(sys.argv[1])), kernels="numba", weights=sys.argv[2], num_blocks=8, block_size=16,
    max_model_len=128, threads=1, report=lambda _: None,
)
rows = SequenceRows(list(range(3, 103)), 0, list(range(7)), 100)
logits = runner.forward(ForwardBatch.build([rows], vocab_size=runner.vocab_size, num_blocks=8, block_size=16))
print(simd_level(), hashlib.sha256(logits.tobytes()).hexdigest())
"""


FEATURES = {
    "cascadelake": "+avx512vnni,+avx512f,+avx512bw,+avx512vl,+avx512dq,+avx512cd,+avx2,+fma,+f16c,+bmi,+bmi2,+popcnt",
    "skylake-avx512": "+avx512f,+avx512bw,+avx512vl,+avx512dq,+avx512cd,+avx2,+fma,+f16c,+bmi,+bmi2,+popcnt",
    "haswell": "+avx,+avx2,+fma,+f16c,+bmi,+bmi2,+popcnt,+sse4.2",
    "x86-64": "+sse2",
}
LEVELS = dict(zip(("avx512vnni", "avx512", "avx2", "portable"), FEATURES, strict=True))
"""Every level, best first, and a processor that has it and nothing better."""


def bits_on(processor: str | None, weights: str, cache: Path) -> tuple[str, str]:
    """The vector level and a digest of a model's logits, compiled for another processor."""
    variables = os.environ | {"NUMBA_CACHE_DIR": str(cache)}
    if processor is not None:
        variables |= {"NUMBA_CPU_NAME": processor, "NUMBA_CPU_FEATURES": FEATURES[processor]}
    done = subprocess.run(
        [sys.executable, "-c", PRINT_BITS, str(DATA / "models" / "tiny-qwen3"), weights],
        env=variables,
        capture_output=True,
        text=True,
        check=True,
    )
    level, digest = done.stdout.split()
    return level, digest


def test_bits_are_the_same_with_other_vector_instructions(tmp_path: Path) -> None:
    """All levels below this machine's, down to plain code for any processor, compute what it computes: integers and floats alike."""
    if sys.platform != "linux" or os.uname().machine != "x86_64":
        pytest.skip("needs an x86 processor")  # Another kind of processor cannot run what is compiled for those above.
    level, digest = bits_on(None, "q4", tmp_path)
    levels = list(LEVELS)
    for lower in levels[levels.index(level) :]:
        assert bits_on(LEVELS[lower], "q4", tmp_path) == (lower, digest)
