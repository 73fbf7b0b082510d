"""Keys and values: turned, rounded to 16 bits and stored in their blocks.

The pool is [layers][blocks][kv heads][chunks] of *chunks*: the keys and values of sixteen positions of one head,

    key scales     16 x float32           values scales  16 x float32
    keys           [D'][16] elements      one vector load is one dimension of sixteen keys
    values         [16][D'] elements      one vector load is sixteen dimensions of one value

where D' is head_dim rounded up to sixteen. Elements are int16, or float32 (scales 1) for models whose weights are float32
too. An int16 key (or value) has one scale, so it is exact to 1.5e-5 of its greatest element:
half the memory of float32, and far truer than float16 where one dimension towers above the others, as in models with
biased keys. A block of ``block_size`` tokens is ceil(block_size / 16) chunks; a multiple of sixteen wastes nothing.
Invariant: what lies behind a sequence's context is finite or multiplied by an exact zero.
"""

# ruff: noqa: PLR0917  compiled code calls by position

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tlserve.kernels.jit import Kernel, jit
from tlserve.kernels.memory import float_of_bits, get_f32, get_i32, put_f32, put_i16
from tlserve.kernels.norm import inverse_rms
from tlserve.kernels.quantise import LEVELS, SMALLEST
from tlserve.kernels.simd import absolute, greater, highest, load, nearest, splat, store, store_i16, total
from tlserve.kernels.tape import (
    BLOCK_TABLES,
    EXTENT,
    KV_LAYER_BYTES,
    KV_POOL,
    POSITIONS,
    ROWS_PER_TILE,
    SCRATCH,
    SCRATCH_BYTES,
    SEQUENCE_OF_ROW,
    TABLE_STRIDE,
)

KEYS_PER_CHUNK = 16
SCALES_BYTES = 2 * 4 * KEYS_PER_CHUNK

(
    QKV,  # float32 [T, stride]: query heads, key heads, value heads
    QKV_STRIDE,  # in bytes
    QUERY_HEADS,
    KV_HEADS,
    HEAD_DIM,
    COSINES,  # float32 [positions, D / 2]
    SINES,
    QUERY_NORM,  # float32 [D] rounded up to sixteen, or 0
    KEY_NORM,
    EPS,  # float32 bits
    QUERY_SCALE,  # float32 bits: what turned queries are multiplied by
    LAYER,
    BLOCK_SIZE,
    CHUNKS,  # chunks of a block
    ELEMENT,  # bytes of a stored element: 2 (int16) or 4 (float32)
) = range(4, 19)
"""The fields of a store operation."""


def padded_dim(head_dim: int) -> int:
    """D', the head dimension rounded up to whole vectors."""
    return -(-head_dim // 16) * 16


def chunk_bytes(head_dim: int, element: int) -> int:
    """Bytes of a chunk whose elements have 2 or 4 bytes."""
    return SCALES_BYTES + 2 * KEYS_PER_CHUNK * element * padded_dim(head_dim)


@jit
def chunk_address(pool: int, block: int, heads: int, head: int, chunks: int, chunk: int, size: int) -> int:
    """Where a chunk of a block lies in one layer's pool; ``size`` is its bytes."""
    return pool + ((block * heads + head) * chunks + chunk) * size


def store_kv(op: Any, step: Any, tile: int, member: int) -> None:
    """Norm, turn and scale the queries in place; norm and turn the keys; store keys and values."""
    first = tile * op[ROWS_PER_TILE]
    dim, kv_heads = op[HEAD_DIM], op[KV_HEADS]
    wide = (dim + 15) // 16 * 16
    eps, query_scale = float_of_bits(op[EPS]), float_of_bits(op[QUERY_SCALE])
    size = SCALES_BYTES + 2 * KEYS_PER_CHUNK * op[ELEMENT] * wide
    head_copy = step[SCRATCH] + member * step[SCRATCH_BYTES]
    pool = step[KV_POOL] + op[LAYER] * step[KV_LAYER_BYTES]
    for row in range(first, min(first + op[ROWS_PER_TILE], step[op[EXTENT]])):
        position = get_i32(step[POSITIONS] + 4 * row)
        cosines, sines = op[COSINES] + position * 2 * dim, op[SINES] + position * 2 * dim
        heads = op[QKV] + row * op[QKV_STRIDE]
        for head in range(op[QUERY_HEADS]):
            query = heads + 4 * dim * head
            turned = query if op[QUERY_NORM] == 0 else head_copy
            _turn(query, dim, op[QUERY_NORM], eps, cosines, sines, query_scale, turned)
            if turned != query:
                _copy(turned, dim, query)
        keys = heads + 4 * dim * op[QUERY_HEADS]
        table = step[BLOCK_TABLES] + 4 * step[TABLE_STRIDE] * get_i32(step[SEQUENCE_OF_ROW] + 4 * row)
        block = get_i32(table + 4 * (position // op[BLOCK_SIZE]))
        place = position % op[BLOCK_SIZE]
        for head in range(kv_heads):
            chunk = chunk_address(pool, block, kv_heads, head, op[CHUNKS], place // KEYS_PER_CHUNK, size)
            lane = place % KEYS_PER_CHUNK
            _turn(keys + 4 * dim * head, dim, op[KEY_NORM], eps, cosines, sines, np.float32(1.0), head_copy)
            _store_key(head_copy, wide, op[ELEMENT], chunk, lane)
            _copy(keys + 4 * dim * (kv_heads + head), dim, head_copy)
            _store_value(head_copy, wide, op[ELEMENT], chunk, lane)


@jit
def _turn(
    x: int, dim: int, weight: int, eps: np.float32, cosines: int, sines: int, scale: np.float32, result: int
) -> None:
    """Rotary embedding, half-split, of one head of ``dim`` elements, after its norm if ``weight`` is not 0; then scale.

    The result may be x itself if there is no norm. Its elements beyond dim, up to whole vectors, must be zero already if there is one.
    """
    source = x
    if weight != 0:
        _copy(x, dim, result)
        vectors = (dim + 15) // 16
        factor = splat(inverse_rms(result, vectors, dim, eps))
        for i in range(0, 16 * vectors, 16):
            store(result + 4 * i, load(result + 4 * i) * factor * load(weight + 4 * i))
        source = result
    half = dim // 2
    whole = half // 16 * 16
    for i in range(0, whole, 16):
        lows, highs = load(source + 4 * i), load(source + 4 * (half + i))
        cos, sin = load(cosines + 4 * i), load(sines + 4 * i)
        store(result + 4 * i, (lows * cos - highs * sin) * splat(scale))
        store(result + 4 * (half + i), (highs * cos + lows * sin) * splat(scale))
    for i in range(whole, half):
        low, high = get_f32(source + 4 * i), get_f32(source + 4 * (half + i))
        cosine, sine = get_f32(cosines + 4 * i), get_f32(sines + 4 * i)
        put_f32(result + 4 * i, (low * cosine - high * sine) * scale)
        put_f32(result + 4 * (half + i), (high * cosine + low * sine) * scale)


@jit
def _copy(source: int, count: int, result: int) -> None:
    whole = count // 16 * 16
    for i in range(0, whole, 16):
        store(result + 4 * i, load(source + 4 * i))
    for i in range(whole, count):
        put_f32(result + 4 * i, get_f32(source + 4 * i))


@jit
def _row_scale(x: int, wide: int) -> np.float32:
    """The scale that brings a row's greatest magnitude to 32767; NaN if the row has a NaN or an infinity."""
    peaks = splat(np.float32(0.0))
    for i in range(0, wide, 16):
        peaks = greater(absolute(load(x + 4 * i)), peaks)
    return np.float32(highest(peaks) / LEVELS + _poison(x, wide))


@jit
def _poison(x: int, wide: int) -> np.float32:
    """Zero, or NaN if a row has a NaN or an infinity."""
    poison = splat(np.float32(0.0))
    for i in range(0, wide, 16):
        poison = poison + load(x + 4 * i) * splat(np.float32(0.0))
    return np.float32(total(poison))


@jit
def _round_row(x: int, wide: int, scale: np.float32) -> None:
    """Replace a row by whole numbers: x / scale, rounded."""
    factor = np.float32(1.0) / scale if scale > SMALLEST else np.float32(0.0)
    for i in range(0, wide, 16):
        store(x + 4 * i, nearest(load(x + 4 * i) * splat(factor)))


@jit
def _scaled(x: int, wide: int, element: int) -> np.float32:
    """Make a row ready to be stored, and return its scale: float32 elements stay as they are.

    A row with a NaN has the scale NaN and finite elements, which an exact zero silences when its slot belongs to others.
    """
    if element == 4:
        poison = _poison(x, wide)
        if math.isnan(poison):
            for i in range(wide):
                put_f32(x + 4 * i, np.float32(0.0))
        return np.float32(1.0) + poison
    scale = _row_scale(x, wide)
    _round_row(x, wide, scale)
    return scale


@jit
def _store_key(x: int, wide: int, element: int, chunk: int, lane: int) -> None:
    put_f32(chunk + 4 * lane, _scaled(x, wide, element))
    keys = chunk + SCALES_BYTES + element * lane
    for i in range(wide):
        value = get_f32(x + 4 * i)
        if element == 4:
            put_f32(keys + 4 * KEYS_PER_CHUNK * i, value)
        else:
            put_i16(keys + 2 * KEYS_PER_CHUNK * i, np.int64(value))


@jit
def _store_value(x: int, wide: int, element: int, chunk: int, lane: int) -> None:
    put_f32(chunk + 4 * (KEYS_PER_CHUNK + lane), _scaled(x, wide, element))
    values = chunk + SCALES_BYTES + element * wide * (KEYS_PER_CHUNK + lane)
    for i in range(0, wide, 16):
        if element == 4:
            store(values + 4 * i, load(x + 4 * i))
        else:
            store_i16(values + 2 * i, load(x + 4 * i))


STORE_KV = Kernel(store_kv)
