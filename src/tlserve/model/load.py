"""From a checkpoint to a runner: checks that the two fit, picks the runner, loads the weights.

Also answers what the engine must know before it can size the pool: how long a context may be, and what a block weighs.
"""

from __future__ import annotations

from functools import partial
from typing import Literal

from attrs import evolve

from tlserve.errors import CheckpointError, ConfigError
from tlserve.model import kv_store, numba_runner
from tlserve.model.bigram import BigramRunner
from tlserve.model.dense import DenseRunner
from tlserve.model.dense_weights import load_dense_weights
from tlserve.model.entries import Entries
from tlserve.model.hparams import HParams, read_hparams
from tlserve.model.inventory import check_tensors
from tlserve.model.matrix_format import WeightFormat, float_matrix
from tlserve.model.rope import RopeSpec
from tlserve.model.runner import Capacity, ModelRunner, ReportCompile, ReportProgress
from tlserve.weights.contents import Checkpoint
from tlserve.weights.tensor import Tensor

Kernels = Literal["numba", "numpy"]

BIGRAM = "bigram"
BIGRAM_CONTEXT = 8192
"""A bigram table has no limit of its own; this one keeps requests bounded unless its config names another."""

ROPE_DIVISORS = "rope_freqs"


def load_runner(
    checkpoint: Checkpoint,
    *,
    kernels: Kernels,
    weights: WeightFormat,
    num_blocks: int,
    block_size: int,
    max_model_len: int,
    threads: int | None,
    report: ReportProgress,
    report_compile: ReportCompile = lambda name, number, total: None,  # noqa: ARG005
) -> ModelRunner:
    """Load a checkpoint's weights and allocate its KV pool. Takes seconds; runs on any thread.

    Args:
        checkpoint: an opened model; its files stay mapped only as long as weights are being read.
        kernels: "numpy" is the plain reference, "numba" the fast one. A bigram needs neither.
        weights: see `matrix_format`; the numpy runner computes with the rounded values in float32.
        num_blocks: KV blocks in the pool.
        block_size: tokens per KV block.
        max_model_len: the longest sequence in tokens, at most `context_length` of the checkpoint.
        threads: for the numba kernels; numpy's own library chooses its threads.
        report: hears the loaded share, 0.0 to 1.0; may raise to cancel.
        report_compile: hears of each kernel before it is compiled; may raise to cancel.

    Raises:
        CheckpointError: config and tensors contradict each other, or themselves.
        UnsupportedModelError: something the model needs is not served.
        ConfigError: max_model_len exceeds what the model was made for.

    """
    _check_length(checkpoint, max_model_len)
    capacity = Capacity(num_blocks=num_blocks, block_size=block_size, max_model_len=max_model_len)
    if checkpoint.architecture == BIGRAM:
        report(1.0)
        return BigramRunner(checkpoint.tensors["logits"].dequantize(), capacity)
    hparams = decoder_hparams(checkpoint)
    title = f"{checkpoint.architecture} of {checkpoint.num_parameters / 1e6:.1f}M parameters"
    if kernels == "numba":
        return numba_runner.load_numba_runner(
            checkpoint.tensors,
            hparams,
            capacity,
            weights=weights,
            threads=threads,
            report=report,
            report_compile=report_compile,
            title=title,
        )
    read_matrix = partial(float_matrix, weights=weights)
    dense = load_dense_weights(checkpoint.tensors, hparams, read_matrix=read_matrix, report=report)
    return DenseRunner(hparams, dense, capacity, f"{title}, numpy, {weights}")


def decoder_hparams(checkpoint: Checkpoint) -> HParams:
    """The hyper-parameters of a checkpoint whose tensors fit them.

    Raises:
        CheckpointError: config and tensors contradict each other, or themselves.
        UnsupportedModelError: the architecture, or something the config asks for, is not served.

    """
    hparams = read_hparams(checkpoint.architecture, checkpoint.config)
    shapes = {name: tensor.shape for name, tensor in checkpoint.tensors.items()}
    divisors = checkpoint.tensors.get(ROPE_DIVISORS)
    if divisors is not None:
        del shapes[ROPE_DIVISORS]
        ropes = tuple(_divide(rope, divisors, hparams) for rope in hparams.ropes)
        hparams = evolve(hparams, ropes=ropes)
    check_tensors(hparams, shapes)
    return hparams


def context_length(checkpoint: Checkpoint) -> int:
    """The longest sequence, in tokens, that the model was made for."""
    if checkpoint.architecture == BIGRAM:
        return Entries(checkpoint.config).count("max_position_embeddings", BIGRAM_CONTEXT)
    return read_hparams(checkpoint.architecture, checkpoint.config).max_position


def kv_bytes_per_block(checkpoint: Checkpoint, *, kernels: Kernels, weights: WeightFormat, block_size: int) -> int:
    """Bytes of KV per block with the runner that these settings choose; 0 for a bigram, which stores none."""
    if checkpoint.architecture == BIGRAM:
        return 0
    hparams = read_hparams(checkpoint.architecture, checkpoint.config)
    if kernels == "numpy":
        return kv_store.kv_bytes_per_block(hparams, block_size)
    return numba_runner.kv_bytes_per_block(hparams, block_size, numba_runner.kv_element(checkpoint.tensors, weights))


def _check_length(checkpoint: Checkpoint, max_model_len: int) -> None:
    limit = context_length(checkpoint)
    if not 1 <= max_model_len <= limit:
        raise ConfigError(f"max_model_len is {max_model_len}; this model takes 1 to {limit} tokens")


def _divide(rope: RopeSpec, divisors: Tensor, hparams: HParams) -> RopeSpec:
    if divisors.shape != (hparams.head_dim // 2,):
        raise CheckpointError(
            f"tensor {ROPE_DIVISORS} has shape {divisors.shape}, but head_dim {hparams.head_dim} asks for "
            f"{(hparams.head_dim // 2,)}"
        )
    return evolve(rope, divisors=tuple(divisors.dequantize().tolist()))
