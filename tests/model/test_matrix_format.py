"""What the weights setting does to a matrix, as stored in each kind of file."""

from __future__ import annotations

import numpy as np
import pytest
from gguf.constants import GGMLQuantizationType
from gguf.quants import quantize

from tlserve.errors import CheckpointError, UnsupportedModelError
from tlserve.model.matrix_format import WeightFormat, float_matrix, matrix_groups
from tlserve.weights.tensor import Tensor

VALUES = np.random.default_rng(0).standard_normal((3, 64)).astype(np.float32)


def stored_as(type_name: str) -> Tensor:
    blocks = quantize(VALUES, GGMLQuantizationType[type_name])
    return Tensor(name="w", shape=VALUES.shape, type_name=type_name, blocks=blocks.view(np.uint8))


@pytest.mark.parametrize(
    ("type_name", "weights", "bits"),
    [
        ("F32", "auto", None),
        ("F32", "f32", None),
        ("F32", "q4", 4),
        ("F32", "q8", 8),
        ("Q4_1", "auto", 4),
        ("Q4_1", "f32", None),
        ("Q4_1", "q4", 4),
        ("Q4_1", "q8", 4),
        ("Q8_0", "auto", 8),
        ("Q8_0", "q4", 4),
        ("Q8_0", "q8", 8),
    ],
)
def test_bits_that_are_computed_with(type_name: str, weights: WeightFormat, bits: int | None) -> None:
    """Integers of the file where they do, rounded ones where fewer bits are asked for, else floats (None)."""
    groups = matrix_groups(stored_as(type_name), weights)
    assert (groups and groups.bits) == bits


@pytest.mark.parametrize(("type_name", "weights"), [("Q4_1", "q4"), ("Q4_1", "q8"), ("Q8_0", "q8"), ("Q8_0", "f32")])
def test_nothing_is_lost_where_nothing_need_be_rounded(type_name: str, weights: WeightFormat) -> None:
    """A file with no more bits than asked for keeps its values, to the last bit."""
    tensor = stored_as(type_name)
    np.testing.assert_array_equal(float_matrix(tensor, weights), tensor.dequantize())


def test_rounding_loses_at_most_half_a_step() -> None:
    """Each group of 32 spans its minimum to its maximum in 15 or 255 steps."""
    grouped = VALUES.reshape(3, 2, 32)
    spread = np.ptp(grouped, axis=2, keepdims=True)
    for weights, steps in (("q4", 15), ("q8", 255)):
        rounded = float_matrix(stored_as("F32"), weights).reshape(grouped.shape)  # type: ignore[arg-type]
        assert (np.abs(rounded - grouped) <= spread / steps / 2 * 1.0001).all()


def test_rows_that_cannot_be_grouped_are_refused() -> None:
    """Rounding works in groups of 32; the message names the tensor and the way out."""
    odd = Tensor.from_array("odd.weight", np.zeros((4, 40), dtype=np.float32))
    with pytest.raises(UnsupportedModelError, match=r"odd\.weight.*f32"):
        float_matrix(odd, "q8")


def test_an_infinite_weight_is_not_rounded() -> None:
    """It would turn its whole group into nonsense without a word."""
    broken = Tensor.from_array("broken.weight", np.full((1, 32), np.inf, dtype=np.float32))
    with pytest.raises(CheckpointError, match=r"broken\.weight"):
        float_matrix(broken, "q4")
