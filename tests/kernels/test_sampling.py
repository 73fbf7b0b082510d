"""The maximum, its place and the log-sum-exp of a row of logits."""

from __future__ import annotations

import numpy as np
import pytest

from tlserve.kernels.sampling import argmax_logsumexp


@pytest.mark.parametrize("count", [1, 5, 16, 49, 256, 49152])
def test_numbers_are_those_of_float64(count: int) -> None:
    """For rows of any length."""
    row = (np.random.default_rng(count).standard_normal(count) * 5).astype(np.float32)
    index, maximum, logsumexp, has_nan = argmax_logsumexp(row)
    wide = row.astype(np.float64)
    assert index == row.argmax()
    assert maximum == row.max()
    assert logsumexp == pytest.approx(np.log(np.exp(wide - wide.max()).sum()) + wide.max(), abs=1e-5)
    assert not has_nan


def test_the_first_of_equal_maxima_wins() -> None:
    """As numpy and torch have it, so that greedy answers agree."""
    row = np.zeros(100, np.float32)
    row[[37, 38, 90]] = 3.0
    assert argmax_logsumexp(row)[0] == 37


def test_forbidden_tokens_count_nothing() -> None:
    """-inf is no NaN and adds nothing."""
    row = np.full(50, -np.inf, np.float32)
    row[49] = 2.0
    assert argmax_logsumexp(row) == (49, 2.0, 2.0, False)


@pytest.mark.parametrize("place", [0, 15, 16, 99])
def test_a_nan_is_seen(place: int) -> None:
    """Wherever it stands, in a vector or behind the last one."""
    row = np.zeros(100, np.float32)
    row[place] = np.nan
    assert argmax_logsumexp(row)[3]
