"""The numpy kernels against their definitions, written out one number at a time."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tlserve.kernels import reference

Floats = NDArray[np.float32]


def random(*shape: int, seed: int = 0) -> Floats:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def attend_slowly(
    query: Floats, key: Floats, value: Floats, *, scale: float, window: int | None, cap: float | None
) -> NDArray[np.float64]:
    """Attention by its definition, in float64, one head of one row at a time."""
    num_rows, num_heads, _ = query.shape
    context, num_kv_heads, _ = key.shape
    out = np.zeros(query.shape)
    for row in range(num_rows):
        position = context - num_rows + row
        first = 0 if window is None else max(0, position - window + 1)
        for head in range(num_heads):
            kv_head = head // (num_heads // num_kv_heads)
            seen = slice(first, position + 1)
            scores = key[seen, kv_head].astype(np.float64) @ query[row, head] * scale
            if cap is not None:
                scores = cap * np.tanh(scores / cap)
            weights = np.exp(scores - scores.max())
            out[row, head] = weights / weights.sum() @ value[seen, kv_head]
    return out


@settings(deadline=None, max_examples=40)
@given(
    num_rows=st.integers(1, 20),
    past=st.integers(0, 20),
    heads=st.sampled_from([(4, 4), (4, 2), (3, 1)]),
    window=st.none() | st.integers(1, 45),
    cap=st.none() | st.just(2.0),
)
def test_attention_is_its_definition(
    num_rows: int, past: int, heads: tuple[int, int], window: int | None, cap: float | None
) -> None:
    """Causal, grouped, windowed and capped attention equals the loop over rows and heads."""
    num_heads, num_kv_heads = heads
    query = random(num_rows, num_heads, 8)
    key, value = random(past + num_rows, num_kv_heads, 8, seed=1), random(past + num_rows, num_kv_heads, 8, seed=2)
    found = reference.attention(query, key, value, scale=0.3, window=window, cap=cap)
    expected = attend_slowly(query, key, value, scale=0.3, window=window, cap=cap)
    np.testing.assert_allclose(found, expected, atol=1e-6)


@pytest.mark.parametrize("window", [None, 5, 200])
def test_long_attention_is_cut_into_tiles_without_a_seam(window: int | None) -> None:
    """A prompt of several query tiles gives what the definition gives."""
    length = 2 * reference.QUERY_TILE + 3
    query, key, value = random(length, 2, 4), random(length, 1, 4, seed=1), random(length, 1, 4, seed=2)
    found = reference.attention(query, key, value, scale=0.5, window=window, cap=None)
    expected = attend_slowly(query, key, value, scale=0.5, window=window, cap=None)
    np.testing.assert_allclose(found, expected, atol=1e-6)


@settings(deadline=None, max_examples=40)
@given(
    block_size=st.sampled_from([1, 4, 16]),
    context=st.integers(1, 50),
    num_rows=st.integers(1, 50),
    window=st.none() | st.integers(1, 20),
)
def test_paged_attention_follows_the_block_table(
    block_size: int, context: int, num_rows: int, window: int | None
) -> None:
    """Keys scattered over blocks give the same as keys in a row; no other block is looked at."""
    num_rows = min(num_rows, context)
    query = random(num_rows, 4, 8)
    key, value = random(context, 2, 8, seed=1), random(context, 2, 8, seed=2)
    num_used = -(-context // block_size)
    table = np.random.default_rng(3).permutation(num_used + 3)[:num_used].astype(np.int32)
    stores = np.full((2, (num_used + 3) * block_size, 2, 8), np.nan, dtype=np.float32)
    slots = table[np.arange(context) // block_size] * block_size + np.arange(context) % block_size
    stores[:, slots] = key, value
    keys, values = stores.reshape(2, num_used + 3, block_size, 2, 8)
    found = reference.paged_attention(query, keys, values, table, context, scale=0.3, window=window, cap=None)
    expected = reference.attention(query, key, value, scale=0.3, window=window, cap=None)
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_linear_multiplies_and_adds_the_bias() -> None:
    """Rows times the transposed weight, plus one bias per output."""
    x, weight, bias = random(3, 5), random(2, 5, seed=1), random(2, seed=2)
    expected = np.einsum("ti,oi->to", x, weight)
    np.testing.assert_allclose(reference.linear(x, weight), expected, atol=1e-6)
    np.testing.assert_allclose(reference.linear(x, weight, bias), expected + bias, atol=1e-6)


def test_rms_norm_makes_the_root_mean_square_one() -> None:
    """A normalised row has mean square one before the weight; eps keeps a row of zeros at zero."""
    x = random(4, 64) * 30
    normed = reference.rms_norm(x, np.ones(64, dtype=np.float32), 1e-6)
    np.testing.assert_allclose(np.square(normed).mean(axis=-1), 1.0, rtol=1e-5)
    weight = random(64, seed=1)
    np.testing.assert_allclose(reference.rms_norm(x, weight, 1e-6), normed * weight, rtol=1e-6)
    assert not reference.rms_norm(np.zeros((1, 64), dtype=np.float32), weight, 1e-6).any()


def test_rotation_turns_half_split_pairs() -> None:
    """Dimension i and i + D / 2 turn together by the row's angle."""
    angle = 0.7
    x = random(1, 2, 4)
    cos, sin = (np.full((1, 2), f(angle), dtype=np.float32) for f in (math.cos, math.sin))
    turned = reference.rotate(x, cos, sin)
    points = x[..., :2] + 1j * x[..., 2:]
    expected = points * np.exp(1j * angle)
    np.testing.assert_allclose(turned[..., :2] + 1j * turned[..., 2:], expected, atol=1e-6)


def test_silu_is_exact_over_the_whole_range() -> None:
    """No overflow and no cancellation, from hugely negative to hugely positive."""
    x = np.array([-1e4, -100.0, -20.0, -1.0, 0.0, 1.0, 20.0, 1e4], dtype=np.float32)
    expected = [
        0.0,
        -100 * math.exp(-100),
        -20 / (1 + math.exp(20)),
        -1 / (1 + math.e),
        0,
        1 / (1 + 1 / math.e),
        20,
        1e4,
    ]
    np.testing.assert_allclose(reference.silu(x), expected, rtol=1e-6, atol=1e-40)


def test_gelu_is_the_tanh_form() -> None:
    """The approximation that Gemma was trained with, not the exact one."""
    x = np.array([-3.0, -1.0, 0.0, 0.5, 2.0], dtype=np.float32)
    expected = [0.5 * v * (1 + math.tanh(math.sqrt(2 / math.pi) * (v + 0.044715 * v**3))) for v in x.tolist()]
    np.testing.assert_allclose(reference.gelu_tanh(x), expected, rtol=1e-6, atol=1e-7)


def test_softcap_squeezes_or_leaves_alone() -> None:
    """Small values pass nearly unchanged, large ones approach the cap; no cap changes nothing."""
    x = np.array([-1e6, 0.01, 1e6], dtype=np.float32)
    np.testing.assert_allclose(reference.softcap(x, 30.0), [-30.0, 0.01, 30.0], rtol=1e-5)
    assert reference.softcap(x, None) is x


def test_softmax_sums_to_one_and_gives_nothing_to_minus_infinity() -> None:
    """Rows of weights sum to one even for huge scores; masked entries get exactly zero."""
    weights = reference.softmax(np.array([[1e30, 0.0, -np.inf], [1.0, 1.0, -np.inf]], dtype=np.float32))
    np.testing.assert_allclose(weights, [[1.0, 0.0, 0.0], [0.5, 0.5, 0.0]])
