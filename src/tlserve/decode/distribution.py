"""Arithmetic on one row of logits: the normaliser, the best tokens, a draw.

The heavy loops of sampling, and nothing else: no request, no state. Every function reads one row and reduces it in one
order, so its result depends on that row alone, to the last bit, whatever else is in the batch. Rows hold no NaN and no
+inf, and at least one finite value.
"""

from __future__ import annotations

import math

import numpy as np
from attrs import frozen
from numpy.typing import NDArray

from tlserve.decode.params import SamplingParams
from tlserve.decode.passes import MOST_BEST, SPAN, find_best, find_nucleus, keep_from, weigh

Row = NDArray[np.float32]  # (vocab,)
Ids = NDArray[np.intp]

_LOG2_E = math.log2(math.e)


def log_normaliser(row: Row, peak: float) -> float:
    """log(sum(exp(row))), with ``peak`` = max(row) taken out so that nothing overflows."""
    return peak + math.log(float(_Weights.of(_padded(row), peak).sums.sum()))


def best(row: Row, count: int) -> Ids:
    """The ids of the ``count`` highest values, best first; among equals the lower id is better."""
    if count > MOST_BEST:
        return np.argsort(-row, kind="stable")[:count]
    ids = np.empty(count, np.int64)
    find_best(_padded(row), ids)
    return ids[: len(row)]


def draw(row: Row, peak: float, params: SamplingParams, uniform: float) -> int:
    """The token at ``uniform`` of the cumulative distribution that temperature, top_k, min_p and top_p leave.

    This is inverse transform sampling over ascending ids. Each cut works on what the ones before it have left: top_p is
    a share of the tokens that passed top_k and min_p. The peak's own weight is 1, which makes min_p a plain threshold.
    """
    logits = _padded(row)
    weights = _Weights.of(logits, peak, params.temperature)
    if 0 < params.top_k < len(row):
        weights.keep_highest(logits, params.top_k)
    if params.min_p > 0.0:
        weights.keep_from(weights.values, params.min_p)
    if params.top_p < 1.0:
        weights.keep_nucleus(params.top_p)
    return weights.index_at(uniform)


def _padded(row: Row) -> Row:
    """The row up to whole spans, with -inf behind the end; itself where that is what it is, so it is only to be read."""
    if len(row) % SPAN == 0:
        return np.ascontiguousarray(row)
    padded = np.empty(-(-len(row) // SPAN) * SPAN, np.float32)
    padded[: len(row)] = row
    padded[len(row) :] = -np.inf
    return padded


@frozen(eq=False)
class _Weights:
    """What each token weighs against the likeliest, which weighs 1; cuts set weights to 0.

    Attributes:
        values: (spans * SPAN,) float32, from 0 to 1.
        sums: (spans,) float64, of each span.

    """

    values: Row
    sums: NDArray[np.float64]

    @classmethod
    def of(cls, logits: Row, peak: float, temperature: float = 1.0) -> _Weights:
        """exp((logits - peak) / temperature); a low temperature may push a hopeless token to 0."""
        weights = cls(np.empty_like(logits), np.empty(len(logits) // SPAN))
        weigh(logits, weights.values, weights.sums, np.float32(peak), np.float32(_LOG2_E / temperature))
        return weights

    def keep_highest(self, logits: Row, count: int) -> None:
        """Keep the ``count`` highest logits; of equals, the lower ids."""
        rest = len(logits) - count
        edge = logits[best(logits, count)[-1]] if count <= MOST_BEST else np.partition(logits, rest)[rest]
        self._drop_equals(logits, edge, count - int(np.count_nonzero(logits > edge)))
        self.keep_from(logits, float(edge))

    def keep_from(self, keys: Row, edge: float) -> None:
        """Keep tokens whose key is at least ``edge``."""
        keep_from(self.values, self.sums, keys, np.float32(edge))

    def keep_nucleus(self, share: float) -> None:
        """Keep the fewest highest weights that reach this share of the sum; of equals, the lower ids."""
        whole = float(self.sums.sum())
        # All weights up to this together are less than what may be missing: the edge lies above it.
        floor = 0.5 * (1.0 - share) * whole / len(self.values)
        edge, count = find_nucleus(self.values, share * whole, np.float32(floor))
        self._drop_equals(self.values, edge, count)
        self.keep_from(self.values, float(edge))

    def index_at(self, share: float) -> int:
        """The first index whose running sum exceeds this share of the whole, in float64.

        The index always has a weight > 0: also where rounding lets a running sum end just short of the target.
        """
        sums = np.cumsum(self.sums)
        target = share * sums[-1]  # less than the sum, also when rounded, as share <= 1 - 2**-53
        span = int(np.searchsorted(sums, target, side="right"))
        start = span * SPAN
        running = np.cumsum(self.values[start : start + SPAN], dtype=np.float64)
        before = sums[span - 1] if span else 0.0
        index = int(np.searchsorted(running, target - before, side="right"))
        return start + min(index, int(np.searchsorted(running, running[-1])))

    def _drop_equals(self, keys: Row, edge: np.float32, count: int) -> None:
        """Of the tokens at the edge of a cut only the first ``count`` stay."""
        self.values[np.flatnonzero(keys == edge)[count:]] = 0.0
