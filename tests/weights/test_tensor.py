"""A tensor gives its values and its encoded rows, in its own row order."""

from __future__ import annotations

import numpy as np
import pytest
from gguf import GGMLQuantizationType, quants

from tlserve.weights.tensor import BLOCK_FORMATS, TENSOR_TYPES, Tensor


def random_tensor(type_name: str, rows: int = 6, blocks: int = 3) -> Tensor:
    """Random bits whose scales are finite halves."""
    layout = BLOCK_FORMATS[type_name]
    repeat = blocks if layout.elements > 1 else 32 * blocks
    values = np.random.default_rng(3).standard_normal((rows, repeat * layout.elements)).astype(np.float32)
    if type_name in {"Q4_K", "Q5_K", "Q6_K"}:  # the package cannot write these
        data = np.random.default_rng(4).integers(0, 256, (rows, repeat * layout.num_bytes), dtype=np.uint8)
    else:
        data = quants.quantize(values, GGMLQuantizationType[type_name]).view(np.uint8)
    return Tensor(name="w", shape=values.shape, type_name=type_name, blocks=data)


@pytest.mark.parametrize("type_name", TENSOR_TYPES)
def test_values_are_new_and_writable(type_name: str) -> None:
    """Changing the values changes neither the file's view nor the next answer."""
    tensor = random_tensor(type_name)
    tensor.blocks.flags.writeable = False
    values = tensor.dequantize()
    assert values.shape == tensor.shape
    assert values.dtype == np.float32
    assert values.flags.c_contiguous
    before = values.copy()
    values[:] = 0
    np.testing.assert_array_equal(tensor.dequantize(), before)


@pytest.mark.parametrize("type_name", TENSOR_TYPES)
def test_row_order_holds_for_values_and_bytes(type_name: str) -> None:
    """Reordered rows are the same whole rows, whether asked for as numbers or as bytes."""
    stored = random_tensor(type_name)
    order = np.array([5, 3, 1, 0, 2, 4])
    moved = Tensor(name="w", shape=stored.shape, type_name=type_name, blocks=stored.blocks, row_order=order)
    np.testing.assert_array_equal(moved.dequantize(), stored.dequantize()[order])
    np.testing.assert_array_equal(moved.raw, stored.raw[order])


@pytest.mark.parametrize("order", [None, np.array([5, 3, 1, 0, 2, 4])])
def test_some_rows(order: np.ndarray | None) -> None:
    """A piece of a tensor holds the rows that it names."""
    stored = random_tensor("Q4_1")
    tensor = Tensor(name="w", shape=stored.shape, type_name="Q4_1", blocks=stored.blocks, row_order=order)
    piece = tensor.rows(2, 5)
    assert piece.shape == (3, 96)
    np.testing.assert_array_equal(piece.dequantize(), tensor.dequantize()[2:5])


def test_bfloat16_is_widened() -> None:
    """A bfloat16 is the upper half of a float32."""
    halves = np.array([0x3F80, 0xC000, 0x3EAA], np.uint16)
    tensor = Tensor(name="w", shape=(3,), type_name="BF16", blocks=halves.view(np.uint8))
    np.testing.assert_array_equal(tensor.dequantize(), np.array([1.0, -2.0, 0.33203125], np.float32))


def test_unaligned_floats() -> None:
    """Floats at any offset of a file are read right."""
    data = np.frombuffer(b"x" + np.arange(3, dtype="<f4").tobytes(), np.uint8)
    tensor = Tensor(name="w", shape=(3,), type_name="F32", blocks=data[1:])
    values = tensor.dequantize()
    assert values.flags.aligned
    np.testing.assert_array_equal(values, [0, 1, 2])


def test_from_array() -> None:
    """An array that lives in memory is a tensor like any other."""
    values = np.arange(6, dtype=np.float32).reshape(2, 3)
    tensor = Tensor.from_array("w", values.T)
    assert tensor.shape == (3, 2)
    assert tensor.num_bytes == 24
    np.testing.assert_array_equal(tensor.dequantize(), values.T)
