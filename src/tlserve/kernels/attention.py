"""Paged causal attention with grouped query heads, for one row or a whole prefill chunk.

A tile of work is some consecutive query tokens of one sequence with all query heads of one key/value head: their rows share
every load of a key or a value. The context is cut into *partials* of PARTIAL_CHUNKS chunks (see `kv`), always at the same
positions. Within a partial: scores, their maximum, powers, sum, mixed values. Partials are then merged in order,
rescaled by their maximums (the online softmax of Milakov and Gimelshein, arXiv:1805.02867). A long context of a lone
row can be spread over several tiles, which leave their partials to `merge`; the arithmetic is the same.
Scores are in powers of two: queries come scaled by log2(e) / sqrt(D).

Invariant: a row's result depends on its own context only, not on tile sizes, neighbours, chunking or threads: keys beyond a
row's reach count as exact zeros, and partials that a row does not see are skipped.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tlserve.kernels.attention_tile import score_tile, value_tile
from tlserve.kernels.jit import Kernel, jit
from tlserve.kernels.kv import KEYS_PER_CHUNK, SCALES_BYTES, chunk_address
from tlserve.kernels.memory import float_of_bits, get_f32, get_i32, put_f32
from tlserve.kernels.simd import LOG2_E, between, exp2, fma, greater, highest, load, splat, store, total
from tlserve.kernels.tape import (
    BLOCK_TABLES,
    KV_LAYER_BYTES,
    KV_POOL,
    PARTIALS,
    PARTS,
    POSITIONS,
    SCRATCH,
    SCRATCH_BYTES,
    SEQUENCE_OF_ROW,
    SPLIT_LIST,
    TABLE_STRIDE,
    TILE_LIST,
)

PARTIAL_CHUNKS = 8

SPLIT_FROM = 4
"""A piece of a spread context has at least this many partials."""

SCORE_STRIDE = 4 * KEYS_PER_CHUNK * PARTIAL_CHUNKS
"""Bytes of a row of scores."""

ROW_STEP = 8
"""Scratch has room for whole multiples of this many rows."""

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
    RESULT,  # float32 [T, stride]
    RESULT_STRIDE,  # in bytes
    MOST_ROWS,  # query rows of the largest tile, rounded up to ROW_STEP
) = range(4, 17)
"""The fields of an attention operation and of a merge, whose parts are key/value heads and query heads."""

TILE_SEQUENCE, TILE_ROW, TILE_TOKENS, TILE_FIRST, TILE_STOP, TILE_SLOT = range(6)
"""int32 fields of TILE_LIST [tiles, 6]: sequence; first row and number of tokens; partials [first, stop), cut to what the
rows see; 0, or 1 + the slot of partial 0 in PARTIALS if the tile leaves its partials to `merge`."""

SPLIT_ROW, SPLIT_SLOT = range(2)
"""int32 fields of SPLIT_LIST [rows, 2]: row, slot of partial 0."""

HIDDEN = np.float32(-math.inf)


def scratch_bytes(rows: int, wide: int) -> int:
    """What a member needs: a head, then for each row its query, its mixed values twice, two numbers, and scores."""
    return 4 * wide + rows * (3 * 4 * wide + 16 + SCORE_STRIDE)


def partial_bytes(wide: int) -> int:
    """Bytes of one stored partial of one query head: mixed values, maximum, sum."""
    return 4 * wide + 64


@jit
def _wide(dim: int) -> int:
    return (dim + 15) // 16 * 16


@jit
def _chunk_start(op: Any, chunk: int) -> int:
    """The position of a sequence's chunk's first key."""
    return chunk // op[CHUNKS] * op[BLOCK_SIZE] + chunk % op[CHUNKS] * KEYS_PER_CHUNK


@jit
def _chunk_of(op: Any, position: int) -> int:
    return position // op[BLOCK_SIZE] * op[CHUNKS] + position % op[BLOCK_SIZE] // KEYS_PER_CHUNK


@jit
def _first_seen(op: Any, position: int) -> int:
    return max(0, position - op[WINDOW] + 1) if op[WINDOW] != 0 else 0


@jit
def _place_of_chunk(op: Any, step: Any, sequence: int, head: int, chunk: int) -> int:
    """Where a chunk lies in the pool."""
    table = step[BLOCK_TABLES] + 4 * step[TABLE_STRIDE] * sequence
    block = get_i32(table + 4 * (chunk // op[CHUNKS]))
    pool = step[KV_POOL] + op[LAYER] * step[KV_LAYER_BYTES]
    size = SCALES_BYTES + 64 * _wide(op[HEAD_DIM])
    return chunk_address(pool, block, op[KV_HEADS], head, op[CHUNKS], chunk % op[CHUNKS], size)


def attend(op: Any, step: Any, tile: int, member: int) -> None:
    """Some tokens' query heads of one key/value head, over their partials."""
    entry = step[TILE_LIST] + 24 * (tile // op[PARTS])
    head = tile % op[PARTS]
    first_row, tokens = get_i32(entry + 4 * TILE_ROW), get_i32(entry + 4 * TILE_TOKENS)
    wide, rows = _wide(op[HEAD_DIM]), tokens * op[GROUP]
    # Scratch: a head that `store_kv` uses; queries; a partial's mixed values; merged ones; maximums and sums; scores.
    queries = step[SCRATCH] + member * step[SCRATCH_BYTES] + 4 * wide
    mixed = queries + op[MOST_ROWS] * 4 * wide
    merged = mixed + op[MOST_ROWS] * 4 * wide
    scores = merged + op[MOST_ROWS] * (4 * wide + 16)
    _gather_queries(op, first_row, tokens, head, queries)
    _clear(merged, op[MOST_ROWS] * wide)
    for row in range(rows):
        put_f32(merged + op[MOST_ROWS] * 4 * wide + 16 * row, HIDDEN)
        put_f32(merged + op[MOST_ROWS] * 4 * wide + 16 * row + 4, np.float32(0.0))
    first_position = get_i32(step[POSITIONS] + 4 * first_row)
    start = max(get_i32(entry + 4 * TILE_FIRST), _chunk_of(op, _first_seen(op, first_position)) // PARTIAL_CHUNKS)
    last_chunk = _chunk_of(op, first_position + tokens - 1)
    stop = min(get_i32(entry + 4 * TILE_STOP), last_chunk // PARTIAL_CHUNKS + 1)
    slot = get_i32(entry + 4 * TILE_SLOT)
    for partial in range(start, stop):
        _one_partial(op, step, entry, head, partial, last_chunk, queries, mixed, merged, scores, slot)
    if slot == 0:
        for row in range(rows):
            token, query_head = first_row + row // op[GROUP], head * op[GROUP] + row % op[GROUP]
            numbers = merged + op[MOST_ROWS] * 4 * wide + 16 * row
            _write_result(op, merged + row * 4 * wide, get_f32(numbers + 4), token, query_head)


@jit
def _gather_queries(op: Any, first_row: int, tokens: int, head: int, queries: int) -> None:
    """Bring the query rows together, [tokens * GROUP][wide]; what is beyond them, up to whole steps, is zero."""
    dim, wide = op[HEAD_DIM], _wide(op[HEAD_DIM])
    _clear(queries, op[MOST_ROWS] * wide)
    for token in range(tokens):
        source = op[QKV] + (first_row + token) * op[QKV_STRIDE] + head * op[GROUP] * 4 * dim
        for i in range(op[GROUP]):
            target = queries + (token * op[GROUP] + i) * 4 * wide
            for j in range(dim):
                put_f32(target + 4 * j, get_f32(source + 4 * (i * dim + j)))


@jit
def _clear(address: int, count: int) -> None:
    for i in range(count):
        put_f32(address + 4 * i, np.float32(0.0))


@jit
def _one_partial(
    op: Any,
    step: Any,
    entry: int,
    head: int,
    partial: int,
    last_chunk: int,
    queries: int,
    mixed: int,
    merged: int,
    scores: int,
    slot: int,
) -> None:
    """Scores, softmax and mixed values of one partial, merged into the rows' totals or stored for `merge`."""
    sequence, first_row = get_i32(entry + 4 * TILE_SEQUENCE), get_i32(entry + 4 * TILE_ROW)
    wide, rows = _wide(op[HEAD_DIM]), get_i32(entry + 4 * TILE_TOKENS) * op[GROUP]
    first = partial * PARTIAL_CHUNKS
    chunks = min(last_chunk + 1 - first, PARTIAL_CHUNKS)
    for i in range(chunks):
        place = _place_of_chunk(op, step, sequence, head, first + i)
        _score_rows(place, wide, queries, rows, scores + 64 * i)
    first_position = get_i32(step[POSITIONS] + 4 * first_row)
    numbers = merged + op[MOST_ROWS] * 4 * wide
    for row in range(rows):
        position = first_position + row // op[GROUP]
        _softmax_row(op, step, sequence, head, first, chunks, position, scores + row * SCORE_STRIDE, numbers + 16 * row + 8)
    _clear(mixed, op[MOST_ROWS] * wide)
    for i in range(chunks):
        place = _place_of_chunk(op, step, sequence, head, first + i)
        _mix_rows(place + SCALES_BYTES + 32 * wide, wide, scores + 64 * i, rows, mixed)
    for row in range(rows):
        position = first_position + row // op[GROUP]
        own = numbers + 16 * row
        maximum, weight = get_f32(own + 8), get_f32(own + 12)
        if slot != 0:
            query_head = head * op[GROUP] + row
            place = step[PARTIALS] + ((slot - 1 + partial) * op[KV_HEADS] * op[GROUP] + query_head) * (4 * wide + 64)
            _copy_row(mixed + row * 4 * wide, wide, place)
            put_f32(place + 4 * wide, maximum)
            put_f32(place + 4 * wide + 4, weight)
        elif _sees(op, first, chunks, position):
            _merge_row(merged + row * 4 * wide, own, mixed + row * 4 * wide, maximum, weight, wide)


@jit
def _sees(op: Any, first: int, chunks: int, position: int) -> bool:
    """Whether a row at ``position`` sees any key of chunks first, first + 1, ..."""
    after = _chunk_start(op, first + chunks)
    return _chunk_start(op, first) <= position and _first_seen(op, position) < after


@jit
def _score_rows(place: int, wide: int, queries: int, rows: int, scores: int) -> None:
    keys = place + SCALES_BYTES
    row = 0
    while row < rows:
        q, s = queries + row * 4 * wide, scores + row * SCORE_STRIDE
        if rows - row > 4:
            score_tile(8, keys, place, wide, q, s, SCORE_STRIDE)
            row += 8
        elif rows - row > 1:
            score_tile(4, keys, place, wide, q, s, SCORE_STRIDE)
            row += 4
        else:
            score_tile(1, keys, place, wide, q, s, SCORE_STRIDE)
            row += 1


@jit
def _mix_rows(values: int, wide: int, shares: int, rows: int, mixed: int) -> None:
    row = 0
    while row < rows:
        p, target = shares + row * SCORE_STRIDE, mixed + row * 4 * wide
        left = rows - row
        vector = 0
        while vector < wide // 16:
            place, sums = values + 32 * vector, target + 64 * vector
            if vector + 2 > wide // 16:
                if left > 4:
                    value_tile(8, 1, place, wide, p, SCORE_STRIDE, sums)
                elif left > 1:
                    value_tile(4, 1, place, wide, p, SCORE_STRIDE, sums)
                else:
                    value_tile(1, 1, place, wide, p, SCORE_STRIDE, sums)
            elif left > 4:
                value_tile(8, 2, place, wide, p, SCORE_STRIDE, sums)
            elif left > 1:
                value_tile(4, 2, place, wide, p, SCORE_STRIDE, sums)
            else:
                value_tile(1, 2, place, wide, p, SCORE_STRIDE, sums)
            vector += 2
        row += 8 if left > 4 else (4 if left > 1 else 1)


@jit
def _softmax_row(
    op: Any, step: Any, sequence: int, head: int, first: int, chunks: int, position: int, scores: int, numbers: int
) -> None:
    """Turn scores into shares: 2**(score - maximum) * value scale; ``numbers`` get the maximum and the sum of powers."""
    cap, first_seen = float_of_bits(op[CAP]), _first_seen(op, position)
    peaks = splat(HIDDEN)
    for i in range(chunks):
        start = _chunk_start(op, first + i)
        score = load(scores + 64 * i)
        if cap > np.float32(0.0):
            score = _capped(score, cap)
        stop = min(position + 1 - start, op[BLOCK_SIZE] - (first + i) % op[CHUNKS] * KEYS_PER_CHUNK)
        if first_seen > start or stop < KEYS_PER_CHUNK:
            score = between(score, first_seen - start, stop, HIDDEN)
        store(scores + 64 * i, score)
        peaks = greater(score, peaks)
    maximum = highest(peaks)
    sums = splat(np.float32(0.0))
    for i in range(chunks):
        start = _chunk_start(op, first + i)
        stop = min(position + 1 - start, op[BLOCK_SIZE] - (first + i) % op[CHUNKS] * KEYS_PER_CHUNK)
        share = splat(np.float32(0.0))
        if stop > 0 and first_seen - start < KEYS_PER_CHUNK:
            power = exp2(load(scores + 64 * i) - splat(maximum))
            sums = sums + power
            scales = _place_of_chunk(op, step, sequence, head, first + i) + 4 * KEYS_PER_CHUNK
            share = power * load(scales)
            if first_seen > start or stop < KEYS_PER_CHUNK:
                share = between(share, first_seen - start, stop, np.float32(0.0))
        store(scores + 64 * i, share)
    put_f32(numbers, maximum)
    put_f32(numbers + 4, total(sums))


@jit
def _capped(score: Any, cap: np.float32) -> Any:
    """cap * tanh(score) * log2(e); tanh x = 1 - 2 / (1 + e**2x)."""
    one = splat(np.float32(1.0))
    tanh = one - splat(np.float32(2.0)) / (one + exp2(score * splat(np.float32(2.0 * LOG2_E))))
    return tanh * splat(cap * np.float32(LOG2_E))


@jit
def _copy_row(source: int, wide: int, target: int) -> None:
    for i in range(0, wide, 16):
        store(target + 4 * i, load(source + 4 * i))


@jit
def _merge_row(merged: int, numbers: int, mixed: int, maximum: np.float32, weight: np.float32, wide: int) -> None:
    """Add a partial to a row's totals; ``numbers``: the totals' maximum and sum."""
    before = get_f32(numbers)
    after = max(before, maximum)
    keep, join = exp2(splat(before - after)), exp2(splat(maximum - after))
    for i in range(0, wide, 16):
        store(merged + 4 * i, fma(load(mixed + 4 * i), join, load(merged + 4 * i) * keep))
    sums = fma(splat(weight), join, splat(get_f32(numbers + 4)) * keep)
    put_f32(numbers, after)
    put_f32(numbers + 4, highest(sums))


@jit
def _write_result(op: Any, merged: int, weight: np.float32, token: int, query_head: int) -> None:
    factor = np.float32(1.0) / weight
    target = op[RESULT] + token * op[RESULT_STRIDE] + 4 * op[HEAD_DIM] * query_head
    for i in range(op[HEAD_DIM]):
        put_f32(target + 4 * i, get_f32(merged + 4 * i) * factor)


def merge(op: Any, step: Any, tile: int, member: int) -> None:
    """One query head of a row whose partials were computed by several tiles."""
    entry = step[SPLIT_LIST] + 8 * (tile // op[PARTS])
    query_head = tile % op[PARTS]
    row, slot = get_i32(entry + 4 * SPLIT_ROW), get_i32(entry + 4 * SPLIT_SLOT)
    position = get_i32(step[POSITIONS] + 4 * row)
    wide = _wide(op[HEAD_DIM])
    merged = step[SCRATCH] + member * step[SCRATCH_BYTES] + 4 * wide
    numbers = merged + 4 * wide
    _clear(merged, wide)
    put_f32(numbers, HIDDEN)
    put_f32(numbers + 4, np.float32(0.0))
    start = _chunk_of(op, _first_seen(op, position)) // PARTIAL_CHUNKS
    for partial in range(start, _chunk_of(op, position) // PARTIAL_CHUNKS + 1):
        place = step[PARTIALS] + ((slot + partial) * op[PARTS] + query_head) * (4 * wide + 64)
        _merge_row(merged, numbers, place, get_f32(place + 4 * wide), get_f32(place + 4 * wide + 4), wide)
    _write_result(op, merged, get_f32(numbers + 4), row, query_head)


ATTEND = Kernel(attend)
MERGE = Kernel(merge)


def plan(
    query_start: list[int],
    context_len: list[int],
    *,
    tokens_per_tile: int,
    block_size: int,
    wanted: int,
    room: int,
) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Cut a batch into tiles: TILE_LIST [tiles, 6] and SPLIT_LIST [rows, 2]. Changes who computes, never what.

    Args:
        query_start, context_len: see `model.batch.ForwardBatch`, [S + 1] and [S].
        tokens_per_tile: the most query tokens of a tile.
        block_size: tokens per KV block.
        wanted: tiles that keep the team busy; when sequences yield fewer, long contexts of lone rows are spread.
        room: partials that fit PARTIALS.

    """
    tiles: list[tuple[int, int, int, int, int, int]] = []
    splits: list[tuple[int, int]] = []
    pieces = wanted // len(context_len)
    used = 0
    for sequence, context in enumerate(context_len):
        first, stop = query_start[sequence], query_start[sequence + 1]
        partials = num_partials(context, block_size)
        if stop - first == 1 and min(pieces, partials // SPLIT_FROM) > 1 and used + partials <= room:
            edges = [partials * i // pieces for i in range(pieces + 1)]
            tiles += [(sequence, first, 1, low, high, 1 + used) for low, high in pairwise(edges)]
            splits.append((first, used))
            used += partials
        else:
            for row in range(first, stop, tokens_per_tile):
                tiles.append((sequence, row, min(tokens_per_tile, stop - row), 0, partials, 0))
    return np.array(tiles, np.int32).reshape(-1, 6), np.array(splits, np.int32).reshape(-1, 2)


def num_partials(context: int, block_size: int) -> int:
    """Partials of a context."""
    chunks_per_block = -(-block_size // KEYS_PER_CHUNK)
    last = context - 1
    last_chunk = last // block_size * chunks_per_block + last % block_size // KEYS_PER_CHUNK
    return last_chunk // PARTIAL_CHUNKS + 1
