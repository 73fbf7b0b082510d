"""The softmax of a partial's scores, and putting partials together.

Scores are powers of two. Exact zeros stand for keys that a row does not see, so their number changes nothing.
"""

# ruff: noqa: PLR0917  compiled code calls by position

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tlserve.kernels.jit import jit
from tlserve.kernels.kv import KEYS_PER_CHUNK
from tlserve.kernels.memory import get_f32, put_f32
from tlserve.kernels.simd import LOG2_E, exp2, first, fma, greater, highest, load, splat, store, total, where_between

PARTIAL_CHUNKS = 16

SCORE_STRIDE = 4 * KEYS_PER_CHUNK * PARTIAL_CHUNKS
"""Bytes of a row of scores."""

HIDDEN = np.float32(-math.inf)


@jit
def softmax_row(
    scores: int, keys: int, chunks: int, first_seen: np.float32, position: np.float32, cap: np.float32, numbers: int
) -> None:
    """Turn scores into shares: 2**(score - maximum) * value scale, 0 for keys that the row does not see.

    ``numbers`` get the maximum and the sum of powers, which is 0 if and only if the row sees no key.
    """
    peaks = splat(HIDDEN)
    for i in range(chunks):
        score = load(scores + 64 * i)
        if cap > np.float32(0.0):
            score = _capped(score, cap)
        if not _sees_all(keys + 64 * i, first_seen, position):
            score = where_between(score, load(keys + 64 * i), first_seen, position, HIDDEN)
        store(scores + 64 * i, score)
        peaks = greater(score, peaks)
    maximum = highest(peaks)
    sums = splat(np.float32(0.0))
    for i in range(chunks):
        power = exp2(load(scores + 64 * i) - splat(maximum))
        share = power * load(keys + SCORE_STRIDE + 64 * i)
        if not _sees_all(keys + 64 * i, first_seen, position):
            seen = load(keys + 64 * i)
            power = where_between(power, seen, first_seen, position, np.float32(0.0))
            share = where_between(share, seen, first_seen, position, np.float32(0.0))
        store(scores + 64 * i, share)
        sums = sums + power
    put_f32(numbers, maximum)
    put_f32(numbers + 4, total(sums))


@jit
def _sees_all(positions: int, first_seen: np.float32, position: np.float32) -> bool:
    """Whether a row sees all sixteen keys of a chunk: their positions ascend, and nowhere is beyond every row."""
    return bool(get_f32(positions) >= first_seen and get_f32(positions + 60) <= position)


@jit
def _capped(score: Any, cap: np.float32) -> Any:
    """Cap * tanh(score) * log2(e); tanh x = 1 - 2 / (1 + e**2x)."""
    one = splat(np.float32(1.0))
    tanh = one - splat(np.float32(2.0)) / (one + exp2(score * splat(np.float32(2.0 * LOG2_E))))
    return tanh * splat(cap * np.float32(LOG2_E))


@jit
def merge_row(totals: int, numbers: int, mixed: int, maximum: np.float32, weight: np.float32, wide: int) -> None:
    """Add a partial to a row's totals; ``numbers``: the totals' maximum and sum."""
    before = get_f32(numbers)
    keep = join = splat(np.float32(1.0))
    if maximum <= before:
        join = exp2(splat(maximum - before))
    else:
        keep = exp2(splat(before - maximum))
        put_f32(numbers, maximum)
    for i in range(0, wide, 16):
        store(totals + 4 * i, fma(load(mixed + 4 * i), join, load(totals + 4 * i) * keep))
    put_f32(numbers + 4, first(fma(splat(weight), join, splat(get_f32(numbers + 4)) * keep)))
