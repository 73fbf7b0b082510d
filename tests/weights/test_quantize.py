"""Integers, scales and minima stand for exactly the file's weights, or for the nearest when rounding is asked for."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from tlserve.errors import CheckpointError, UnsupportedModelError
from tlserve.weights.quantize import AffineGroups, Bits, exact_groups, rounded_groups
from tlserve.weights.tensor import BLOCK_FORMATS, Tensor

# Type, bits, group size, and where a block has its half floats.
FORMATS = [
    ("Q4_0", 4, 32, (0,)),
    ("Q4_1", 4, 32, (0, 2)),
    ("Q5_0", 8, 32, (0,)),
    ("Q5_1", 8, 32, (0, 2)),
    ("Q8_0", 8, 32, (0,)),
    ("Q4_K", 4, 32, (0, 2)),
    ("Q5_K", 8, 32, (0, 2)),
    ("Q6_K", 8, 16, (208,)),
]


def random_blocks(type_name: str, halves: tuple[int, ...], seed: int) -> Tensor:
    """Every bit of a block is random, but for its half floats, which are finite."""
    layout = BLOCK_FORMATS[type_name]
    rng = np.random.default_rng(seed)
    blocks = rng.integers(0, 256, (40, layout.num_bytes), dtype=np.uint8)
    for at in halves:
        blocks[:, at : at + 2] = rng.standard_normal((40, 1)).astype(np.float16).view(np.uint8)
    return Tensor(name="w", shape=(8, 5 * layout.elements), type_name=type_name, blocks=blocks.reshape(8, -1))


@pytest.mark.parametrize(("type_name", "bits", "group_size", "halves"), FORMATS)
@pytest.mark.parametrize("seed", range(4))
def test_exact(type_name: str, bits: int, group_size: int, halves: tuple[int, ...], seed: int) -> None:
    """Of every format, q * scale + minimum is the file's weight to the last bit, as an independent reader gives it."""
    tensor = random_blocks(type_name, halves, seed)
    groups = exact_groups(tensor)
    assert groups is not None
    assert (groups.bits, groups.group_size) == (bits, group_size)
    assert groups.q.shape == tensor.shape
    assert groups.q.dtype == np.uint8
    assert groups.scale.shape == groups.minimum.shape == (8, tensor.shape[1] // group_size)
    assert groups.scale.dtype == groups.minimum.dtype == np.float32
    assert groups.q.max() < 2**bits
    assert all(part.flags.c_contiguous for part in (groups.q, groups.scale, groups.minimum))
    np.testing.assert_array_equal(groups.dequantize(), tensor.dequantize())


def test_exact_follows_the_row_order() -> None:
    """Reordered rows keep their own scales."""
    stored = random_blocks("Q4_K", (0, 2), 9)
    order = np.array([7, 6, 5, 4, 3, 2, 1, 0])
    tensor = Tensor(name="w", shape=stored.shape, type_name="Q4_K", blocks=stored.blocks, row_order=order)
    groups = exact_groups(tensor)
    assert groups is not None
    np.testing.assert_array_equal(groups.dequantize(), stored.dequantize()[order])


@pytest.mark.parametrize("type_name", ["F32", "F16", "BF16"])
def test_floats_have_no_exact_groups(type_name: str) -> None:
    """Nobody rounds a float weight without being asked."""
    data = np.zeros((2, 32 * BLOCK_FORMATS[type_name].num_bytes), np.uint8)
    assert exact_groups(Tensor(name="w", shape=(2, 32), type_name=type_name, blocks=data)) is None


def assert_nearest(values: np.ndarray, groups: AffineGroups) -> None:
    """Every weight is within half a step of its original, but for float32's own rounding."""
    step = np.repeat(groups.scale, groups.group_size, axis=1)
    size = np.abs(values).max()
    assert np.all(np.abs(groups.dequantize() - values) <= step * 0.5001 + size * 1e-6)


@pytest.mark.parametrize("bits", [4, 8])
@given(values=arrays.arrays(np.float32, (3, 64), elements=st.floats(-1e4, 1e4, width=32)))
def test_rounded_is_nearest(bits: Bits, values: np.ndarray) -> None:
    """Rounding moves a weight by half a step at most, whatever the group holds."""
    groups = rounded_groups(Tensor.from_array("w", values), bits)
    assert groups.q.max() < 2**bits
    assert_nearest(values, groups)


def test_rounding_keeps_the_ends_of_a_group() -> None:
    """A group's smallest weight is its minimum and its largest uses the last step."""
    values = np.linspace(-3, 5, 64, dtype=np.float32).reshape(1, 64)
    groups = rounded_groups(Tensor.from_array("w", values), 4)
    assert groups.minimum.tolist() == [[values[0, 0], values[0, 32]]]
    assert groups.q[0, [0, 31, 32, 63]].tolist() == [0, 15, 0, 15]


def test_rounding_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """A matrix rounded a few rows at a time is the matrix rounded at once."""
    tensor = random_blocks("Q8_0", (0,), 1)
    whole = rounded_groups(tensor, 4)
    monkeypatch.setattr("tlserve.weights.quantize.CHUNK_ELEMENTS", 3 * tensor.shape[1])
    pieces = rounded_groups(tensor, 4)
    np.testing.assert_array_equal(pieces.q, whole.q)
    np.testing.assert_array_equal(pieces.scale, whole.scale)
    np.testing.assert_array_equal(pieces.minimum, whole.minimum)


def test_constant_group_is_kept() -> None:
    """A group of one value, zeros above all, comes back as it was."""
    values = np.repeat(np.array([[0, 0.1]], np.float32), 32, axis=1)
    np.testing.assert_array_equal(rounded_groups(Tensor.from_array("w", values), 4).dequantize(), values)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 3e38])
def test_not_finite_is_refused(bad: float) -> None:
    """A weight that no scale can reach is an error that names the tensor."""
    values = np.full((2, 32), -3e38, np.float32)
    values[1, 7] = bad
    with pytest.raises(CheckpointError, match="'blk' holds a weight that is not finite"):
        rounded_groups(Tensor.from_array("blk", values), 8)


def test_rows_that_do_not_fill_groups_are_refused() -> None:
    """The message says what to set instead."""
    with pytest.raises(UnsupportedModelError, match=r"'w'.* not a multiple of 32.* weights = f32"):
        rounded_groups(Tensor.from_array("w", np.ones((2, 40), np.float32)), 8)
