"""The gated MLP's middle: act(gate) * up, rounded for the next linear; and the soft cap of logits.

Both activations are x times a logistic function: silu(x) = x / (1 + e**-x), and the tanh form of GELU
(arXiv:1606.08415) is x / (1 + e**-2u) with u = sqrt(2 / pi) (x + 0.044715 x**3).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tlserve.kernels.jit import Kernel, jit
from tlserve.kernels.memory import float_of_bits
from tlserve.kernels.quantise import quantise_row
from tlserve.kernels.simd import LOG2_E, exp2, fma, load, splat, store
from tlserve.kernels.tape import EXTENT, LOGITS, ROWS_PER_TILE

(
    GATE,  # float32 [T, stride]
    STRIDE,  # in bytes
    UP,  # bytes from a row's gate to its up
    VECTORS,  # vectors of sixteen in a row
    KIND,
    RESULT,  # float32 [T, stride]
    RESULT_STRIDE,  # in bytes
    QUANTISED,  # int16 [T, groups * 32], or 0
    SCALES,  # float32 [T, 2, groups]
    GROUPS,
) = range(4, 14)
"""The fields of a gate operation."""

SILU, GELU_TANH = range(2)

CAP, CAP_VECTORS, CAP_STRIDE = range(4, 7)
"""The fields of a soft-cap operation: float32 bits; vectors of a row of logits; its stride in bytes."""

GELU_SLOPE = np.float32(-2.0 * LOG2_E * math.sqrt(2.0 / math.pi))
GELU_CUBE = np.float32(0.044715)
SILU_SLOPE = np.float32(-LOG2_E)


def gate(op: Any, step: Any, tile: int, _member: int) -> None:
    """Result = act(gate) * up, and its rounded form."""
    first = tile * op[ROWS_PER_TILE]
    for row in range(first, min(first + op[ROWS_PER_TILE], step[op[EXTENT]])):
        source, result = op[GATE] + row * op[STRIDE], op[RESULT] + row * op[RESULT_STRIDE]
        if op[KIND] == SILU:
            _silu_row(source, source + op[UP], op[VECTORS], result)
        else:
            _gelu_row(source, source + op[UP], op[VECTORS], result)
        if op[QUANTISED] != 0:
            quantise_row(result, op[GROUPS], op[QUANTISED] + row * op[GROUPS] * 64, op[SCALES] + row * op[GROUPS] * 8)


@jit
def _silu_row(gate: int, up: int, vectors: int, result: int) -> None:
    one, slope = splat(np.float32(1.0)), splat(SILU_SLOPE)
    for i in range(vectors):
        x = load(gate + 64 * i)
        store(result + 64 * i, x / (one + exp2(x * slope)) * load(up + 64 * i))


@jit
def _gelu_row(gate: int, up: int, vectors: int, result: int) -> None:
    one, slope, cube = splat(np.float32(1.0)), splat(GELU_SLOPE), splat(GELU_CUBE)
    for i in range(vectors):
        x = load(gate + 64 * i)
        u = fma(x * x * x, cube, x)
        store(result + 64 * i, x / (one + exp2(u * slope)) * load(up + 64 * i))


def cap_logits(op: Any, step: Any, tile: int, _member: int) -> None:
    """Logits = cap * tanh(logits / cap); tanh x = 1 - 2 / (1 + e**2x)."""
    first = tile * op[ROWS_PER_TILE]
    cap = float_of_bits(op[CAP])
    for row in range(first, min(first + op[ROWS_PER_TILE], step[op[EXTENT]])):
        _cap_row(step[LOGITS] + row * op[CAP_STRIDE], op[CAP_VECTORS], cap)


@jit
def _cap_row(x: int, vectors: int, cap: np.float32) -> None:
    one, two = splat(np.float32(1.0)), splat(np.float32(2.0))
    slope, height = splat(np.float32(2.0 * LOG2_E) / cap), splat(cap)
    for i in range(vectors):
        store(x + 64 * i, height * (one - two / (one + exp2(load(x + 64 * i) * slope))))


GATE_ROWS = Kernel(gate)
CAP_LOGITS = Kernel(cap_logits)
