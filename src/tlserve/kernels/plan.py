"""Cutting the attention of a step into tiles of work.

Decides who computes, never what: `attention` yields the same bits for any plan.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from tlserve.kernels.kv import KEYS_PER_CHUNK
from tlserve.kernels.softmax import PARTIAL_CHUNKS

SPLIT_FROM = 2
"""A piece of a spread context has at least this many partials."""


def plan_attention(
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
        query_start: [S + 1] sequence s owns rows query_start[s] to query_start[s + 1] - 1.
        context_len: [S] position of a sequence's last row + 1.
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
