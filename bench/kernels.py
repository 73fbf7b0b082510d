#!/usr/bin/env python3
"""How fast the compiled kernels are on this machine, next to the two limits it sets them: memory and multiplication.

Usage: python -m bench.kernels MODEL [--threads N] [--busy N] [--weights auto|q4|q8|f32]

Prints tokens per second of decode and prefill, the rate at which weights and KV are read, and multiply-adds per second.
``--busy 2`` runs everything a second time beside two processes that burn CPU, as on a shared node. Medians of one run; compare
only numbers of the same run.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from attrs import frozen

from bench.limits import Limits, measure_limits, timed
from bench.neighbours import neighbours
from tlserve.model.batch import ForwardBatch, SequenceRows
from tlserve.model.load import decoder_hparams
from tlserve.model.numba_runner import NumbaRunner, load_numba_runner
from tlserve.model.runner import Capacity
from tlserve.weights.checkpoint import open_checkpoint

BLOCK_SIZE = 16


@frozen
class Case:
    """One workload: a batch, and how many of its rows count as tokens."""

    name: str
    batch: ForwardBatch
    tokens: int


def cases(runner: NumbaRunner) -> Iterator[Case]:
    """Decode of one and more streams, and prefill, at several contexts."""

    def decode(streams: int, context: int) -> Case:
        each = -(-context // BLOCK_SIZE)
        rows = [SequenceRows([5], context - 1, range(each * i, each * (i + 1)), 1) for i in range(streams)]
        return Case(f"decode, {streams} x {context}", built(runner, rows), streams)

    def prefill(rows: int, start: int) -> Case:
        tokens = np.random.default_rng(0).integers(3, runner.vocab_size, rows).tolist()
        sequence = SequenceRows(tokens, start, range(-(-(start + rows) // BLOCK_SIZE)), 1)
        return Case(f"prefill, {rows} at {start}", built(runner, [sequence]), rows)

    yield from (decode(1, 64), decode(1, 1000), decode(1, 2000), decode(4, 300), decode(16, 300))
    yield from (prefill(16, 0), prefill(512, 0), prefill(512, 1500))


def built(runner: NumbaRunner, rows: list[SequenceRows]) -> ForwardBatch:
    """A batch that fits the runner."""
    return ForwardBatch.build(
        rows, vocab_size=runner.vocab_size, num_blocks=runner.num_blocks, block_size=runner.block_size
    )


def weights_of(runner: NumbaRunner) -> tuple[int, int]:
    """Bytes of all matrices that a step reads, and multiply-adds of a token in the layers' matrices."""
    layers = [
        matrix
        for layer in runner.weights.layers
        for fused in (layer.qkv, layer.out, layer.gate_up, layer.down)
        for matrix in fused.matrices
    ]
    everything = layers + list(runner.weights.lm_head.matrices)
    return sum(matrix.data.nbytes for matrix in everything), sum(matrix.rows * matrix.inputs for matrix in layers)


def measure(runner: NumbaRunner, limits: Limits) -> dict[str, float]:
    """Print the table; returns tokens per second by case."""
    num_bytes, macs = weights_of(runner)
    print(f"{'':24}{'ms':>9}{'tok/s':>9}{'GB/s':>8}{'of memory':>11}{'GMAC/s':>9}{'of integers':>13}")
    rates = {}
    for case in cases(runner):
        runner.forward(case.batch)
        seconds = statistics.median(timed(lambda: runner.forward(case.batch), repeat=7 if case.tokens > 100 else 40))  # noqa: B023
        kv = int(case.batch.context_len.sum()) * runner.kv_bytes_per_block // BLOCK_SIZE
        read = (num_bytes + kv) / seconds
        rates[case.name] = case.tokens / seconds
        multiplied = macs * case.tokens / seconds
        print(
            f"{case.name:24}{seconds * 1e3:9.2f}{case.tokens / seconds:9.0f}{read / 1e9:8.1f}{read / limits.memory:11.0%}"
            f"{multiplied / 1e9:9.0f}{multiplied / limits.integers:13.0%}"
        )
    return rates


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description="Measure the compiled kernels.")
    parser.add_argument("model", type=Path)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--busy", type=int, default=0, help="processes that burn CPU in a second round")
    parser.add_argument("--weights", choices=["auto", "q4", "q8", "f32"], default="auto")
    return parser.parse_args()


def main() -> None:
    """Load, measure, print."""
    arguments = parse_arguments()
    checkpoint = open_checkpoint(arguments.model)
    hparams = decoder_hparams(checkpoint)
    start = time.perf_counter()
    runner = load_numba_runner(
        checkpoint.tensors,
        hparams,
        Capacity(num_blocks=400, block_size=BLOCK_SIZE, max_model_len=min(4096, hparams.max_position)),
        weights=arguments.weights,
        threads=arguments.threads,
        report=lambda _: None,
        report_compile=lambda *_: None,
        title=checkpoint.architecture,
    )
    print(f"{runner.description}; loaded in {time.perf_counter() - start:.1f} s")
    for first in range(0, 400, 25):  # KV that exists is read differently from pages that were never written
        runner.forward(built(runner, [SequenceRows([7] * 400, 0, range(first, first + 25), 0)]))
    limits = measure_limits(runner.team)
    print(
        f"limits with {runner.team.size} threads: memory {limits.memory / 1e9:.1f} GB/s, "
        f"16-bit integers {limits.integers / 1e9:.0f} GMAC/s, float32 {limits.floats / 1e9:.0f} GMAC/s"
    )
    quiet = measure(runner, limits)
    if arguments.busy:
        print(f"\nbeside {arguments.busy} busy processes")
        with neighbours(arguments.busy):
            busy = measure(runner, limits)
        print("\nspeed kept: " + ", ".join(f"{name} {busy[name] / rate:.0%}" for name, rate in quiet.items()))
    runner.close()


if __name__ == "__main__":
    main()
