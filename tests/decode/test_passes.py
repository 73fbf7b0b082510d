"""The compiled passes against their definitions, over rows as long and as even as real ones get."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from numpy.typing import NDArray

from tlserve.decode.distribution import _padded, _Weights, best, log_normaliser
from tlserve.decode.passes import MOST_BEST

Row = NDArray[np.float32]

# From one clear winner to all but equal, from all different to a handful of values.
rows = st.builds(
    lambda seed, size, spread, digits: np.round(np.random.default_rng(seed).normal(size=size) * spread, digits).astype(
        np.float32
    ),
    st.integers(0, 1000),
    st.sampled_from([1, 255, 256, 257, 3000]),
    st.sampled_from([0.0, 0.01, 1.0, 4.0, 20.0]),
    st.sampled_from([0, 1, 7]),
)


def weights_of(row: Row) -> _Weights:
    return _Weights.of(_padded(row), float(row.max()))


@given(rows)
def test_weights_are_powers_of_e(row: Row) -> None:
    """To single precision, and their sums with them; what lies behind the row weighs nothing."""
    weights = weights_of(row)
    expected = np.exp(row.astype(np.float64) - row.max())
    np.testing.assert_allclose(weights.values[: len(row)], expected, rtol=1e-5, atol=1e-37)
    assert not weights.values[len(row) :].any()
    assert weights.sums.sum() == pytest.approx(expected.sum(), rel=1e-5)
    assert log_normaliser(row, float(row.max())) == pytest.approx(row.max() + np.log(expected.sum()), abs=1e-5)


@given(rows, st.sampled_from([1e-6, 0.1, 0.5, 0.9, 0.95, 0.999]))
def test_the_nucleus_is_that_of_a_full_sort(row: Row, share: float) -> None:
    """The fewest highest weights that reach the share, the lower ids of equal ones, whatever the shape of the row."""
    weights = weights_of(row)
    values = weights.values.astype(np.float64)
    order = np.argsort(-values, kind="stable")
    reached, goal = np.cumsum(values[order]), share * values.sum()
    assume(abs(reached - goal).min() > 1e-5 * goal)  # at the edge itself rounding decides
    expected = sorted(order[: int(np.searchsorted(reached, goal)) + 1].tolist())
    weights.keep_nucleus(share)
    assert np.flatnonzero(weights.values).tolist() == expected
    assert weights.sums.sum() == pytest.approx(values[expected].sum(), rel=1e-5)


@given(rows, st.integers(1, 100))
def test_top_k_keeps_the_highest(row: Row, count: int) -> None:
    """Exactly so many, by the logits themselves: also where high temperature makes their weights equal."""
    weights = _Weights.of(_padded(row), float(row.max()), 1e6)
    expected = sorted(np.argsort(-row, kind="stable")[:count].tolist())
    weights.keep_highest(_padded(row), count)
    assert np.flatnonzero(weights.values).tolist() == expected


@given(rows, st.sampled_from([1, 2, 20, MOST_BEST, MOST_BEST + 1]))
def test_the_best_are_those_of_a_stable_sort(row: Row, count: int) -> None:
    """Best first; the search that keeps a short list agrees with the sort that longer ones need."""
    assert best(row, count).tolist() == np.argsort(-row, kind="stable")[:count].tolist()
