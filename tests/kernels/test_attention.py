"""Paged attention against the plain reference, in pools of every shape, and its promise about bits."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pytest
from attrs import evolve, frozen
from numpy.typing import NDArray

from tlserve.kernels import attention, kv, reference
from tlserve.kernels.buffers import aligned_zeros, padded
from tlserve.kernels.plan import num_partials, plan_attention
from tlserve.kernels.simd import LOG2_E
from tlserve.kernels.tape import (
    BLOCK_TABLES,
    KV_POOL,
    PARTIALS,
    POSITIONS,
    QUERY_TILES,
    SCRATCH,
    SCRATCH_BYTES,
    SEQUENCE_OF_ROW,
    SPLIT_LIST,
    SPLIT_ROWS,
    TABLE_STRIDE,
    TILE_LIST,
    Field,
)

Play = Callable[..., None]
Floats = NDArray[np.float32]

CONTEXT = 300


@frozen(kw_only=True)
class Shape:
    """What attention may look like."""

    heads: int = 6
    kv_heads: int = 2
    dim: int = 32
    block_size: int = 16
    window: int | None = None
    cap: float | None = None
    element: int = 2
    members: int = 2
    tokens_per_tile: int = 5
    wanted: int = 0


class Pool:
    """A KV pool of one layer, in which a sequence of CONTEXT random tokens owns blocks that lie anywhere."""

    def __init__(self, play: Play, shape: Shape, seed: int = 0) -> None:
        self.play, self.shape = play, shape
        random = np.random.default_rng(seed)
        num_blocks = -(-CONTEXT // shape.block_size)
        self.table = random.permutation(num_blocks + 3).astype(np.int32)[None, :num_blocks].copy()
        self.chunks = -(-shape.block_size // kv.KEYS_PER_CHUNK)
        size = (num_blocks + 3) * shape.kv_heads * self.chunks * kv.chunk_bytes(shape.dim, shape.element)
        self.pool = aligned_zeros(size, np.uint8)
        self.pool[:] = 0x3A  # stale, finite rubbish wherever nothing is stored
        self.heads = random.standard_normal((CONTEXT, shape.heads + 2 * shape.kv_heads, shape.dim)).astype(np.float32)
        self.cosines, self.sines = np.ones((2, CONTEXT, shape.dim // 2), np.float32) * [[[0.8]], [[0.6]]]
        self.cosines, self.sines = self.cosines.astype(np.float32), self.sines.astype(np.float32)

    def attend(self, start: int, stop: int) -> Floats:
        """Store rows start to stop - 1 and attend: [rows, heads, dim]."""
        shape, rows = self.shape, stop - start
        qkv = self.heads[start:stop].reshape(rows, -1).copy()  # queries are turned in place
        out = np.zeros((rows, shape.heads * shape.dim), np.float32)
        wide, group = kv.padded_dim(shape.dim), shape.heads // shape.kv_heads
        most_rows = padded(shape.tokens_per_tile * group, attention.ROW_STEP)
        scratch_bytes = padded(attention.scratch_bytes(most_rows, wide), 64)
        tiles, splits = plan_attention(
            [0, rows],
            [stop],
            tokens_per_tile=shape.tokens_per_tile,
            block_size=shape.block_size,
            wanted=shape.wanted,
            room=64,
        )
        step: dict[int, Field] = {
            POSITIONS: np.arange(start, stop, dtype=np.int32),
            SEQUENCE_OF_ROW: np.zeros(rows, np.int32),
            BLOCK_TABLES: self.table,
            TABLE_STRIDE: self.table.shape[1],
            KV_POOL: self.pool,
            SCRATCH: aligned_zeros(2 * scratch_bytes, np.uint8),
            SCRATCH_BYTES: scratch_bytes,
            PARTIALS: aligned_zeros(64 * shape.heads * attention.partial_bytes(wide), np.uint8),
            TILE_LIST: tiles,
            SPLIT_LIST: splits,
        }
        scale = LOG2_E / np.sqrt(shape.dim) if shape.cap is None else 1 / np.sqrt(shape.dim) / shape.cap
        where = (0, shape.block_size, self.chunks, shape.element)
        numbers = (shape.heads, shape.kv_heads, shape.dim, self.cosines, self.sines, None, None, 0.0, float(scale))
        self.play(kv.STORE_KV, qkv, qkv.strides[0], *numbers, *where, rows=rows, members=shape.members, step=step)
        fields = (qkv, qkv.strides[0], shape.kv_heads, group, shape.dim, shape.window or 0, shape.cap or 0.0, *where)
        result = (out, out.strides[0], most_rows)
        common = {"rows_per_tile": 1, "members": shape.members, "step": step}
        for kernel, extent, count, parts in (
            (attention.ATTEND, QUERY_TILES, len(tiles), shape.kv_heads),
            (attention.MERGE, SPLIT_ROWS, len(splits), shape.heads),
        ):
            self.play(kernel, *fields, *result, rows=count, extent=extent, parts=parts, **common)
        return out.reshape(rows, shape.heads, shape.dim)

    def expected(self, start: int, stop: int) -> Floats:
        """The same by the reference."""
        shape = self.shape
        turned = reference.rotate(self.heads, self.cosines, self.sines)
        query, key = turned[start:stop, : shape.heads], turned[:stop, shape.heads : -shape.kv_heads]
        value = self.heads[:stop, -shape.kv_heads :]
        scale = 1 / np.sqrt(shape.dim)
        return reference.attention(query, key, value, scale=float(scale), window=shape.window, cap=shape.cap)


SHAPES = {
    "grouped heads": Shape(),
    "float32 pool": Shape(element=4),
    "one head for all": Shape(heads=8, kv_heads=1),
    "a head each": Shape(heads=2, kv_heads=2, tokens_per_tile=1),
    "odd head size": Shape(dim=24),
    "small heads": Shape(dim=16),
    "large heads": Shape(heads=2, kv_heads=1, dim=128),
    "blocks of 4": Shape(block_size=4),
    "blocks of 20": Shape(block_size=20),
    "blocks of 64": Shape(block_size=64),
    "sliding window": Shape(window=37),
    "window in odd blocks": Shape(window=150, block_size=12),
    "soft cap": Shape(cap=2.0),
}


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_attention_is_the_references(play: Play, shape: Shape) -> None:
    """A prompt in uneven chunks, then single tokens."""
    pool = Pool(play, shape)
    tolerance = 2e-6 if shape.element == 4 else 2e-4
    for start, stop in ((0, 1), (1, 40), (40, 297), (297, 298), (298, 300)):
        np.testing.assert_allclose(pool.attend(start, stop), pool.expected(start, stop), atol=tolerance)


@pytest.mark.parametrize("name", ["grouped heads", "float32 pool", "blocks of 20", "sliding window"])
def test_a_row_has_the_same_bits_however_it_is_computed(play: Play, name: str) -> None:
    """Whole, in chunks, alone, with its context spread over tiles, in tiles of any size, with one thread or two."""
    shape = SHAPES[name]
    whole = Pool(play, shape).attend(0, CONTEXT)
    for cut in (
        evolve(shape, tokens_per_tile=2),
        evolve(shape, tokens_per_tile=64, members=1),
        evolve(shape, wanted=9),
    ):
        pool = Pool(play, cut)
        edges = [0, 1, 2, 9, 16, 17, 145, 290, *range(291, CONTEXT + 1)]
        pieces = [pool.attend(start, stop) for start, stop in pairwise(edges)]
        np.testing.assert_array_equal(np.concatenate(pieces), whole)


def test_where_blocks_lie_changes_nothing(play: Play) -> None:
    """Another permutation of the pool, the same tokens."""
    one, other = Pool(play, Shape()), Pool(play, Shape())
    other.table = other.table[:, ::-1].copy()
    np.testing.assert_array_equal(one.attend(0, CONTEXT), other.attend(0, CONTEXT))


def test_a_nan_stays_in_its_own_sequence(play: Play) -> None:
    """A broken token breaks the rows that see it, and no row of a later owner of its blocks."""
    pool = Pool(play, Shape())
    good, clean = pool.attend(0, CONTEXT), pool.heads.copy()
    pool.heads[200] = np.nan
    broken = pool.attend(0, CONTEXT)
    assert np.isnan(broken[200:]).all()
    np.testing.assert_array_equal(broken[:200], good[:200])
    pool.heads = clean
    np.testing.assert_array_equal(pool.attend(0, 195), good[:195])


def test_every_partial_of_a_spread_context_has_one_tile() -> None:
    """The plan covers the context once, in order, and only where it is worth it."""
    tiles, splits = plan_attention([0, 1, 9], [5000, 40], tokens_per_tile=4, block_size=16, wanted=8, room=100)
    spread = tiles[tiles[:, 5] > 0]
    assert [*spread[:, 3], num_partials(5000, 16)] == [0, *spread[:, 4]]
    assert splits.tolist() == [[0, 0]]
    assert tiles[tiles[:, 5] == 0][:, :3].tolist() == [[1, 1, 4], [1, 5, 4]]
    both, slots = plan_attention([0, 1, 2], [5000, 3000], tokens_per_tile=4, block_size=16, wanted=8, room=100)
    assert slots.tolist() == [[0, 0], [1, num_partials(5000, 16)]]
    assert sorted(set(both[:, 5] - 1)) == [0, num_partials(5000, 16)]
    tight, none = plan_attention(
        [0, 1], [5000], tokens_per_tile=4, block_size=16, wanted=8, room=num_partials(5000, 16) - 1
    )
    assert (len(tight), len(none)) == (1, 0)
