"""The vector type's own arithmetic."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tlserve.kernels.jit import jit
from tlserve.kernels.simd import exp2, load, store, total


@jit
def exp2_of(x: int, result: int, vectors: int) -> None:
    for i in range(vectors):
        store(result + 64 * i, exp2(load(x + 64 * i)))


@jit
def total_of(x: int) -> float:
    return float(total(load(x)))


def powers(x: NDArray[np.float32]) -> NDArray[np.float32]:
    result = np.empty_like(x)
    exp2_of(x.ctypes.data, result.ctypes.data, len(x) // 16)
    return result


def test_exp2_is_within_two_units_in_the_last_place() -> None:
    """Over all powers that are normal numbers."""
    x = np.linspace(-125.9, 126.9, 160_000, dtype=np.float32)
    exact = np.exp2(x.astype(np.float64))
    assert (np.abs(powers(x) - exact) / np.spacing(exact.astype(np.float32))).max() < 2.0


def test_exp2_at_its_ends() -> None:
    """0 far below, never infinite, exact at whole numbers, NaN for NaN."""
    x = np.array([-np.inf, -1e30, -127, -126, -1, 0, 1, 10, 127, 128, 1e30, np.inf, np.nan, 0, 0, 0], np.float32)
    expected = np.exp2(x.astype(np.float64).clip(None, 127)).astype(np.float32)
    expected[x < -126] = 0
    np.testing.assert_array_equal(powers(x), expected)


def test_a_total_is_one_fixed_tree() -> None:
    """Lane i meets lane i + 8, then i + 4, i + 2, i + 1: the same bits on every machine."""
    x = (10.0 ** np.random.default_rng(0).uniform(-3, 3, 16)).astype(np.float32)
    expected = x.copy()
    while len(expected) > 1:
        half = len(expected) // 2
        expected = expected[:half] + expected[half:]
    assert total_of(x.ctypes.data) == expected[0]
