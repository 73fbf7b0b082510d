"""RMS norm of rows, with an optional residual, rounding of what goes into an integer linear, and picking rows.

Invariant: the squares of a row are added in sixteen lanes and one fixed tree.
"""

# ruff: noqa: PLR0917  compiled code calls by position

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tlserve.kernels.jit import Kernel, jit
from tlserve.kernels.memory import float_of_bits, get_i32
from tlserve.kernels.quantise import quantise_row
from tlserve.kernels.simd import fma, load, splat, store, total
from tlserve.kernels.tape import EXTENT, LOGIT_ROW_IDS, ROWS_PER_TILE

(
    SOURCE,  # float32 [M, stride]
    SOURCE_STRIDE,  # in bytes
    WEIGHT,  # float32 [VECTORS * 16]; zeros beyond SIZE
    SIZE,  # elements of a row
    VECTORS,  # vectors of sixteen in a row
    EPS,  # float32 bits
    ADDEND,  # float32 [M, stride of the result], or 0: the residual that the normed row is added to
    RESULT,  # float32 [M, stride]
    RESULT_STRIDE,  # in bytes
    QUANTISED,  # int16 [M, groups * 32], or 0
    SCALES,  # float32 [M, 2, groups]
    GROUPS,
) = range(4, 16)
"""The fields of a norm operation."""

ROUND_SOURCE, ROUND_STRIDE, ROUND_QUANTISED, ROUND_SCALES, ROUND_GROUPS = range(4, 9)
"""The fields of a rounding operation: rows, their distance in bytes, then as the last three of a norm."""

ADD_SOURCE, ADD_STRIDE, ADD_RESULT, ADD_VECTORS = range(4, 8)
"""The fields of an add operation: rows, their distance in bytes, rows, vectors of sixteen in a row."""

PICK_ROWS_OF, PICK_STRIDE, PICK_VECTORS = range(4, 7)
"""The fields of a picking operation: rows, their distance in bytes, vectors of sixteen in a row."""


def norm(op: Any, step: Any, tile: int, _member: int) -> None:
    """Result = addend + source / rms(source) * weight, and its rounded form."""
    first = tile * op[ROWS_PER_TILE]
    for row in range(first, min(first + op[ROWS_PER_TILE], step[op[EXTENT]])):
        source, result = op[SOURCE] + row * op[SOURCE_STRIDE], op[RESULT] + row * op[RESULT_STRIDE]
        factor = inverse_rms(source, op[VECTORS], op[SIZE], float_of_bits(op[EPS]))
        addend = op[ADDEND] + row * op[RESULT_STRIDE] if op[ADDEND] != 0 else 0
        _scale_row(source, factor, op[WEIGHT], addend, result, op[VECTORS])
        if op[QUANTISED] != 0:
            quantise_row(result, op[GROUPS], op[QUANTISED] + row * op[GROUPS] * 64, op[SCALES] + row * op[GROUPS] * 8)


def round_rows(op: Any, step: Any, tile: int, _member: int) -> None:
    """Round rows."""
    first, groups = tile * op[ROWS_PER_TILE], op[ROUND_GROUPS]
    for row in range(first, min(first + op[ROWS_PER_TILE], step[op[EXTENT]])):
        source = op[ROUND_SOURCE] + row * op[ROUND_STRIDE]
        quantise_row(source, groups, op[ROUND_QUANTISED] + row * groups * 64, op[ROUND_SCALES] + row * groups * 8)


@jit
def inverse_rms(x: int, vectors: int, size: int, eps: np.float32) -> np.float32:
    """1 / sqrt(mean of squares + eps) of a row of ``size`` elements, zeros behind them."""
    squares = splat(np.float32(0.0))
    for i in range(vectors):
        part = load(x + 64 * i)
        squares = fma(part, part, squares)
    mean = total(squares) / np.float32(size)
    return np.float32(1.0) / np.float32(math.sqrt(mean + eps))


@jit
def _scale_row(x: int, factor: np.float32, weight: int, addend: int, result: int, vectors: int) -> None:
    scale = splat(factor)
    for i in range(vectors):
        value = load(x + 64 * i) * scale * load(weight + 64 * i)
        if addend != 0:
            value = load(addend + 64 * i) + value
        store(result + 64 * i, value)


def add(op: Any, step: Any, tile: int, _member: int) -> None:
    """Result += source; both have rows of whole vectors, equally far apart."""
    first = tile * op[ROWS_PER_TILE]
    for row in range(first, min(first + op[ROWS_PER_TILE], step[op[EXTENT]])):
        place = row * op[ADD_STRIDE]
        for i in range(op[ADD_VECTORS]):
            at = place + 64 * i
            store(op[ADD_RESULT] + at, load(op[ADD_RESULT] + at) + load(op[ADD_SOURCE] + at))


def pick(op: Any, step: Any, _tile: int, _member: int) -> None:
    """Row i becomes row logit_rows[i], in place.

    The rows that are wanted ascend, so none is overwritten before it was read, if one tile does it all.
    """
    for row in range(step[op[EXTENT]]):
        source = op[PICK_ROWS_OF] + get_i32(step[LOGIT_ROW_IDS] + 4 * row) * op[PICK_STRIDE]
        result = op[PICK_ROWS_OF] + row * op[PICK_STRIDE]
        for i in range(op[PICK_VECTORS]):
            store(result + 64 * i, load(source + 64 * i))


ADD = Kernel(add)
NORM = Kernel(norm)
ROUND_ROWS = Kernel(round_rows)
PICK = Kernel(pick)
