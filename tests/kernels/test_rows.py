"""Operations that go row by row: norm, rounding, activation, soft cap."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from tlserve.kernels import activation, norm, reference
from tlserve.kernels.buffers import RowBuffer, with_slack
from tlserve.kernels.tape import LOGIT_ROW_IDS, LOGITS

Play = Callable[..., None]
Rows = NDArray[np.float32]
RandomRows = Callable[..., Rows]


def filled(values: Rows) -> RowBuffer:
    """A buffer that holds rows."""
    buffer = RowBuffer.allocate(*values.shape)
    buffer.floats[:, : values.shape[1]] = values
    return buffer


@pytest.mark.parametrize("size", [64, 72, 576])
def test_norm_is_the_references(play: Play, random_rows: RandomRows, size: int) -> None:
    """Also for rows that are no whole number of vectors."""
    x, weight = random_rows(5, size), random_rows(size)
    source, result = filled(x), RowBuffer.allocate(5, size)
    place = (source.floats, source.stride, with_slack(weight), size, -(-size // 16), 1e-5, None)
    play(norm.NORM, *place, result.floats, result.stride, None, None, 0, rows=5)
    np.testing.assert_allclose(result.floats[:, :size], reference.rms_norm(x, weight, 1e-5), rtol=2e-6, atol=1e-7)
    assert not result.floats[:, size:].any()


def test_norm_joins_a_residual(play: Play, random_rows: RandomRows) -> None:
    """A row of the result is its own old value plus the norm of the source's."""
    x, weight, before = random_rows(3, 32), random_rows(32), random_rows(3, 32)
    source, result = filled(x), filled(before)
    place = (source.floats, source.stride, with_slack(weight), 32, 2, 1e-5, result.floats)
    play(norm.NORM, *place, result.floats, result.stride, None, None, 0, rows=3)
    expected = before + reference.rms_norm(x, weight, 1e-5)
    np.testing.assert_allclose(result.floats[:, :32], expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("wanted", [[0], [5], [1, 4], [0, 1, 2, 5], [0, 1, 2, 3, 4, 5]])
def test_wanted_rows_move_to_the_front(play: Play, random_rows: RandomRows, wanted: list[int]) -> None:
    """In place: none is overwritten before it was read."""
    x = random_rows(6, 72)
    rows = filled(x)
    step = {LOGIT_ROW_IDS: np.array(wanted, np.int32)}
    play(norm.PICK, rows.floats, rows.stride, 5, rows=len(wanted), rows_per_tile=6, step=step)
    np.testing.assert_array_equal(rows.floats[: len(wanted), :72], x[wanted])


def test_rounding_keeps_sixteen_bits_of_a_group(play: Play, random_rows: RandomRows) -> None:
    """Each value within half a step of its group; scaled sums are those of the rounded values; zeros stay zeros."""
    x = random_rows(3, 96) * 10.0 ** np.arange(-2, 4).repeat(16)
    x[1, :32] = 0
    source = RowBuffer.allocate(3, 96, rounded=True)
    source.floats[:, :96] = x
    assert source.quantised is not None
    assert source.scales is not None
    place = (source.floats, source.stride, source.quantised, source.scales, source.groups)
    play(norm.ROUND_ROWS, *place, rows=3)
    scale = source.scales[:, 0, :, None].astype(np.float64)
    rounded = source.quantised.reshape(3, 3, 32) * scale
    assert (np.abs(rounded - x.reshape(3, 3, 32)) <= scale * 0.501).all()
    assert np.abs(source.quantised).max() == 32767
    np.testing.assert_allclose(source.scales[:, 1], rounded.sum(axis=2), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("kind", "function"), [(activation.SILU, reference.silu), (activation.GELU_TANH, reference.gelu_tanh)]
)
def test_gate_is_the_references(play: Play, kind: int, function: Callable[[Rows], Rows]) -> None:
    """act(gate) * up over everything from -120 to 120, where exponentials overflow."""
    gate = np.linspace(-120, 120, 4 * 160, dtype=np.float32).reshape(4, 160)
    up = np.full_like(gate, 0.5)
    source, result = filled(np.concatenate([gate, up], axis=1)), RowBuffer.allocate(4, 160)
    place = (source.floats, source.stride, 4 * 160, 10, kind, result.floats, result.stride, None, None, 0)
    play(activation.GATE_ROWS, *place, rows=4)
    np.testing.assert_allclose(result.floats[:, :160], function(gate) * up, rtol=2e-6, atol=1e-6)


def test_logits_are_capped(play: Play, random_rows: RandomRows) -> None:
    """Cap * tanh(x / cap)."""
    x = random_rows(3, 48) * 60
    expected = reference.softcap(x.copy(), 30.0)
    play(activation.CAP_LOGITS, 30.0, 3, 4 * 48, rows=3, step={LOGITS: x})
    np.testing.assert_allclose(x, expected, rtol=1e-5, atol=1e-5)
