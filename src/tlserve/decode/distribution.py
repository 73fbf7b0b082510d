"""Arithmetic on one row of logits: the normaliser, the best tokens, a draw.

The heavy loops of sampling, and nothing else: no request, no state. Every function reads one row and reduces it in one
order, so its result depends on that row alone, to the last bit, whatever else is in the batch. Rows hold no NaN and no
+inf, and at least one finite value.
"""

from __future__ import annotations

import math
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from tlserve.decode.params import SamplingParams

Row = NDArray[np.float32]  # (vocab,)
Ids = NDArray[np.intp]

_SPAN = 256
"""Weights that are summed before any of them is looked at: a running sum over a whole row is 25 times as slow."""


def log_normaliser(row: Row, peak: float) -> float:
    """log(sum(exp(row))), with ``peak`` = max(row) taken out so that nothing overflows; summed in float64."""
    shifted = row - np.float32(peak)
    np.exp(shifted, out=shifted)
    return peak + math.log(float(shifted.sum(dtype=np.float64)))


def best(row: Row, count: int) -> Ids:
    """The ids of the ``count`` highest values, best first; among equals the lower id is better."""
    ids = _highest(row, count)
    return ids[np.argsort(-row[ids], kind="stable")]


def draw(row: Row, peak: float, params: SamplingParams, uniform: float) -> int:
    """The token at ``uniform`` of the cumulative distribution that temperature, top_k, min_p and top_p leave.

    This is inverse transform sampling over ascending ids. Each cut works on what the ones before it have left: top_p is
    a share of the tokens that passed top_k and min_p. The peak's own weight is 1, which makes min_p a plain threshold.
    """
    with np.errstate(over="ignore"):  # a low temperature may push a hopeless token to -inf: weight 0
        weights = np.exp((row - np.float32(peak)) / np.float32(params.temperature))
    ids = _survivors(row, weights, params)
    if ids is None:
        return _index_at(weights, uniform, side="right")
    return int(ids[_index_at(weights[ids], uniform, side="right")])


def _survivors(row: Row, weights: Row, params: SamplingParams) -> Ids | None:
    """The ids that the cuts leave, ascending; None when nothing is cut."""
    ids = _highest(row, params.top_k) if 0 < params.top_k < len(row) else None
    if params.min_p > 0.0:
        ids = np.flatnonzero(weights >= params.min_p) if ids is None else ids[weights[ids] >= params.min_p]
    if params.top_p >= 1.0:
        return ids
    return _nucleus(weights, params.top_p) if ids is None else ids[_nucleus(weights[ids], params.top_p)]


def _nucleus(weights: Row, top_p: float) -> Ids:
    """Indices of the fewest highest weights that reach the share ``top_p`` of the sum, ascending."""
    descending = -np.sort(-weights)
    last = _index_at(descending, top_p, side="left")
    return _down_to(weights, descending[last], last + 1)


def _highest(row: Row, count: int) -> Ids:
    """The ids of the ``count`` highest values, ascending."""
    rest = len(row) - count
    return np.arange(len(row)) if rest <= 0 else _down_to(row, np.partition(row, rest)[rest], count)


def _down_to(row: Row, edge: np.float32, count: int) -> Ids:
    """The ids of the ``count`` highest values, ascending, of which ``edge`` is the lowest; of equals, the lower ids."""
    chosen = row > edge
    chosen[np.flatnonzero(row == edge)[: count - np.count_nonzero(chosen)]] = True
    return np.flatnonzero(chosen)


def _index_at(weights: Row, share: float, *, side: Literal["left", "right"]) -> int:
    """The first index whose running sum reaches (left) or exceeds (right) this share of the whole, in float64.

    The index always has a weight > 0: also where rounding lets a running sum end just short of the target.
    """
    sums = np.cumsum(np.add.reduceat(weights, np.arange(0, len(weights), _SPAN), dtype=np.float64))
    target = share * sums[-1]  # less than the sum, also when rounded, as share <= 1 - 2**-53
    span = int(np.searchsorted(sums, target, side=side))
    start = span * _SPAN
    running = np.cumsum(weights[start : start + _SPAN], dtype=np.float64)
    before = sums[span - 1] if span else 0.0
    index = int(np.searchsorted(running, target - before, side=side))
    return start + min(index, int(np.searchsorted(running, running[-1])))
