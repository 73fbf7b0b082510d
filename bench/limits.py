"""What this machine can do at most: bytes read from memory, and multiply-adds, per second, by all threads of a team."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from functools import reduce
from typing import Any

import numpy as np
from attrs import frozen
from llvmlite import ir
from numba import types

from tlserve.kernels import emit
from tlserve.kernels.buffers import aligned_zeros
from tlserve.kernels.emit import f32, i16, i32
from tlserve.kernels.jit import Kernel, instruction
from tlserve.kernels.memory import put_f32
from tlserve.kernels.quant_tile import LANES, accumulate
from tlserve.kernels.simd import load, splat, total
from tlserve.kernels.tape import ROWS, STEP_FIELDS, Field, Op, Tape
from tlserve.kernels.target import level_of, simd_level
from tlserve.kernels.team import Team

PIECE = 1 << 20
"""Bytes that a tile of the memory test reads."""

CHAINS = 16
"""Sums that run side by side, to hide how long one addition takes."""

ROUNDS = 100_000
TILES = 64


@frozen
class Limits:
    """Bytes per second; multiply-adds per second of 16-bit integers and of float32."""

    memory: float
    integers: float
    floats: float


def measure_limits(team: Team) -> Limits:
    """Medians of ten; takes a second or two."""
    lanes = LANES[simd_level()].rows
    macs = ROUNDS * CHAINS * TILES
    return Limits(
        memory=memory_bandwidth(team),
        integers=macs * 2 * lanes / _seconds(team, Kernel(multiply_integers), TILES, np.zeros(TILES, np.int64)),
        floats=macs * lanes / _seconds(team, Kernel(multiply_floats), TILES, np.zeros(TILES, np.int64)),
    )


def memory_bandwidth(team: Team, megabytes: int = 512) -> float:
    """Bytes per second that the team reads from memory."""
    pieces = megabytes * 1_000_000 // PIECE
    data, sums = aligned_zeros(pieces * PIECE, np.uint8), np.zeros(pieces, np.float32)
    data[:] = 1  # every page exists
    return data.nbytes / _seconds(team, Kernel(read_piece), pieces, data, sums)


def timed(call: Callable[[], Any], *, repeat: int) -> list[float]:
    """Seconds of each of some calls."""
    seconds = []
    for _ in range(repeat):
        start = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - start)
    return seconds


def _seconds(team: Team, kernel: Kernel, tiles: int, *fields: Field) -> float:
    """How long so many tiles of a kernel take the team."""
    tape = Tape()
    tape.add(Op(kernel=kernel.compile(), extent=ROWS, rows_per_tile=1, fields=fields))
    step = np.zeros(STEP_FIELDS, np.int64)
    step[ROWS] = tiles
    frozen_tape = tape.freeze()
    return statistics.median(timed(lambda: team.play(frozen_tape, step, first=0, stop=1), repeat=10))


def read_piece(op: Any, _step: Any, tile: int, _member: int) -> None:
    """Read one piece of PIECE bytes."""
    sums = splat(np.float32(0.0))
    for i in range(0, PIECE, 64):
        sums = sums + load(op[4] + tile * PIECE + i)
    put_f32(op[5] + 4 * tile, total(sums))


def multiply_integers(op: Any, _step: Any, tile: int, _member: int) -> None:
    """ROUNDS rounds of CHAINS multiply-adds of 16-bit pairs, from registers."""
    integer_chains(op[4] + 8 * tile, ROUNDS)


def multiply_floats(op: Any, _step: Any, tile: int, _member: int) -> None:
    """ROUNDS rounds of CHAINS float32 multiply-adds, from registers."""
    float_chains(op[4] + 8 * tile, ROUNDS)


@instruction
def integer_chains(_typing: Any, _result: Any, _rounds: Any) -> Any:
    """Add products of pairs to CHAINS sums, ``rounds`` times; four bytes of their total are stored at ``result``."""

    def codegen(context: Any, b: Any, _signature: Any, args: Any) -> Any:
        level = level_of(context)
        shorts = ir.VectorType(i16, 2 * LANES[level].rows)
        factor = emit.broadcast(b, b.trunc(args[1], i16), shorts.count)

        def add(before: Any) -> Any:
            hidden = emit.pinned(b, factor, "v") if level.startswith("avx512") else factor
            return accumulate(b, level, before, hidden, factor)

        _chains(b, args, ir.VectorType(i32, LANES[level].rows), add, b.add)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), codegen


@instruction
def float_chains(_typing: Any, _result: Any, _rounds: Any) -> Any:
    """The same with float32 FMAs."""

    def codegen(context: Any, b: Any, _signature: Any, args: Any) -> Any:
        kind = ir.VectorType(f32, LANES[level_of(context)].rows)
        factor = emit.broadcast(b, b.sitofp(args[1], f32), kind.count)
        _chains(b, args, kind, lambda before: emit.fma(b, factor, before, factor), b.fadd)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), codegen


def _chains(b: Any, args: Any, kind: Any, step: Callable[[Any], Any], join: Callable[[Any, Any], Any]) -> None:
    """CHAINS values that take a step in every round; joined into one at the end, so that none is left out."""
    result, rounds = args
    loop = emit.Loop(b, rounds, [emit.constant(kind, 0)] * CHAINS)
    joined = reduce(join, loop.close([step(before) for before in loop.carried]))
    emit.store(b, result, b.extract_element(joined, i32(0)))
