"""From checkpoint to runner: progress, cancelling, limits, rounding."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from attrs import evolve
from numpy.typing import NDArray

from tlserve.errors import CheckpointError, ConfigError, LoadCancelled
from tlserve.model.batch import SequenceRows
from tlserve.model.load import context_length, decoder_hparams, kv_bytes_per_block
from tlserve.model.matrix_format import float_matrix
from tlserve.model.runner import ModelRunner
from tlserve.weights.contents import ByteTokenizer, Checkpoint
from tlserve.weights.tensor import Tensor

OpenTiny = Callable[[str], Checkpoint]
MakeRunner = Callable[..., ModelRunner]
Forward = Callable[[ModelRunner, Sequence[SequenceRows]], NDArray[np.float32]]

ROWS = [SequenceRows([1, 2, 3, 4], 0, [0], 4)]


def with_tensors(checkpoint: Checkpoint, changed: dict[str, NDArray[np.float32]]) -> Checkpoint:
    tensors = {name: Tensor.from_array(name, values) for name, values in changed.items()}
    return evolve(checkpoint, tensors={**checkpoint.tensors, **tensors})


def bigram(**config: Any) -> Checkpoint:
    table = np.eye(256, k=1, dtype=np.float32)
    return Checkpoint(
        architecture="bigram",
        config={"model_type": "bigram", **config},
        tensors={"logits": Tensor.from_array("logits", table)},
        tokenizer=ByteTokenizer(),
        chat_template=None,
        bos_token="",
        eos_token="",
        eos_token_ids=(),
        source="a table",
    )


def test_progress_rises_from_zero_to_one(open_tiny: OpenTiny, make_runner: MakeRunner) -> None:
    """A start-up log can show how far the load has come."""
    shares: list[float] = []
    make_runner(open_tiny("gemma3"), report=shares.append)
    assert shares == sorted(shares)
    assert (shares[0], shares[-1]) == (0.0, 1.0)
    assert len(shares) > 6


def test_a_load_can_be_cancelled(open_tiny: OpenTiny, make_runner: MakeRunner) -> None:
    """What the report raises ends the load."""

    def stop(share: float) -> None:
        if share > 0.3:
            raise LoadCancelled("stopped")

    with pytest.raises(LoadCancelled):
        make_runner(open_tiny("llama"), report=stop)


@pytest.mark.parametrize("length", [0, 513])
def test_the_context_has_a_limit(length: int, open_tiny: OpenTiny, make_runner: MakeRunner) -> None:
    """A longer context than the model was made for is a configuration error that names both numbers."""
    with pytest.raises(ConfigError, match=f"max_model_len is {length}.*1 to 512"):
        make_runner(open_tiny("llama"), max_model_len=length)


def test_the_runner_tells_its_size(open_tiny: OpenTiny, make_runner: MakeRunner) -> None:
    """What the engine and the log ask for."""
    checkpoint = open_tiny("qwen3")
    runner = make_runner(checkpoint, num_blocks=5, block_size=4, max_model_len=100)
    assert (runner.num_blocks, runner.block_size, runner.max_model_len) == (5, 4, 100)
    assert (runner.vocab_size, runner.hidden_size) == (256, 64)
    # 3 layers, 2 heads of 32, 4 tokens, keys and values, 4 bytes
    assert runner.kv_bytes_per_block == 3 * 2 * 32 * 4 * 2 * 4
    assert kv_bytes_per_block(checkpoint, kernels="numpy", weights="auto", block_size=4) == runner.kv_bytes_per_block
    assert context_length(checkpoint) == 512
    assert "qwen3" in runner.description


def test_a_bigram_needs_no_kv(make_runner: MakeRunner, forward: Forward) -> None:
    """Its context is bounded all the same; a config may name another bound."""
    runner = make_runner(bigram())
    assert (
        runner.kv_bytes_per_block == kv_bytes_per_block(bigram(), kernels="numpy", weights="auto", block_size=16) == 0
    )
    assert forward(runner, ROWS).argmax(axis=1).tolist() == [2, 3, 4, 5]
    assert context_length(bigram()) == 8192
    assert context_length(bigram(max_position_embeddings=64)) == 64


@pytest.mark.parametrize(("weights", "levels"), [("q4", 16), ("q8", 256)])
def test_rounding_covers_the_matrices_and_nothing_else(
    weights: str, levels: int, open_tiny: OpenTiny, make_runner: MakeRunner, forward: Forward
) -> None:
    """A rounded model computes like one whose file holds the rounded matrices; norms and look-ups stay exact."""
    checkpoint = open_tiny("llama3")
    matrices = {
        name: float_matrix(tensor, weights)  # type: ignore[arg-type]
        for name, tensor in checkpoint.tensors.items()
        if len(tensor.shape) == 2 and name != "model.embed_tokens.weight"
    }
    assert len(np.unique(matrices["lm_head.weight"][0, :32])) <= levels
    expected = forward(make_runner(with_tensors(checkpoint, matrices)), ROWS)
    np.testing.assert_array_equal(forward(make_runner(checkpoint, weights=weights), ROWS), expected)
    assert not np.array_equal(forward(make_runner(checkpoint, weights="f32"), ROWS), expected)


def test_eight_bits_stay_close(open_tiny: OpenTiny, make_runner: MakeRunner, forward: Forward) -> None:
    """Rounding to 8 bits moves logits a little, rounding to 4 bits moves them more."""
    checkpoint = open_tiny("llama")
    exact, eight, four = (forward(make_runner(checkpoint, weights=weights), ROWS) for weights in ("f32", "q8", "q4"))
    assert 0 < np.abs(eight - exact).max() < np.abs(four - exact).max() / 4


def test_rope_divisors_reach_the_frequencies(open_tiny: OpenTiny, make_runner: MakeRunner, forward: Forward) -> None:
    """A file that carries one divisor per frequency computes like one whose config scales linearly by it."""
    checkpoint = open_tiny("llama")
    divided = with_tensors(checkpoint, {"rope_freqs": np.full(8, 4.0, dtype=np.float32)})
    linear = {"rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 10_000.0}}
    scaled = evolve(checkpoint, config={**checkpoint.config, **linear})
    np.testing.assert_allclose(
        forward(make_runner(divided), ROWS), forward(make_runner(scaled), ROWS), rtol=0, atol=1e-5
    )


def test_rope_divisors_must_fit(open_tiny: OpenTiny) -> None:
    """One for each pair of a head's dimensions."""
    checkpoint = with_tensors(open_tiny("llama"), {"rope_freqs": np.ones(7, dtype=np.float32)})
    with pytest.raises(CheckpointError, match=r"rope_freqs has shape \(7,\).*\(8,\)"):
        decoder_hparams(checkpoint)


def test_a_checkpoint_that_contradicts_itself_is_refused(open_tiny: OpenTiny, make_runner: MakeRunner) -> None:
    """A tensor that does not fit the config stops the load before any weight is read."""
    checkpoint = with_tensors(open_tiny("llama"), {"model.norm.weight": np.ones(63, dtype=np.float32)})
    with pytest.raises(CheckpointError, match=r"model\.norm\.weight has shape \(63,\)"):
        make_runner(checkpoint)
