"""Paged causal attention with grouped query heads, for one row or a whole prefill chunk.

A tile of work is some consecutive query tokens of one sequence with all query heads of one key/value head: their rows share
every load of a key or a value. The context is cut into *partials* of PARTIAL_CHUNKS chunks (see `kv`), always at the same
positions. Within a partial: scores, their maximum, powers, sum, mixed values. Partials are then totals in order,
rescaled by their maximums (the online softmax of Milakov and Gimelshein, arXiv:1805.02867). A long context of a lone
row can be spread over several tiles, which leave their partials to `merge`; the arithmetic is the same.
Scores are in powers of two: queries come scaled by log2(e) / sqrt(D).

Invariant: a row's result depends on its own context only, not on tile sizes, neighbours, chunking or threads: keys beyond a
row's reach count as exact zeros, and partials that a row does not see are skipped.
"""

# ruff: noqa: PLR0917  compiled code calls by position

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tlserve.kernels.attention_tile import score_tile, value_tile
from tlserve.kernels.jit import Kernel, inline, jit
from tlserve.kernels.kv import KEYS_PER_CHUNK, SCALES_BYTES, chunk_address
from tlserve.kernels.memory import float_of_bits, get_f32, get_i32, prefetch, put_f32
from tlserve.kernels.simd import (
    counting,
    load,
    splat,
    store,
    where_between,
)
from tlserve.kernels.softmax import HIDDEN, PARTIAL_CHUNKS, SCORE_STRIDE, merge_row, softmax_row
from tlserve.kernels.tape import (
    BLOCK_TABLES,
    KV_LAYER_BYTES,
    KV_POOL,
    PARTIALS,
    PARTS,
    POSITIONS,
    SCRATCH,
    SCRATCH_BYTES,
    SPLIT_LIST,
    TABLE_STRIDE,
    TILE_LIST,
)

ROW_STEP = 8
"""Scratch has room for whole multiples of this many rows."""

NUMBERS_BYTES = 16
"""A row's four numbers: the totals' maximum and sum, a partial's maximum and sum."""

PARTIAL_NUMBERS_BYTES = 64
"""Room for a stored partial's maximum and sum, a cache line."""

CHUNKS_AHEAD = 3
"""How far ahead keys and values are asked for: blocks lie anywhere, so the hardware cannot guess the next one."""

NOWHERE = np.float32(math.inf)
"""The position of a lane that holds no key."""

(
    QKV,  # float32 [T, stride]: turned and scaled queries first
    QKV_STRIDE,  # in bytes
    KV_HEADS,
    GROUP,  # query heads per key/value head
    HEAD_DIM,
    WINDOW,  # positions that a row sees, itself included; 0: all
    CAP,  # float32 bits: the soft cap of scores, 0.0: none; queries are then scaled by 1 / (cap sqrt(D))
    LAYER,
    BLOCK_SIZE,
    CHUNKS,  # chunks of a block
    ELEMENT,  # bytes of a stored key's or value's element: 2 (int16) or 4 (float32)
    RESULT,  # float32 [T, stride]
    RESULT_STRIDE,  # in bytes
    MOST_ROWS,  # query rows of the largest tile, rounded up to ROW_STEP
) = range(4, 18)
"""The fields of an attention operation and of a merge, whose parts are key/value heads and query heads."""

TILE_SEQUENCE, TILE_ROW, TILE_TOKENS, TILE_FIRST, TILE_STOP, TILE_SLOT = range(6)
TILE_FIELDS = 6
"""int32 fields of TILE_LIST [tiles, 6]: sequence; first row and number of tokens; partials [first, stop), cut to what the
rows see; 0, or 1 + the slot of partial 0 in PARTIALS if the tile leaves its partials to `merge`."""

SPLIT_ROW, SPLIT_SLOT = range(2)
SPLIT_FIELDS = 2
"""int32 fields of SPLIT_LIST [rows, 2]: row, slot of partial 0."""


def scratch_bytes(rows: int, wide: int) -> int:
    """What a member needs: as written, from left to right.

    A head (for `kv`); each row's query, a partial's mixed values, totals, four numbers, scores; each key's position and value
    scale.
    """
    return 4 * wide + rows * (3 * 4 * wide + NUMBERS_BYTES + SCORE_STRIDE) + 2 * SCORE_STRIDE


def partial_bytes(wide: int) -> int:
    """Bytes of one stored partial of one query head: mixed values, maximum, sum."""
    return 4 * wide + PARTIAL_NUMBERS_BYTES


@jit
def _wide(dim: int) -> int:
    return (dim + 15) // 16 * 16


@jit
def _chunk_of(op: Any, position: int) -> int:
    """The chunk of a sequence that holds a position."""
    return int(position // op[BLOCK_SIZE] * op[CHUNKS] + position % op[BLOCK_SIZE] // KEYS_PER_CHUNK)


@jit
def _first_seen(op: Any, position: int) -> int:
    return max(0, position - op[WINDOW] + 1) if op[WINDOW] != 0 else 0


@jit
def _place_of_chunk(op: Any, step: Any, sequence: int, head: int, chunk: int) -> int:
    """Where a sequence's chunk lies in the pool."""
    table = step[BLOCK_TABLES] + 4 * step[TABLE_STRIDE] * sequence
    block = get_i32(table + 4 * (chunk // op[CHUNKS]))
    pool = step[KV_POOL] + op[LAYER] * step[KV_LAYER_BYTES]
    size = SCALES_BYTES + 2 * KEYS_PER_CHUNK * op[ELEMENT] * _wide(op[HEAD_DIM])
    return chunk_address(pool, block, op[KV_HEADS], head, op[CHUNKS], chunk % op[CHUNKS], size)


def attend(op: Any, step: Any, tile: int, member: int) -> None:
    """Some tokens' query heads of one key/value head, over their partials."""
    entry = step[TILE_LIST] + 4 * TILE_FIELDS * (tile // op[PARTS])
    head, wide = tile % op[PARTS], _wide(op[HEAD_DIM])
    sequence, slot = get_i32(entry + 4 * TILE_SEQUENCE), get_i32(entry + 4 * TILE_SLOT)
    first_row, tokens = get_i32(entry + 4 * TILE_ROW), get_i32(entry + 4 * TILE_TOKENS)
    rows = tokens * op[GROUP]
    step_rows = (rows + ROW_STEP - 1) // ROW_STEP * ROW_STEP
    queries = step[SCRATCH] + member * step[SCRATCH_BYTES] + 4 * wide
    totals = queries + 2 * step_rows * 4 * wide
    numbers = totals + step_rows * 4 * wide
    _gather_queries(op, first_row, tokens, head, queries)
    _clear(totals, rows * wide)
    for row in range(rows):
        put_f32(numbers + NUMBERS_BYTES * row, HIDDEN)
        put_f32(numbers + NUMBERS_BYTES * row + 4, np.float32(0.0))
    position = get_i32(step[POSITIONS] + 4 * first_row)
    start = max(get_i32(entry + 4 * TILE_FIRST), _chunk_of(op, _first_seen(op, position)) // PARTIAL_CHUNKS)
    last_chunk = _chunk_of(op, position + tokens - 1)
    for partial in range(start, min(get_i32(entry + 4 * TILE_STOP), last_chunk // PARTIAL_CHUNKS + 1)):
        _one_partial(op, step, sequence, head, partial, last_chunk, position, rows, step_rows, queries)
        for row in range(rows):
            own, mixed = numbers + NUMBERS_BYTES * row, queries + (step_rows + row) * 4 * wide
            maximum, weight = get_f32(own + 8), get_f32(own + 12)
            if slot != 0:
                query_head = (slot - 1 + partial) * op[KV_HEADS] * op[GROUP] + head * op[GROUP] + row
                _keep_partial(
                    mixed, maximum, weight, wide, step[PARTIALS] + query_head * (4 * wide + PARTIAL_NUMBERS_BYTES)
                )
            elif weight != np.float32(0.0):  # the row sees some of these keys, or has a NaN
                merge_row(totals + row * 4 * wide, own, mixed, maximum, weight, wide)
    if slot == 0:
        for row in range(rows):
            weight = get_f32(numbers + NUMBERS_BYTES * row + 4)
            query_head = head * op[GROUP] + row % op[GROUP]
            _write_result(op, totals + row * 4 * wide, weight, first_row + row // op[GROUP], query_head)


@jit
def _gather_queries(op: Any, first_row: int, tokens: int, head: int, queries: int) -> None:
    """Bring the query rows together, [tokens * GROUP][wide], with zeros beyond head_dim.

    Rows from there to the next whole step may hold anything: their results are never read.
    """
    dim, wide = op[HEAD_DIM], _wide(op[HEAD_DIM])
    for token in range(tokens):
        source = op[QKV] + (first_row + token) * op[QKV_STRIDE] + head * op[GROUP] * 4 * dim
        for i in range(op[GROUP]):
            target = queries + (token * op[GROUP] + i) * 4 * wide
            for j in range(dim):
                put_f32(target + 4 * j, get_f32(source + 4 * (i * dim + j)))
            for j in range(dim, wide):
                put_f32(target + 4 * j, np.float32(0.0))


@jit
def _clear(address: int, count: int) -> None:
    """Zeros; ``count`` is a multiple of sixteen."""
    for i in range(0, count, 16):
        store(address + 4 * i, splat(np.float32(0.0)))


@jit
def _one_partial(
    op: Any,
    step: Any,
    sequence: int,
    head: int,
    partial: int,
    last_chunk: int,
    first_position: int,
    rows: int,
    step_rows: int,
    queries: int,
) -> None:
    """Scores, softmax and mixed values of one partial; the rows' numbers 2 and 3 become its maximum and sum."""
    wide = _wide(op[HEAD_DIM])
    mixed = queries + step_rows * 4 * wide
    numbers = mixed + 2 * step_rows * 4 * wide
    scores = numbers + step_rows * NUMBERS_BYTES
    keys = scores + step_rows * SCORE_STRIDE
    first = partial * PARTIAL_CHUNKS
    chunks = min(last_chunk + 1 - first, PARTIAL_CHUNKS)
    for i in range(chunks):
        place = _place_of_chunk(op, step, sequence, head, first + i)
        ahead = _place_of_chunk(op, step, sequence, head, min(first + i + CHUNKS_AHEAD, last_chunk)) - place
        prefetch(place + ahead)  # the scales, two cache lines
        prefetch(place + ahead + 64)
        _describe_keys(op, first + i, place, keys + 64 * i)
        if op[ELEMENT] == 2:
            _score_rows(2, place, wide, queries, rows, scores + 64 * i, ahead)
        else:
            _score_rows(4, place, wide, queries, rows, scores + 64 * i, ahead)
    for row in range(rows):
        position = first_position + row // op[GROUP]
        seen = np.float32(_first_seen(op, position))
        cap = float_of_bits(op[CAP])
        own = numbers + NUMBERS_BYTES * row + 8
        softmax_row(scores + row * SCORE_STRIDE, keys, chunks, seen, np.float32(position), cap, own)
    _clear(mixed, rows * wide)
    for i in range(chunks):
        place = _place_of_chunk(op, step, sequence, head, first + i)
        ahead = _place_of_chunk(op, step, sequence, head, min(first + i + CHUNKS_AHEAD, last_chunk)) - place
        values = place + SCALES_BYTES + KEYS_PER_CHUNK * op[ELEMENT] * wide
        if op[ELEMENT] == 2:
            _mix_rows(2, values, wide, scores + 64 * i, rows, mixed, ahead)
        else:
            _mix_rows(4, values, wide, scores + 64 * i, rows, mixed, ahead)


@jit
def _describe_keys(op: Any, chunk: int, place: int, keys: int) -> None:
    """Positions and value scales of a chunk's sixteen keys; lanes behind the end of a block are nowhere."""
    inside = chunk % op[CHUNKS] * KEYS_PER_CHUNK
    start = chunk // op[CHUNKS] * op[BLOCK_SIZE]
    lanes = counting(np.float32(inside))
    last = np.float32(op[BLOCK_SIZE] - 1)
    positions = where_between(lanes + splat(np.float32(start)), lanes, np.float32(0.0), last, NOWHERE)
    store(keys, positions)
    store(keys + SCORE_STRIDE, load(place + 4 * KEYS_PER_CHUNK))


@inline
def _score_rows(size: int, place: int, wide: int, queries: int, rows: int, scores: int, ahead: int) -> None:
    keys = place + SCALES_BYTES
    row = 0
    while row < rows:
        q, s = queries + row * 4 * wide, scores + row * SCORE_STRIDE
        if rows - row > 4:
            score_tile(8, size, keys, place, wide, q, s, SCORE_STRIDE, ahead)
            row += 8
        elif rows - row > 1:
            score_tile(4, size, keys, place, wide, q, s, SCORE_STRIDE, ahead)
            row += 4
        else:
            score_tile(1, size, keys, place, wide, q, s, SCORE_STRIDE, ahead)
            row += 1


@inline
def _mix_rows(size: int, values: int, wide: int, shares: int, rows: int, mixed: int, ahead: int) -> None:
    row = 0
    while row < rows:
        p, target = shares + row * SCORE_STRIDE, mixed + row * 4 * wide
        left = rows - row
        vector = 0
        while vector < wide // 16:
            place, sums = values + 16 * size * vector, target + 64 * vector
            if vector + 2 > wide // 16:
                if left > 4:
                    value_tile(8, 1, size, place, wide, p, SCORE_STRIDE, sums, ahead)
                elif left > 1:
                    value_tile(4, 1, size, place, wide, p, SCORE_STRIDE, sums, ahead)
                else:
                    value_tile(1, 1, size, place, wide, p, SCORE_STRIDE, sums, ahead)
            elif left > 4:
                value_tile(8, 2, size, place, wide, p, SCORE_STRIDE, sums, ahead)
            elif left > 1:
                value_tile(4, 2, size, place, wide, p, SCORE_STRIDE, sums, ahead)
            else:
                value_tile(1, 2, size, place, wide, p, SCORE_STRIDE, sums, ahead)
            vector += 2
        row += 8 if left > 4 else (4 if left > 1 else 1)


@jit
def _keep_partial(mixed: int, maximum: np.float32, weight: np.float32, wide: int, place: int) -> None:
    for i in range(0, wide, 16):
        store(place + 4 * i, load(mixed + 4 * i))
    put_f32(place + 4 * wide, maximum)
    put_f32(place + 4 * wide + 4, weight)


@jit
def _write_result(op: Any, totals: int, weight: np.float32, token: int, query_head: int) -> None:
    factor = np.float32(1.0) / weight
    target = op[RESULT] + token * op[RESULT_STRIDE] + 4 * op[HEAD_DIM] * query_head
    for i in range(op[HEAD_DIM]):
        put_f32(target + 4 * i, get_f32(totals + 4 * i) * factor)


def merge(op: Any, step: Any, tile: int, member: int) -> None:
    """One query head of a row whose partials were computed by several tiles."""
    entry = step[SPLIT_LIST] + 4 * SPLIT_FIELDS * (tile // op[PARTS])
    query_head = tile % op[PARTS]
    row, slot = get_i32(entry + 4 * SPLIT_ROW), get_i32(entry + 4 * SPLIT_SLOT)
    position = get_i32(step[POSITIONS] + 4 * row)
    wide = _wide(op[HEAD_DIM])
    totals = step[SCRATCH] + member * step[SCRATCH_BYTES] + 4 * wide
    numbers = totals + 4 * wide
    _clear(totals, wide)
    put_f32(numbers, HIDDEN)
    put_f32(numbers + 4, np.float32(0.0))
    start = _chunk_of(op, _first_seen(op, position)) // PARTIAL_CHUNKS
    for partial in range(start, _chunk_of(op, position) // PARTIAL_CHUNKS + 1):
        place = step[PARTIALS] + ((slot + partial) * op[PARTS] + query_head) * (4 * wide + PARTIAL_NUMBERS_BYTES)
        maximum, weight = get_f32(place + 4 * wide), get_f32(place + 4 * wide + 4)
        if weight != np.float32(0.0):
            merge_row(totals, numbers, place, maximum, weight, wide)
    _write_result(op, totals, get_f32(numbers + 4), row, query_head)


ATTEND = Kernel(attend)
MERGE = Kernel(merge)
