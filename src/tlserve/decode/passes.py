"""Compiled passes over one row of logits: weigh it, cut it, find where a cut falls.

Leaves to `distribution` what is cut and why. A row comes padded to whole spans, with logits of -inf, weights of 0, behind its
end; the sum of each span is kept beside the weights, so that a draw looks into one span only.
Invariant: one order of adding, so a row's numbers depend on that row alone: sixteen lanes within a span, float64 elsewhere.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import types
from numpy.typing import NDArray

from tlserve.kernels import emit
from tlserve.kernels.jit import instruction, jit
from tlserve.kernels.memory import float_of_bits
from tlserve.kernels.simd import exp2, greater, highest, load, splat, store, total, where_between

LANES = 16
SPAN = 256
"""Weights that are summed before any of them is looked at."""

MOST_BEST = 128
"""The longest list that `find_best` keeps: it is sorted by insertion."""

Row = NDArray[np.float32]
Sums = NDArray[np.float64]


@instruction
def bits_of_float(_typing: Any, _value: Any) -> Any:
    """The bits of a float32 that is not negative, as int64."""

    def codegen(_context: Any, b: Any, _signature: Any, args: Any) -> Any:
        return b.zext(b.bitcast(args[0], emit.i32), emit.i64)

    return types.int64(types.float32), codegen


@jit
def weigh(logits: Row, weights: Row, sums: Sums, peak: np.float32, slope: np.float32) -> None:
    """Weights = 2**((logits - peak) * slope), and ``sums`` [spans]; about 10 us for 50,000 logits."""
    peaks, slopes = splat(peak), splat(slope)
    source, target = logits.ctypes.data, weights.ctypes.data
    for span in range(len(sums)):
        lanes = splat(np.float32(0.0))
        for i in range(span * SPAN, (span + 1) * SPAN, LANES):
            weight = exp2((load(source + 4 * i) - peaks) * slopes)
            store(target + 4 * i, weight)
            lanes = lanes + weight
        sums[span] = total(lanes)


@jit
def keep_from(weights: Row, sums: Sums, keys: Row, edge: np.float32) -> None:
    """Zero the weights whose key is below ``edge``; keys [n] are logits, or the weights themselves."""
    source, target = keys.ctypes.data, weights.ctypes.data
    for span in range(len(sums)):
        lanes = splat(np.float32(0.0))
        for i in range(span * SPAN, (span + 1) * SPAN, LANES):
            weight = where_between(
                load(target + 4 * i), load(source + 4 * i), edge, np.float32(math.inf), np.float32(0.0)
            )
            store(target + 4 * i, weight)
            lanes = lanes + weight
        sums[span] = total(lanes)


@jit
def find_nucleus(weights: Row, goal: float, floor: np.float32) -> tuple[np.float32, int]:
    """Where top_p cuts: the lowest of the fewest highest weights that reach the sum ``goal``, and how many of that value.

    Weights from 0 to 1 are ordered as their bits are, so halving an interval of bits finds the one value at the edge, without
    sorting. Each pass, of some 4 us, moves an end of the interval to a weight that is there: about as many passes as a
    search among these weights would need. All from ``floor`` together are known to reach the goal.
    """
    low, high = bits_of_float(floor), bits_of_float(np.float32(1.0)) + 1  # from low on is enough, from high on is not
    above = 0.0
    while high - low > 1:
        reached, lowest, below = _look_from(weights, float_of_bits((low + high) // 2))
        if reached >= goal:
            low = bits_of_float(lowest)
        else:
            above, high = reached, max(bits_of_float(below), low) + 1
    edge = float_of_bits(low)
    return edge, max(1, math.ceil((goal - above) / edge)) if edge > 0.0 else len(weights)


@jit
def _look_from(weights: Row, edge: np.float32) -> tuple[float, np.float32, np.float32]:
    """The sum of the weights of at least ``edge`` > 0, the lowest of them (1 if there is none), and the highest of the others."""
    source, whole = weights.ctypes.data, 0.0
    last = float_of_bits(bits_of_float(edge) - 1)
    zero, below, negatives = splat(np.float32(0.0)), splat(np.float32(0.0)), splat(np.float32(-1.0))
    for start in range(0, len(weights), SPAN):
        lanes = zero
        for i in range(start, start + SPAN, LANES):
            weight = load(source + 4 * i)
            lanes = lanes + where_between(weight, weight, edge, np.float32(1.0), np.float32(0.0))
            below = greater(where_between(weight, weight, np.float32(0.0), last, np.float32(0.0)), below)
            negatives = greater(
                where_between(zero - weight, weight, edge, np.float32(1.0), np.float32(-1.0)), negatives
            )
        whole += total(lanes)
    return whole, -highest(negatives), highest(below)


@jit
def find_best(logits: Row, ids: NDArray[np.int64]) -> None:
    """The ids of the ``len(ids)`` highest logits, at most MOST_BEST, best first; of equals the lower id is better."""
    values = np.empty(len(ids), np.float32)
    kept = 0
    for i in range(MOST_BEST):
        kept = _insert(values, ids, kept, logits[i], i)
    source = logits.ctypes.data
    for start in range(MOST_BEST, len(logits), LANES):
        if highest(load(source + 4 * start)) > values[kept - 1]:
            for i in range(start, start + LANES):
                kept = _insert(values, ids, kept, logits[i], i)


@jit
def _insert(values: Row, ids: NDArray[np.int64], kept: int, value: np.float32, name: int) -> int:
    """Put a value in its place behind its equals, if it is among the best; how many are kept then."""
    if kept == len(values):
        if value <= values[kept - 1]:
            return kept
        kept -= 1
    place = kept
    while place > 0 and values[place - 1] < value:
        values[place], ids[place] = values[place - 1], ids[place - 1]
        place -= 1
    values[place], ids[place] = value, name
    return kept + 1
