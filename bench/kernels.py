#!/usr/bin/env python3
"""How fast the compiled kernels are on this machine, next to what its memory gives.

Usage: bench/kernels.py MODEL [--threads N] [--busy N] [--weights auto|q4|q8|f32]

Prints tokens per second of decode and prefill, the rate at which weights and KV are read, and multiply-adds per second.
``--busy 2`` runs everything a second time beside two processes that burn CPU, as on a shared node. Medians of one run; compare
only numbers of the same run.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from attrs import frozen

from tlserve.kernels.buffers import aligned_zeros
from tlserve.kernels.jit import Kernel
from tlserve.kernels.memory import put_f32
from tlserve.kernels.simd import load, splat, total
from tlserve.kernels.tape import ROWS, STEP_FIELDS, Op, Tape
from tlserve.kernels.team import Team
from tlserve.model.batch import ForwardBatch, SequenceRows
from tlserve.model.load import decoder_hparams
from tlserve.model.numba_runner import NumbaRunner, load_numba_runner
from tlserve.model.runner import Capacity
from tlserve.weights.checkpoint import open_checkpoint

BLOCK_SIZE = 16
PIECE = 1 << 20


def read_piece(op: Any, _step: Any, tile: int, _member: int) -> None:
    """Read one piece of PIECE bytes."""
    sums = splat(np.float32(0.0))
    for i in range(0, PIECE, 64):
        sums = sums + load(op[4] + tile * PIECE + i)
    put_f32(op[5] + 4 * tile, total(sums))


@frozen
class Case:
    """One workload: a batch, and how many of its rows count as tokens."""

    name: str
    batch: ForwardBatch
    tokens: int


def memory_bandwidth(team: Team, megabytes: int = 512) -> float:
    """Bytes per second that the team reads from memory, median of ten."""
    pieces = megabytes * 1_000_000 // PIECE
    data, sums = aligned_zeros(pieces * PIECE, np.uint8), np.zeros(pieces, np.float32)
    data[:] = 1  # every page exists
    tape = Tape()
    tape.add(Op(kernel=Kernel(read_piece).compile(), extent=ROWS, rows_per_tile=1, fields=(data, sums)))
    step = np.zeros(STEP_FIELDS, np.int64)
    step[ROWS] = pieces
    frozen_tape = tape.freeze()
    return data.nbytes / statistics.median(timed(lambda: team.play(frozen_tape, step, first=0, stop=1), repeat=10))


def timed(call: Callable[[], Any], *, repeat: int) -> list[float]:
    """Seconds of each of some calls."""
    seconds = []
    for _ in range(repeat):
        start = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - start)
    return seconds


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


def measure(runner: NumbaRunner, bandwidth: float) -> dict[str, float]:
    """Print the table; returns tokens per second by case."""
    num_bytes, macs = weights_of(runner)
    print(f"{'':24}{'ms':>9}{'tok/s':>9}{'GB/s':>8}{'of memory':>11}{'GMAC/s':>9}")
    rates = {}
    for case in cases(runner):
        runner.forward(case.batch)
        seconds = statistics.median(timed(lambda: runner.forward(case.batch), repeat=7 if case.tokens > 100 else 40))  # noqa: B023
        kv = int(case.batch.context_len.sum()) * runner.kv_bytes_per_block // BLOCK_SIZE
        read = (num_bytes + kv) / seconds
        rates[case.name] = case.tokens / seconds
        share = f"{read / bandwidth:11.0%}" if case.tokens < 100 else f"{'':11}"
        gmacs = macs * case.tokens / seconds / 1e9
        print(f"{case.name:24}{seconds * 1e3:9.2f}{case.tokens / seconds:9.0f}{read / 1e9:8.1f}{share}{gmacs:9.0f}")
    return rates


@contextmanager
def neighbours(count: int) -> Iterator[None]:
    """Processes that burn CPU meanwhile."""
    burning = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for process in burning:
            process.kill()
            process.wait()


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
    bandwidth = memory_bandwidth(runner.team)
    print(f"memory: {bandwidth / 1e9:.1f} GB/s with {runner.team.size} threads")
    quiet = measure(runner, bandwidth)
    if arguments.busy:
        print(f"\nbeside {arguments.busy} busy processes")
        with neighbours(arguments.busy):
            busy = measure(runner, bandwidth)
        print("\nspeed kept: " + ", ".join(f"{name} {busy[name] / rate:.0%}" for name, rate in quiet.items()))
    runner.close()


if __name__ == "__main__":
    main()
