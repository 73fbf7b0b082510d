"""What greedy decoding and logprobs need from a row of logits, in one pass over memory each.

Leaves temperature, filters, penalties and draws to the sampler.
Invariant: sums are added in sixteen lanes and one fixed tree, so a row's numbers depend on nothing but the row.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from tlserve.kernels.jit import jit
from tlserve.kernels.memory import get_f32
from tlserve.kernels.simd import LOG2_E, exp2, greater, highest, load, splat, total

LANES = 16
LOWEST = np.float32(-3.0e38)
"""Below any logit that means something."""


def argmax_logsumexp(row: NDArray[np.float32]) -> tuple[int, float, float, bool]:
    """Of logits [vocab], C-contiguous: (index of the first maximum, the maximum, log(sum(exp(row))), whether any is NaN).

    With a NaN the other three mean nothing; -inf entries are allowed, if not all are. Any thread; lets go of the GIL; about
    10 us for 50,000 logits.
    """
    return _argmax_logsumexp(row.ctypes.data, len(row))


@jit
def _argmax_logsumexp(row: int, count: int) -> tuple[int, float, float, bool]:
    whole = count // LANES * LANES
    maximum, poison = _maximum(row, whole, count)
    sums = _sum_of_powers(row, whole, maximum)
    for i in range(whole, count):
        sums += 2.0 ** ((get_f32(row + 4 * i) - maximum) * LOG2_E)
    return _first_index(row, count, maximum), float(maximum), float(maximum) + math.log(sums), poison


@jit
def _maximum(row: int, whole: int, count: int) -> tuple[np.float32, bool]:
    """The maximum, and whether there is a NaN."""
    peaks, poison = splat(np.float32(-math.inf)), splat(np.float32(0.0))
    zero = splat(np.float32(0.0))
    for i in range(0, whole, LANES):
        logits = load(row + 4 * i)
        peaks = greater(logits, peaks)
        # NaN only from NaN: -inf is brought to a finite number before it meets the zero.
        poison = poison + greater(splat(LOWEST), logits) * zero
    maximum, nans = highest(peaks), total(poison)
    for i in range(whole, count):
        logit = get_f32(row + 4 * i)
        nans += np.float32(0.0) if not math.isnan(logit) else np.float32(math.nan)
        maximum = max(maximum, logit)
    return maximum, math.isnan(nans)


@jit
def _sum_of_powers(row: int, whole: int, maximum: np.float32) -> float:
    """The sum of e**(logit - maximum) over whole vectors."""
    sums, highest_logit, slope = splat(np.float32(0.0)), splat(maximum), splat(np.float32(LOG2_E))
    for i in range(0, whole, LANES):
        sums = sums + exp2((load(row + 4 * i) - highest_logit) * slope)
    return float(total(sums))


@jit
def _first_index(row: int, count: int, maximum: np.float32) -> int:
    for i in range(count):
        if get_f32(row + 4 * i) == maximum:
            return i
    return 0
