from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from tlserve.decode.distribution import best, draw, log_normaliser
from tlserve.decode.params import SamplingParams
from tlserve.decode.passes import SPAN

logits = st.floats(-30, 30, width=32) | st.sampled_from([0.0, 1.0, -math.inf])
rows = st.lists(logits, min_size=1, max_size=40).filter(lambda row: max(row) > -math.inf)


def survivors(row: NDArray[np.float32], params: SamplingParams) -> list[int]:
    """The cuts as one would write them down, over a full sort."""
    weights = np.exp((row - row.max()) / np.float32(params.temperature))
    order = sorted(range(len(row)), key=lambda token: (-row[token], token))
    order = order[: params.top_k] if params.top_k else order
    order = [token for token in order if weights[token] >= params.min_p]
    if params.top_p < 1.0:
        order = sorted(order, key=lambda token: (-weights[token], token))
        target = params.top_p * math.fsum(weights[order].tolist())
        reached = [math.fsum(weights[order[: n + 1]].tolist()) >= target * (1 + 1e-12) for n in range(len(order))]
        order = order[: reached.index(True) + 1]
    return sorted(token for token in order if weights[token] > 0)


def all_draws(row: NDArray[np.float32], params: SamplingParams, count: int = 400) -> list[int]:
    return [draw(row, float(row.max()), params, (n + 0.5) / count) for n in range(count)]


@given(rows)
def test_log_normaliser_is_logsumexp(values: list[float]) -> None:
    """It agrees with a float64 computation, also where the sum itself would overflow."""
    row = np.array(values, dtype=np.float32) + np.float32(80)
    expected = 80 + math.log(math.fsum(math.exp(value) for value in values))
    assert log_normaliser(row, float(row.max())) == pytest.approx(expected, abs=1e-4)


@given(st.lists(st.sampled_from([-math.inf, -1.0, 0.0, 2.0]), min_size=1, max_size=30), st.integers(1, 35))
def test_best_is_a_stable_sort(values: list[float], count: int) -> None:
    """The highest come first, and among equals the lower id, wherever the cut falls."""
    row = np.array(values, dtype=np.float32)
    expected = sorted(range(len(values)), key=lambda token: (-values[token], token))[:count]
    assert best(row, count).tolist() == expected


@given(
    rows,
    st.builds(
        SamplingParams,
        temperature=st.sampled_from([0.3, 1.0, 2.0]),
        top_k=st.integers(0, 12),
        top_p=st.sampled_from([0.05, 0.5, 0.9, 1.0]),
        min_p=st.sampled_from([0.0, 0.02, 0.5, 1.0]),
    ),
)
def test_only_survivors_are_drawn(values: list[float], params: SamplingParams) -> None:
    """Every draw is a token that a plain reading of top_k, min_p and top_p, in this order, leaves."""
    row = np.array(values, dtype=np.float32)
    assert set(all_draws(row, params, 60)) <= set(survivors(row, params))


def test_draws_follow_the_probabilities() -> None:
    """Evenly spread uniforms hit each token as often as its probability says."""
    row = np.log(np.array([0.5, 0.25, 0.125, 0.125], dtype=np.float32))
    counts = np.bincount(all_draws(row, SamplingParams(), 800), minlength=4)
    assert counts.tolist() == [400, 200, 100, 100]


def test_temperature_sharpens_and_flattens() -> None:
    """At temperature 0.5 odds of 3:1 become 9:1, at 2.0 about 1.7:1."""
    row = np.log(np.array([0.75, 0.25], dtype=np.float32))
    assert all_draws(row, SamplingParams(temperature=0.5), 1000).count(0) == 900
    assert all_draws(row, SamplingParams(temperature=2.0), 1000).count(0) == 634


def test_top_p_keeps_the_token_that_reaches_the_share() -> None:
    """With shares 0.5, 0.3, 0.2, a top_p of 0.6 needs two tokens and 0.4 needs one; nearly nothing still keeps one."""
    row = np.log(np.array([0.3, 0.5, 0.2], dtype=np.float32))
    assert set(all_draws(row, SamplingParams(top_p=0.6))) == {0, 1}
    assert set(all_draws(row, SamplingParams(top_p=0.4))) == {1}
    assert set(all_draws(row, SamplingParams(top_p=1e-9))) == {1}


def test_top_p_is_a_share_of_what_top_k_left() -> None:
    """0.4 of all is reached by one token of 0.4; 0.7 of the two that top_k leaves needs both."""
    row = np.log(np.array([0.4, 0.3, 0.2, 0.1], dtype=np.float32))
    assert set(all_draws(row, SamplingParams(top_k=2, top_p=0.7))) == {0, 1}
    assert set(all_draws(row, SamplingParams(top_k=2, top_p=0.5))) == {0}


@pytest.mark.parametrize("size", [255, 256, 257, 1000, 49152])
def test_rows_of_any_length_are_drawn_over_their_whole_width(size: int) -> None:
    """The first and the last token are reached at the ends, and the middle in the middle."""
    row = np.zeros(size, dtype=np.float32)
    params = SamplingParams()
    assert draw(row, 0.0, params, 0.0) == 0
    assert draw(row, 0.0, params, 0.5) == size // 2
    assert draw(row, 0.0, params, 1.0 - 2.0**-53) == size - 1


def test_excluded_tokens_are_never_drawn() -> None:
    """Tokens at -inf, also at both ends of the row, have no weight for any uniform."""
    row = np.full(600, -np.inf, dtype=np.float32)
    row[[100, 300]] = 0.0
    assert {draw(row, 0.0, SamplingParams(), uniform) for uniform in (0.0, 0.4999, 0.5, 1 - 2.0**-53)} == {100, 300}


def test_a_row_is_drawn_alike_wherever_it_lies_in_memory() -> None:
    """Alignment and neighbours change no bit: the same row at every offset of a larger array gives the same results."""
    rng = np.random.default_rng(5)
    row = rng.normal(size=1003).astype(np.float32)
    expected = (log_normaliser(row, float(row.max())), all_draws(row, SamplingParams(top_p=0.9), 50))
    for offset in range(1, 20):
        home = rng.normal(size=1100).astype(np.float32)
        home[offset : offset + 1003] = row
        moved = home[offset : offset + 1003]
        assert (log_normaliser(moved, float(moved.max())), all_draws(moved, SamplingParams(top_p=0.9), 50)) == expected


def test_rounding_at_the_edge_of_a_partial_sum_draws_no_excluded_token() -> None:
    """A uniform that lies within rounding of a partial sum lands on a token that has weight, not beside it."""
    row = np.random.default_rng(1).normal(scale=9, size=(192, 256)).astype(np.float32)
    row[:, :28] = row[:, -28:] = -np.inf
    sums = np.cumsum(np.exp(row - row.max()).sum(axis=1, dtype=np.float64))
    logits, peak = row.reshape(-1), float(row.max())
    for uniform in (sums[:-1] / sums[-1]).tolist():
        for near in (np.nextafter(uniform, 0), uniform, np.nextafter(uniform, 1)):
            assert logits[draw(logits, peak, SamplingParams(), float(near))] > -np.inf


@pytest.mark.parametrize("size", [SPAN - 1, SPAN, 3 * SPAN])
def test_rows_are_only_read(size: int) -> None:
    """Whole spans are looked at in place, and stay as they were whatever is cut."""
    row = np.random.default_rng(size).normal(size=size).astype(np.float32)
    before = row.copy()
    params = SamplingParams(temperature=0.7, top_k=20, min_p=0.01, top_p=0.8)
    log_normaliser(row, float(row.max()))
    best(row, 5)
    draw(row, float(row.max()), params, 0.5)
    np.testing.assert_array_equal(row, before)
