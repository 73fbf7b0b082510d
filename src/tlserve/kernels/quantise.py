"""Rounding activations: a float32 row becomes int16 groups of 32 with a scale and a scaled sum each.

The greatest magnitude of a group maps to 32767. Sixteen bits are what keeps the model's answers those of float32; eight, as
others use, change them.
Invariant: a group with a NaN or an infinity has a NaN scale, so nothing that is broken looks healthy further on.
"""

from __future__ import annotations

import numpy as np

from tlserve.kernels.jit import jit
from tlserve.kernels.memory import put_f32
from tlserve.kernels.simd import absolute, greater, highest, load, nearest, splat, store_i16, total

LEVELS = np.float32(32767.0)
SMALLEST = np.float32(1e-30)
"""Groups below this are zero: its reciprocal times LEVELS is still finite."""


@jit
def quantise_row(x: int, groups: int, q: int, scales: int) -> None:
    """Round float32 x [groups * 32] to int16 q, same length, and float32 scales [2, groups]: scales, then sums.

    All arguments but ``groups`` are addresses.
    """
    for group in range(groups):
        low, high = load(x + 128 * group), load(x + 128 * group + 64)
        peak = highest(greater(absolute(low), absolute(high)))
        scale = np.float32(0.0)
        factor = np.float32(0.0)
        if peak > SMALLEST:
            scale, factor = peak / LEVELS, LEVELS / peak
        low, high = nearest(low * splat(factor)), nearest(high * splat(factor))
        store_i16(q + 64 * group, low)
        store_i16(q + 64 * group + 32, high)
        whole = total(low + high)  # exact: below 2**21; NaN if anything was
        put_f32(scales + 4 * group, scale + whole * np.float32(0.0))
        put_f32(scales + 4 * (groups + group), scale * whole)
