"""Linear layers: y = addend + x @ w.T, from 4-bit, 8-bit, 16-bit and 32-bit weights.

A tile of work is some blocks of sixteen output rows times up to TOKENS tokens: the weights of a block stay in the nearest
cache while those tokens pass, the tokens in the next one. Every format is a kernel of its own; `quant_kernel` and
`float_kernel` name it, and only those that a model needs are compiled.
Invariant: see `quant_tile` and `float_tile`: a row's result does not depend on its company.
"""

# ruff: noqa: PLR0917  compiled code calls by position

from __future__ import annotations

from typing import Any

from tlserve.kernels.float_tile import BFLOAT16, FLOAT16, FLOAT32
from tlserve.kernels.float_tile import float_tile as multiply_floats
from tlserve.kernels.jit import Kernel, inline
from tlserve.kernels.quant_tile import BLOCK, Format
from tlserve.kernels.quant_tile import quant_tile as multiply_groups
from tlserve.kernels.tape import EXTENT, LOGITS, PARTS

TOKENS = 64
"""Tokens per tile of work."""

(
    WEIGHTS,  # address of the packed blocks
    BLOCKS,  # blocks of sixteen output rows
    BLOCKS_PER_PART,
    DEPTH,  # groups of 32 inputs (quantised), inputs (float)
    X,  # int16 [M, groups * 32], or float32 [M, stride]
    X_EXTRA,  # scales float32 [M, 2, groups], or the stride of x in bytes
    Y,  # float32 [M, stride]; 0: the step's own logits
    Y_STRIDE,  # in bytes
    ADDEND,  # float32: what is added to the product
    ADDEND_STRIDE,  # bytes from token to token; 0 for a bias
    ADDEND_BLOCK,  # bytes from block to block; 0 for sixteen zeros
) = range(4, 15)
"""The fields of a linear operation."""


@inline
def _quant_linear(op: Any, step: Any, tile: int, bits: int, half: int, factors: int, record: int) -> None:
    groups, y_stride, addend_stride = op[DEPTH], op[Y_STRIDE], op[ADDEND_STRIDE]
    token = tile // op[PARTS] * TOKENS
    stop = min(step[op[EXTENT]], token + TOKENS)
    start = tile % op[PARTS] * op[BLOCKS_PER_PART]
    y_base = op[Y] if op[Y] != 0 else step[LOGITS]
    for block in range(start, min(start + op[BLOCKS_PER_PART], op[BLOCKS])):
        w = op[WEIGHTS] + block * groups * record
        t = token
        while t < stop:
            x, scales = op[X] + t * groups * 64, op[X_EXTRA] + t * groups * 8
            y = y_base + t * y_stride + block * 4 * BLOCK
            addend = op[ADDEND] + t * addend_stride + block * op[ADDEND_BLOCK]
            left = stop - t
            if left >= 8:
                multiply_groups(bits, half, factors, 8, w, groups, x, scales, y, y_stride, addend, addend_stride)
                t += 8
            elif left >= 4:
                multiply_groups(bits, half, factors, 4, w, groups, x, scales, y, y_stride, addend, addend_stride)
                t += 4
            elif left >= 2:
                multiply_groups(bits, half, factors, 2, w, groups, x, scales, y, y_stride, addend, addend_stride)
                t += 2
            else:
                multiply_groups(bits, half, factors, 1, w, groups, x, scales, y, y_stride, addend, addend_stride)
                t += 1


@inline
def _float_linear(op: Any, step: Any, tile: int, kind: int, weight_bytes: int) -> None:
    inputs, x_stride, y_stride, addend_stride = op[DEPTH], op[X_EXTRA], op[Y_STRIDE], op[ADDEND_STRIDE]
    token = tile // op[PARTS] * TOKENS
    stop = min(step[op[EXTENT]], token + TOKENS)
    start = tile % op[PARTS] * op[BLOCKS_PER_PART]
    y_base = op[Y] if op[Y] != 0 else step[LOGITS]
    for block in range(start, min(start + op[BLOCKS_PER_PART], op[BLOCKS])):
        w = op[WEIGHTS] + block * inputs * BLOCK * weight_bytes
        t = token
        while t < stop:
            x, y = op[X] + t * x_stride, y_base + t * y_stride + block * 4 * BLOCK
            addend = op[ADDEND] + t * addend_stride + block * op[ADDEND_BLOCK]
            if stop - t >= 8:
                multiply_floats(kind, 8, w, inputs, x, x_stride, y, y_stride, addend, addend_stride)
                t += 8
            else:
                multiply_floats(kind, 1, w, inputs, x, x_stride, y, y_stride, addend, addend_stride)
                t += 1


def linear_q4_f16_affine(op: Any, step: Any, tile: int, _member: int) -> None:
    """4-bit weights, float16 scales and minimums."""
    _quant_linear(op, step, tile, 4, 1, 1, 320)


def linear_q4_f32_affine(op: Any, step: Any, tile: int, _member: int) -> None:
    """4-bit weights, float32 scales and minimums."""
    _quant_linear(op, step, tile, 4, 0, 1, 384)


def linear_q8_f16_affine(op: Any, step: Any, tile: int, _member: int) -> None:
    """8-bit weights, float16 scales and minimums."""
    _quant_linear(op, step, tile, 8, 1, 1, 576)


def linear_q8_f16_scaled(op: Any, step: Any, tile: int, _member: int) -> None:
    """8-bit weights, float16 scales."""
    _quant_linear(op, step, tile, 8, 1, 0, 544)


def linear_q8_f16_halves(op: Any, step: Any, tile: int, _member: int) -> None:
    """8-bit weights, float16 scales, two to a group."""
    _quant_linear(op, step, tile, 8, 1, 2, 576)


def linear_q8_f32_affine(op: Any, step: Any, tile: int, _member: int) -> None:
    """8-bit weights, float32 scales and minimums."""
    _quant_linear(op, step, tile, 8, 0, 1, 640)


def linear_q8_f32_scaled(op: Any, step: Any, tile: int, _member: int) -> None:
    """8-bit weights, float32 scales."""
    _quant_linear(op, step, tile, 8, 0, 0, 576)


def linear_q8_f32_halves(op: Any, step: Any, tile: int, _member: int) -> None:
    """8-bit weights, float32 scales, two to a group."""
    _quant_linear(op, step, tile, 8, 0, 2, 640)


def linear_f32(op: Any, step: Any, tile: int, _member: int) -> None:
    """Float32 weights."""
    _float_linear(op, step, tile, 0, 4)


def linear_f16(op: Any, step: Any, tile: int, _member: int) -> None:
    """Float16 weights."""
    _float_linear(op, step, tile, 1, 2)


def linear_bf16(op: Any, step: Any, tile: int, _member: int) -> None:
    """Bfloat16 weights."""
    _float_linear(op, step, tile, 2, 2)


QUANT_KERNELS = {
    Format(bits=4, half=True, minimums=True, halves=False): Kernel(linear_q4_f16_affine),
    Format(bits=4, half=False, minimums=True, halves=False): Kernel(linear_q4_f32_affine),
    Format(bits=8, half=True, minimums=True, halves=False): Kernel(linear_q8_f16_affine),
    Format(bits=8, half=True, minimums=False, halves=False): Kernel(linear_q8_f16_scaled),
    Format(bits=8, half=True, minimums=False, halves=True): Kernel(linear_q8_f16_halves),
    Format(bits=8, half=False, minimums=True, halves=False): Kernel(linear_q8_f32_affine),
    Format(bits=8, half=False, minimums=False, halves=False): Kernel(linear_q8_f32_scaled),
    Format(bits=8, half=False, minimums=False, halves=True): Kernel(linear_q8_f32_halves),
}
"""One kernel for each way in which a record may lie in memory."""

FLOAT_KERNELS = {FLOAT32: Kernel(linear_f32), FLOAT16: Kernel(linear_f16), BFLOAT16: Kernel(linear_bf16)}
