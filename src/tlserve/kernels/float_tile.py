"""Float tiles: sixteen output rows of float32, float16 or bfloat16 weights times up to eight tokens.

A block holds sixteen rows side by side, [inputs][16], so a load yields one input of all rows and each activation is broadcast
once per load. Products are added input by input with FMAs in float32; a 16-bit weight is widened exactly.
Invariant: like `quant_tile`: the number of tokens and the vector length change nothing in an element's result.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types

from tlserve.kernels import emit
from tlserve.kernels.emit import f16, f32, i16, i32, i64
from tlserve.kernels.jit import instruction
from tlserve.kernels.quant_tile import BLOCK, LANES
from tlserve.kernels.target import level_of

FLOAT32, FLOAT16, BFLOAT16 = range(3)
"""How weights are stored."""

WEIGHT_BYTES = (4, 2, 2)
"""Bytes of one weight, by kind."""


@instruction
def float_tile(
    _typing: Any,
    kind: Any,
    tokens: Any,
    _weights: Any,
    _inputs: Any,
    _x: Any,
    _x_stride: Any,
    _y: Any,
    _y_stride: Any,
    _addend: Any,
    _addend_stride: Any,
) -> Any:
    """Compute y[token, 0:16] = addend[token, 0:16] + x[token] . w[0:16] for ``tokens`` consecutive tokens.

    kind and tokens are constants. Addresses: weights of one block [inputs][16]; x, y and addend float32 rows, whose strides
    are in bytes.
    """
    if not (isinstance(kind, types.IntegerLiteral) and isinstance(tokens, types.IntegerLiteral)):
        return None

    def codegen(context: Any, b: Any, _signature: Any, args: Any) -> Any:
        lanes = LANES[level_of(context)]
        step = min(tokens.literal_value, lanes.tokens)
        for first in range(0, tokens.literal_value, step):
            _emit_tile(b, kind.literal_value, lanes.rows, range(first, first + step), args[2:])
        return context.get_dummy_value()

    return types.void(kind, tokens, *([types.int64] * 8)), codegen


def _emit_tile(b: Any, kind: int, width: int, tokens: range, args: Any) -> None:
    weights, inputs, x, x_stride, y, y_stride, addend, addend_stride = args
    rows = ir.VectorType(f32, width)
    x_rows = [emit.offset(b, x, b.mul(x_stride, i64(t))) for t in tokens]
    cells = [(part, t) for part in range(BLOCK // width) for t in range(len(tokens))]
    loop = emit.Loop(b, inputs, [emit.constant(rows, 0.0) for _ in cells])
    line = emit.offset(b, weights, emit.times(b, loop.index, BLOCK * WEIGHT_BYTES[kind]))
    values = [
        _widened(b, kind, width, emit.offset(b, line, part * width * WEIGHT_BYTES[kind]))
        for part in range(BLOCK // width)
    ]
    place = emit.times(b, loop.index, 4)
    activations = [emit.broadcast(b, emit.load(b, b.add(row, place), f32), width) for row in x_rows]
    totals = loop.close(
        [
            emit.fma(b, values[part], activations[t], before)
            for (part, t), before in zip(cells, loop.carried, strict=True)
        ]
    )
    for (part, t), value in zip(cells, totals, strict=True):
        place = i64(4 * width * part)
        before = emit.load(b, emit.offset(b, addend, b.mul(addend_stride, i64(tokens[t])), place), rows)
        emit.store(b, emit.offset(b, y, b.mul(y_stride, i64(tokens[t])), place), b.fadd(before, value))


def _widened(b: Any, kind: int, width: int, address: Any) -> Any:
    """``width`` weights as float32."""
    rows = ir.VectorType(f32, width)
    if kind == FLOAT32:
        return emit.load(b, address, rows)
    if kind == FLOAT16:
        return b.fpext(emit.load(b, address, ir.VectorType(f16, width)), rows)
    # A bfloat16 is the upper half of a float32.
    wide = ir.VectorType(i32, width)
    upper = b.zext(emit.load(b, address, ir.VectorType(i16, width)), wide)
    return b.bitcast(b.shl(upper, emit.constant(wide, 16)), rows)
