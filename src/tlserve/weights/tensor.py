"""One weight of a checkpoint: its name, shape, type and the bytes in the file.

Leaves reading the file's table to its readers, and integer groups for the kernels to `quantize`. Every dimension is
positive and ``blocks`` holds exactly the bytes that shape and type ask for; readers check that first.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

import numpy as np
import numpy.typing as npt
from attrs import evolve, field, frozen
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize

TENSOR_TYPES: Final = ("F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K")
"""The types that are served, in GGUF's names; safetensors hold the first three."""


@frozen
class BlockFormat:
    """How a row is cut: so many elements take so many bytes (1 element for the plain float types)."""

    elements: int
    num_bytes: int


BLOCK_FORMATS: Final[Mapping[str, BlockFormat]] = MappingProxyType(
    {name: BlockFormat(*GGML_QUANT_SIZES[GGMLQuantizationType[name]]) for name in TENSOR_TYPES}
)


@frozen(kw_only=True, eq=False)
class Tensor:
    """One weight, rows first (numpy order), still in the file's own encoding.

    Attributes:
        name: Hugging Face name, such as ``model.layers.0.self_attn.q_proj.weight``.
        shape: elements per dimension; a linear layer is (outputs, inputs).
        type_name: one of `TENSOR_TYPES`.
        blocks: uint8 ``(*shape[:-1], bytes per row)`` as stored, usually a read-only view of the mapped file.
        row_order: where given, row ``i`` of this matrix is stored row ``row_order[i]``.
    """

    name: str
    shape: tuple[int, ...]
    type_name: str
    blocks: npt.NDArray[np.uint8] = field(repr=False)
    row_order: npt.NDArray[np.int64] | None = field(default=None, repr=False)

    @classmethod
    def from_array(cls, name: str, values: npt.NDArray[np.float32]) -> Tensor:
        """A float32 tensor that lives in memory."""
        data = np.ascontiguousarray(values, dtype=np.float32)
        return cls(name=name, shape=data.shape, type_name="F32", blocks=data.view(np.uint8))

    @property
    def raw(self) -> npt.NDArray[np.uint8]:
        """The encoded rows, uint8 ``(*shape[:-1], bytes per row)``; a view of the file unless rows are reordered."""
        return self.blocks if self.row_order is None else self.blocks[self.row_order]

    @property
    def num_elements(self) -> int:
        """How many weights."""
        return math.prod(self.shape)

    @property
    def num_bytes(self) -> int:
        """Size in the file."""
        return self.blocks.nbytes

    def rows(self, start: int, stop: int) -> Tensor:
        """Rows ``start`` to ``stop`` as a tensor of the same name, to work through a large one in pieces."""
        if self.row_order is None:
            blocks, row_order = self.blocks[start:stop], None
        else:
            blocks, row_order = self.blocks, self.row_order[start:stop]
        num_rows = len(range(self.shape[0])[start:stop])
        return evolve(self, shape=(num_rows, *self.shape[1:]), blocks=blocks, row_order=row_order)

    def dequantize(self) -> npt.NDArray[np.float32]:
        """The values: a new C-contiguous float32 array of ``shape`` that the caller may write to."""
        with np.errstate(over="ignore", invalid="ignore"):  # a NaN in the file is seen in the logits, not here
            values = dequantize(self.raw, GGMLQuantizationType[self.type_name])
        # F32 comes back as a view of the file, which may be unaligned and is read-only.
        return np.array(values, dtype=np.float32, order="C", copy=self.type_name == "F32").reshape(self.shape)
