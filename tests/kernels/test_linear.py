"""Linear layers of every weight format: true to float64, and a row's bits do not depend on its company."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from gguf.constants import GGMLQuantizationType
from gguf.quants import quantize
from numpy.typing import NDArray

from tlserve.kernels import linear
from tlserve.kernels.buffers import RowBuffer
from tlserve.kernels.matrix import PackedMatrix, pack_matrices
from tlserve.kernels.norm import ROUND_ROWS
from tlserve.model.matrix_format import matrix_groups
from tlserve.weights.quantize import AffineGroups, exact_groups, rounded_groups
from tlserve.weights.tensor import Tensor

Play = Callable[..., None]
Rows = NDArray[np.float32]

NUM_OUTPUTS, NUM_INPUTS = 72, 256  # four blocks of sixteen and half a one; eight groups
MOST_ROWS = 80  # more than one tile of tokens


def stored_as(type_name: str) -> Tensor:
    """A random matrix in a format of GGUF."""
    values = np.random.default_rng(1).standard_normal((NUM_OUTPUTS, NUM_INPUTS)).astype(np.float32)
    if type_name in {"Q4_K", "Q5_K", "Q6_K"}:  # formats that the gguf package reads but does not write
        blocks = random_blocks(type_name)
    else:
        blocks = quantize(values, GGMLQuantizationType[type_name]).view(np.uint8)
    return Tensor(name="w", shape=values.shape, type_name=type_name, blocks=blocks)


def random_blocks(type_name: str) -> NDArray[np.uint8]:
    """Any bytes are a valid block, if the half floats in it are finite."""
    size, halves = {"Q4_K": (144, (0, 2)), "Q5_K": (176, (0, 2)), "Q6_K": (210, (208,))}[type_name]
    random = np.random.default_rng(2)
    blocks = random.integers(0, 256, (NUM_OUTPUTS, NUM_INPUTS // 256, size), np.uint8)
    for place in halves:
        scale = random.uniform(1e-4, 1e-3, blocks.shape[:2]).astype(np.float16)
        blocks[..., place : place + 2] = scale[..., None].view(np.uint8)
    return blocks.reshape(NUM_OUTPUTS, -1)


def source(style: str) -> AffineGroups | Tensor:
    """A matrix in its file's format, or rounded."""
    if style == "rounded to 4":
        return rounded_groups(stored_as("F32"), 4)
    if style == "rounded to 8":
        return rounded_groups(stored_as("F32"), 8)
    tensor = stored_as(style)
    return exact_groups(tensor) or tensor


STYLES = ["Q4_0", "Q4_1", "Q4_K", "Q5_0", "Q5_1", "Q5_K", "Q8_0", "Q6_K", "F32", "F16", "BF16"]
ROUNDED = ["rounded to 4", "rounded to 8"]


def multiply(play: Play, matrix: PackedMatrix, x: Rows, *, members: int = 2, addend: Rows | None = None) -> Rows:
    """X @ w.T, plus ``addend`` [M, NUM_OUTPUTS] if given, by the compiled kernels."""
    buffer = RowBuffer.allocate(len(x), NUM_INPUTS, rounded=matrix.form is not None)
    result = RowBuffer.allocate(len(x), NUM_OUTPUTS)
    buffer.floats[:, :NUM_INPUTS] = x
    added: tuple[Any, ...] = (np.zeros(16, np.float32), 0, 0)
    if addend is not None:
        result.floats[:, :NUM_OUTPUTS] = addend
        added = (result.floats, result.stride, 64)
    inputs: tuple[Any, ...] = (buffer.floats, buffer.stride)
    if matrix.form is not None:
        place = (buffer.floats, buffer.stride, buffer.quantised, buffer.scales, buffer.groups)
        play(ROUND_ROWS, *place, rows=len(x))
        inputs = (buffer.quantised, buffer.scales)
    blocks = matrix.data.shape[0]
    fields = (matrix.data, blocks, 2, matrix.depth, *inputs, result.floats, result.stride, *added)
    play(matrix.kernel, *fields, rows=len(x), rows_per_tile=linear.TOKENS, parts=-(-blocks // 2), members=members)
    return result.floats[:, :NUM_OUTPUTS].copy()


@pytest.mark.parametrize("style", STYLES + ROUNDED)
def test_product_is_that_of_float64(play: Play, random_rows: Callable[..., Rows], style: str) -> None:
    """Within what rounding activations to 16 bits, or float32 sums, cost."""
    given = source(style)
    [matrix] = pack_matrices([given], widen=False)
    x = random_rows(5, NUM_INPUTS)
    weights = given.dequantize().astype(np.float64)
    expected = x.astype(np.float64) @ weights.T
    got = multiply(play, matrix, x)
    unit = np.sqrt(np.square(x.astype(np.float64)) @ np.square(weights).T)  # the size of a random sum
    assert (np.abs(got - expected) / unit).max() < 1e-4


@pytest.mark.parametrize("style", ["Q4_1", "Q4_K", "Q5_1", "Q8_0", "Q6_K", "F32", "BF16"])
def test_a_row_has_the_same_bits_in_any_company(play: Play, random_rows: Callable[..., Rows], style: str) -> None:
    """Alone, or with 1, 4, 15, 32 or 79 others; with one thread or two."""
    [matrix] = pack_matrices([source(style)], widen=False)
    x = random_rows(MOST_ROWS, NUM_INPUTS)
    together = multiply(play, matrix, x)
    for count in (1, 2, 5, 16, 33, 66):
        for members in (1, 2):
            first = MOST_ROWS - count
            np.testing.assert_array_equal(multiply(play, matrix, x[first:], members=members), together[first:])


@pytest.mark.parametrize("type_name", ["Q4_0", "Q4_K", "Q5_1", "Q6_K", "Q8_0"])
def test_asking_for_eight_bits_loses_nothing_that_has_no_more(
    play: Play, random_rows: Callable[..., Rows], type_name: str
) -> None:
    """With weights = q8, matrices of 4, 5, 6 and 8 bits are those of the file, scales per sixteen (Q6_K) included."""
    tensor = stored_as(type_name)
    groups = matrix_groups(tensor, "q8")
    assert groups is not None
    np.testing.assert_array_equal(groups.dequantize(), tensor.dequantize())
    x = random_rows(3, NUM_INPUTS)
    got, as_stored = (
        multiply(play, pack_matrices([each], widen=False)[0], x) for each in (groups, exact_groups(tensor) or tensor)
    )
    np.testing.assert_array_equal(got, as_stored)


@pytest.mark.parametrize("style", ["Q4_1", "F32"])
def test_a_residual_is_added(play: Play, random_rows: Callable[..., Rows], style: str) -> None:
    """What the result's rows held before is added to the product."""
    [matrix] = pack_matrices([source(style)], widen=False)
    x, before = random_rows(9, NUM_INPUTS), random_rows(9, NUM_OUTPUTS)
    np.testing.assert_array_equal(multiply(play, matrix, x, addend=before), before + multiply(play, matrix, x))


def test_neighbours_of_one_format_become_one_matrix() -> None:
    """Query, key and value are one matrix where they share a format, else as few as possible."""
    q, k, v = source("Q4_1"), source("Q4_1"), source("Q6_K")
    matrices = pack_matrices([q, k, v], widen=False)
    assert [matrix.rows for matrix in matrices] == [2 * NUM_OUTPUTS, NUM_OUTPUTS]


@pytest.mark.parametrize("style", ["Q4_1", "Q8_0"])
def test_a_broken_input_does_not_look_healthy(play: Play, random_rows: Callable[..., Rows], style: str) -> None:
    """NaN and infinity come out as NaN, and only in their own row."""
    [matrix] = pack_matrices([source(style)], widen=False)
    x = random_rows(6, NUM_INPUTS)
    good = multiply(play, matrix, x)
    x[2, 7], x[4, 200] = np.nan, np.inf
    got = multiply(play, matrix, x)
    assert np.isnan(got[[2, 4]]).all()
    np.testing.assert_array_equal(got[[0, 1, 3, 5]], good[[0, 1, 3, 5]])
