"""Weight matrices as the linear kernels read them, made from a checkpoint's tensors without losing precision.

    Q4_0 Q4_1 Q4_K              4-bit records, exact
    Q5_0 Q5_1 Q5_K Q8_0 Q6_K    8-bit records, exact
    F32, F16, BF16              float tiles of the same type

unless the operator asks for rounding ("q4", "q8") or for float32. Scales are kept in half precision only where that is exact.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from attrs import evolve, field, frozen
from numpy.typing import NDArray

from tlserve.kernels.float_tile import BFLOAT16, FLOAT16, FLOAT32
from tlserve.kernels.jit import Kernel
from tlserve.kernels.linear import FLOAT_KERNELS, QUANT_KERNELS
from tlserve.kernels.pack import num_blocks, pack_floats, pack_groups
from tlserve.kernels.quant_tile import BLOCK, Format
from tlserve.kernels.target import simd_level
from tlserve.weights.quantize import AffineGroups, exact_groups, rounded_groups
from tlserve.weights.tensor import Tensor

WeightFormat = Literal["auto", "q4", "q8", "f32"]

CENTRES = (128, 32, 16)
"""Where 8-bit formats have their zero: Q8_0, Q6_K, Q5_0."""


@frozen(kw_only=True, eq=False)
class PackedMatrix:
    """One matrix, [rows, inputs], or several on top of each other.

    Attributes:
        rows: output rows.
        inputs: the length of a row.
        form: how records lie, or None for floats.
        kind: FLOAT32, FLOAT16 or BFLOAT16 where form is None.
        data: [blocks, groups, record bytes] or [blocks, inputs, 16].

    """

    rows: int
    inputs: int
    form: Format | None
    kind: int = FLOAT32
    data: NDArray[Any] = field(repr=False)

    @property
    def depth(self) -> int:
        """Groups of a row (quantised) or inputs (floats)."""
        return int(self.data.shape[1])

    @property
    def kernel(self) -> Kernel:
        """The linear kernel that multiplies with it."""
        return FLOAT_KERNELS[self.kind] if self.form is None else QUANT_KERNELS[self.form]


def pack_matrices(tensors: Sequence[Tensor], weights: WeightFormat) -> list[PackedMatrix]:
    """Pack matrices of the same number of inputs; neighbours of one format become one matrix.

    Raises:
        UnsupportedModelError: rounding was asked for and rows are not a multiple of 32 long.
        CheckpointError: a weight to be rounded is not finite.

    """
    sources = [_read(tensor, weights) for tensor in tensors]
    runs: list[list[_Source]] = []
    for source in sources:
        if runs and runs[-1][0].style == source.style:
            runs[-1].append(source)
        else:
            runs.append([source])
    return [run[0].pack(run) for run in runs]


def _read(tensor: Tensor, weights: WeightFormat) -> _Source:
    if weights == "f32":
        return _Floats(tensor.dequantize(), FLOAT32)
    groups = exact_groups(tensor)
    if weights == "auto" or (groups is not None and groups.group_size == 32 and groups.bits <= int(weights[1])):
        return _floats_of(tensor) if groups is None else _centred(groups)
    return _centred(rounded_groups(tensor, 4 if weights == "q4" else 8))


def _floats_of(tensor: Tensor) -> _Floats:
    """F32 as it is; 16-bit floats as they are, except where the target has no instruction that widens float16."""
    if tensor.type_name == "BF16":
        return _Floats(tensor.raw.reshape(-1).view(np.uint16).reshape(tensor.shape), BFLOAT16)
    if tensor.type_name == "F16" and simd_level() != "portable":
        return _Floats(tensor.raw.reshape(-1).view(np.float16).reshape(tensor.shape), FLOAT16)
    return _Floats(tensor.dequantize(), FLOAT32)


def _centred(groups: AffineGroups) -> _Groups:
    """Eight-bit weights around zero, without minimums where the format has a centre of its own."""
    q, minimum, scaled_only = groups.q, groups.minimum, False
    if groups.bits == 8:
        centre = next((c for c in CENTRES if np.array_equal(minimum, -c * groups.scale)), None)
        scaled_only = centre is not None
        shift = centre or 128
        q = q - np.uint8(shift)  # wraps around: the byte of a signed number
        minimum = minimum + np.float32(shift) * groups.scale
    factors = (groups.scale,) if scaled_only else (groups.scale, minimum)
    form = Format(
        bits=groups.bits,
        half=simd_level() != "portable" and all(_fits_half(values) for values in factors),
        minimums=not scaled_only,
        halves=groups.group_size == 16,
    )
    return _Groups(evolve(groups, q=q, minimum=minimum), form)


def _fits_half(values: NDArray[np.float32]) -> bool:
    with np.errstate(over="ignore"):
        return bool(np.isfinite(values).all() and np.array_equal(values.astype(np.float16), values))


@frozen(eq=False)
class _Groups:
    groups: AffineGroups
    form: Format

    @property
    def style(self) -> object:
        return self.form

    @staticmethod
    def pack(run: Sequence[_Source]) -> PackedMatrix:
        parts = [source.groups for source in run if isinstance(source, _Groups)]
        form = run[0].form
        q, scale, minimum = (
            _stack([getattr(part, name) for part in parts]) for name in ("q", "scale", "minimum")
        )
        out = np.zeros((num_blocks(len(q)), q.shape[1] // 32, form.record_bytes), np.uint8)
        pack_groups(form, q, scale, minimum, out)
        return PackedMatrix(rows=len(q), inputs=q.shape[1], form=form, data=out)


@frozen(eq=False)
class _Floats:
    values: NDArray[Any]
    kind: int

    @property
    def style(self) -> object:
        return self.kind

    @property
    def form(self) -> None:
        return None

    @staticmethod
    def pack(run: Sequence[_Source]) -> PackedMatrix:
        values = _stack([source.values for source in run if isinstance(source, _Floats)])
        out = np.zeros((num_blocks(len(values)), values.shape[1], BLOCK), values.dtype)
        pack_floats(values, out)
        kind = next(source.kind for source in run if isinstance(source, _Floats))
        return PackedMatrix(rows=len(values), inputs=values.shape[1], form=None, kind=kind, data=out)


_Source = _Groups | _Floats


def _stack(parts: Sequence[NDArray[Any]]) -> NDArray[Any]:
    return parts[0] if len(parts) == 1 else np.concatenate(parts)
