"""Two tiles of attention: query rows against the sixteen keys, and against the sixteen values, of one chunk.

A query row is one head of one token. Scores have one lane per key, mixed values one lane per dimension, so neither needs a sum
across lanes. A chunk's layout is in `kv`.
Invariant: a row sees the same operations in the same order whatever the number of rows in the tile.
"""

from __future__ import annotations

from typing import Any

from attrs import frozen
from llvmlite import ir
from numba import types

from tlserve.kernels import emit
from tlserve.kernels.emit import f32, i16, i64
from tlserve.kernels.jit import instruction
from tlserve.kernels.simd import LANES, V16F, V16I
from tlserve.kernels.target import Level, level_of

V16H = ir.VectorType(i16, LANES)


@frozen
class Limits:
    """Accumulators of sixteen lanes that fit this machine's registers, in a score tile and a value tile."""

    score_rows: int
    value_rows: int


LIMITS: dict[Level, Limits] = {
    "avx512vnni": Limits(8, 8),
    "avx512": Limits(8, 8),
    "avx2": Limits(2, 2),
    "portable": Limits(2, 2),
}


def _elements(b: Any, address: Any, size: int) -> Any:
    """Sixteen keys or values, int16 (size 2) or float32 (size 4), as float32."""
    if size == 4:
        return emit.load(b, address, V16F)
    return b.sitofp(b.sext(emit.load(b, address, V16H), V16I), V16F)


def _ask_for(b: Any, address: Any, size: int) -> None:
    """Prefetch some bytes, spread over a loop: asked for all at once they would wait for each other."""
    for line in range(0, size, 64):
        emit.prefetch(b, emit.offset(b, address, line), locality=3)


@instruction
def score_tile(
    _typing: Any,
    rows: Any,
    size: Any,
    _keys: Any,
    _scales: Any,
    _wide: Any,
    _q: Any,
    _scores: Any,
    _stride: Any,
    _ahead: Any,
) -> Any:
    """Compute scores[row, 0:16] = (q[row] . keys[:, 0:16]) * scales[0:16] for ``rows`` query rows.

    rows and size (bytes of an element: 2 int16, 4 float32) are constants. Addresses: keys [wide][16], scales float32 [16],
    q float32 [rows][wide], scores float32 rows ``stride`` bytes apart. Keys ``ahead`` bytes further on will be needed soon.
    Even and odd dimensions are added up separately, then together.
    """
    if not (isinstance(rows, types.IntegerLiteral) and isinstance(size, types.IntegerLiteral)):
        return None

    def codegen(context: Any, b: Any, _signature: Any, args: Any) -> Any:
        step = min(rows.literal_value, LIMITS[level_of(context)].score_rows)
        for first in range(0, rows.literal_value, step):
            _emit_scores(b, range(first, first + step), size.literal_value, args[2:])
        return context.get_dummy_value()

    return types.void(rows, size, *([types.int64] * 7)), codegen


def _emit_scores(b: Any, rows: range, size: int, args: Any) -> None:
    keys, scales, wide, q, scores, stride, ahead = args
    q_stride = emit.times(b, wide, 4)
    q_rows = [emit.offset(b, q, b.mul(q_stride, i64(r))) for r in rows]
    zero = emit.constant(V16F, 0.0)
    loop = emit.Loop(b, b.lshr(wide, i64(1)), [zero] * (2 * len(rows)))
    sums = list(loop.carried)
    _ask_for(b, emit.offset(b, keys, emit.times(b, loop.index, 32 * size), ahead), 32 * size)
    for parity in (0, 1):
        key = _elements(b, emit.offset(b, keys, emit.times(b, loop.index, 32 * size), 16 * size * parity), size)
        for r, row in enumerate(q_rows):
            element = emit.load(b, emit.offset(b, row, emit.times(b, loop.index, 8), 4 * parity), f32)
            cell = 2 * r + parity
            sums[cell] = emit.fma(b, emit.broadcast(b, element, LANES), key, sums[cell])
    sums = loop.close(sums)
    scale = emit.load(b, scales, V16F)
    for r, row in enumerate(rows):
        score = b.fmul(b.fadd(sums[2 * r], sums[2 * r + 1]), scale)
        emit.store(b, emit.offset(b, scores, b.mul(stride, i64(row))), score)


@instruction
def value_tile(
    _typing: Any,
    rows: Any,
    vectors: Any,
    size: Any,
    _values: Any,
    _wide: Any,
    _p: Any,
    _stride: Any,
    _mixed: Any,
    _ahead: Any,
) -> Any:
    """Add p[row, key] * values[key, 0 : 16 vectors] to mixed[row] key by key, for sixteen keys.

    rows, vectors and size are constants. Addresses: values [16][wide], p float32 rows ``stride`` bytes apart, mixed float32
    [rows][wide]. Values ``ahead`` bytes further on will be needed soon.
    """
    if not all(isinstance(kind, types.IntegerLiteral) for kind in (rows, vectors, size)):
        return None

    def codegen(context: Any, b: Any, _signature: Any, args: Any) -> Any:
        step = min(rows.literal_value, LIMITS[level_of(context)].value_rows)
        for first in range(0, rows.literal_value, step):
            _emit_mixing(b, range(first, first + step), vectors.literal_value, size.literal_value, args[3:])
        return context.get_dummy_value()

    return types.void(rows, vectors, size, *([types.int64] * 6)), codegen


def _emit_mixing(b: Any, rows: range, vectors: int, size: int, args: Any) -> None:
    values, wide, p, stride, mixed, ahead = args
    places = [
        emit.offset(b, mixed, b.mul(emit.times(b, wide, 4), i64(r)), 64 * vector)
        for r in rows
        for vector in range(vectors)
    ]
    p_rows = [emit.offset(b, p, b.mul(stride, i64(r))) for r in rows]
    loop = emit.Loop(b, i64(LANES), [emit.load(b, place, V16F) for place in places])
    line = emit.offset(b, values, b.mul(loop.index, emit.times(b, wide, size)))
    _ask_for(b, b.add(line, ahead), 16 * size * vectors)
    parts = [_elements(b, emit.offset(b, line, 16 * size * vector), size) for vector in range(vectors)]
    shares = [emit.broadcast(b, emit.load(b, b.add(row, emit.times(b, loop.index, 4)), f32), LANES) for row in p_rows]
    sums = [emit.fma(b, shares[i // vectors], parts[i % vectors], before) for i, before in enumerate(loop.carried)]
    for place, value in zip(places, loop.close(sums), strict=True):
        emit.store(b, place, value)
