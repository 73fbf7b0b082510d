"""How the operator's ``weights`` setting turns the matrices of a checkpoint into numbers to compute with.

One rule for every runner, so that the plain one stays the reference of the fast one. It covers the matrices of linear
layers, the output matrix, and an embedding that is tied to it; norms, biases and separate embeddings stay as stored.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from tlserve.weights.quantize import AffineGroups, exact_groups, rounded_groups
from tlserve.weights.tensor import Tensor

WeightFormat = Literal["auto", "q4", "q8", "f32"]


def matrix_groups(tensor: Tensor, weights: WeightFormat) -> AffineGroups | None:
    """A matrix [N, K] as small integers with scales, or None where it is to be used as floats.

    "auto" keeps integers that the file holds, "f32" wants none. "q8" and "q4" round; a matrix that already has no more
    bits than asked for is taken exactly.

    Raises:
        UnsupportedModelError: rows of a matrix that must be rounded are not a multiple of 32 long.
        CheckpointError: a matrix that must be rounded holds a value that is not finite.

    """
    if weights == "f32":
        return None
    stored = exact_groups(tensor)
    if weights == "auto":
        return stored
    bits: Literal[4, 8] = 4 if weights == "q4" else 8
    if stored is not None and stored.bits <= bits:
        return stored
    return rounded_groups(tensor, bits)


def float_matrix(tensor: Tensor, weights: WeightFormat) -> NDArray[np.float32]:
    """The values [N, K] that `matrix_groups` stands for, in float32. Raises what it raises."""
    groups = None if weights == "auto" else matrix_groups(tensor, weights)
    return tensor.dequantize() if groups is None else groups.dequantize()
