"""Looking up token embeddings in packed weights, the same ones that the output layer multiplies with where they are tied.

Leaves packing to `pack`. A looked-up value is exactly the checkpoint's (q * scale + minimum, both roundings of float32), times
the model's embedding scale.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tlserve.kernels.float_tile import FLOAT16, FLOAT32
from tlserve.kernels.jit import Kernel, jit
from tlserve.kernels.memory import float_of_bits, get_f16, get_f32, get_i32, get_u8, get_u16, put_f32
from tlserve.kernels.quant_tile import BLOCK, SCALES_ONLY, TWO_SCALES, WITH_MINIMUMS
from tlserve.kernels.tape import EXTENT, ROWS_PER_TILE, TOKENS

(
    TABLE,  # address of the packed blocks
    DEPTH,  # groups of 32 (quantised) or elements (float) of a row
    RESULT,  # float32 [T, stride]
    RESULT_STRIDE,  # in bytes
    SCALE,  # float32 bits
    BITS,  # 4 or 8 (quantised); the kind of float_tile (float)
    HALF,  # whether scales and minimums are float16
    FACTORS,  # what a record has besides scales, see `quant_tile`
    RECORD,  # bytes of a record
) = range(4, 13)
"""The fields of an embedding operation; the last three are for quantised tables."""


def embed_quantised(op: Any, step: Any, tile: int, _member: int) -> None:
    """Rows of the token ids from a table of records."""
    first = tile * op[ROWS_PER_TILE]
    for row in range(first, min(first + op[ROWS_PER_TILE], step[op[EXTENT]])):
        token = get_i32(step[TOKENS] + 4 * row)
        record = op[TABLE] + token // BLOCK * op[DEPTH] * op[RECORD]
        for group in range(op[DEPTH]):
            result = op[RESULT] + row * op[RESULT_STRIDE] + 128 * group
            factors = record + 64 * op[BITS]
            scale = _factor(factors, token % BLOCK, op[HALF])
            other = np.float32(0.0)
            if op[FACTORS] != SCALES_ONLY:
                other = _factor(factors, BLOCK + token % BLOCK, op[HALF])
            for i in range(32):
                weight = np.float32(_weight(record, token % BLOCK, i, op[BITS]))
                second = op[FACTORS] == TWO_SCALES and i >= 16
                value = weight * (other if second else scale)
                if op[FACTORS] == WITH_MINIMUMS:
                    value += other
                put_f32(result + 4 * i, value * float_of_bits(op[SCALE]))
            record += op[RECORD]


@jit
def _factor(factors: int, index: int, half: int) -> np.float32:
    return get_f16(factors + 2 * index) if half != 0 else np.float32(get_f32(factors + 4 * index))


@jit
def _weight(record: int, row: int, i: int, bits: int) -> int:
    """Input i of a row of a record: pair i // 2 lies in vector pair // fields, field pair % fields."""
    fields = 16 // bits
    pair, parity = i // 2, i % 2
    lane = record + 64 * (pair // fields) + 4 * row + 2 * parity
    if bits == 4:
        return int(get_u16(lane) >> (4 * (pair % fields)) & 15)
    return int((get_u8(lane + pair % fields) ^ 128) - 128)


def embed_floats(op: Any, step: Any, tile: int, _member: int) -> None:
    """Rows of the token ids from a table of floats."""
    first = tile * op[ROWS_PER_TILE]
    size = 4 if op[BITS] == FLOAT32 else 2
    for row in range(first, min(first + op[ROWS_PER_TILE], step[op[EXTENT]])):
        token = get_i32(step[TOKENS] + 4 * row)
        source = op[TABLE] + (token // BLOCK * op[DEPTH] * BLOCK + token % BLOCK) * size
        for i in range(op[DEPTH]):
            value = _float(source + i * BLOCK * size, op[BITS])
            put_f32(op[RESULT] + row * op[RESULT_STRIDE] + 4 * i, value * float_of_bits(op[SCALE]))


@jit
def _float(address: int, kind: int) -> np.float32:
    if kind == FLOAT32:
        return np.float32(get_f32(address))
    if kind == FLOAT16:
        return get_f16(address)
    return np.float32(float_of_bits(get_u16(address) << 16))


EMBED_QUANTISED = Kernel(embed_quantised)
EMBED_FLOATS = Kernel(embed_floats)
