"""Weight matrices as the linear kernels read them, made without losing precision.

Affine groups become 4-bit or 8-bit records, whose scales are in half precision only where that is exact; tensors of floats
become float tiles of the same type. Whether a matrix is to be rounded to groups first was decided above.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any

import numpy as np
from attrs import evolve, field, frozen
from numpy.typing import NDArray

from tlserve.kernels.float_tile import BFLOAT16, FLOAT16, FLOAT32
from tlserve.kernels.jit import Kernel
from tlserve.kernels.linear import FLOAT_KERNELS, QUANT_KERNELS
from tlserve.kernels.pack import num_blocks, pack_floats, pack_groups
from tlserve.kernels.quant_tile import BLOCK, GROUP, Format
from tlserve.kernels.target import simd_level
from tlserve.weights.quantize import AffineGroups
from tlserve.weights.tensor import Tensor

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


def pack_matrices(sources: Sequence[AffineGroups | Tensor], *, widen: bool) -> list[PackedMatrix]:
    """Pack matrices of the same number of inputs; neighbours of one format become one matrix.

    ``widen``: floats of 16 bits become float32, so that everything is computed in it.
    """
    prepared = [
        _centred(source) if isinstance(source, AffineGroups) else _floats_of(source, widen) for source in sources
    ]
    packed = []
    for _style, run in groupby(prepared, key=lambda source: source.style):
        members = list(run)
        match members[0]:
            case _Groups(style=form):
                packed.append(_pack_groups([source.groups for source in members if isinstance(source, _Groups)], form))
            case _Floats(style=kind):
                packed.append(_pack_floats([source.values for source in members if isinstance(source, _Floats)], kind))
    return packed


def _floats_of(tensor: Tensor, widen: bool) -> _Floats:  # noqa: FBT001  widen has one caller
    """As stored, where that is 16 or 32 bits and the target has an instruction that widens float16; else as float32."""
    if tensor.type_name == "BF16" and not widen:
        return _Floats(tensor.raw.reshape(-1).view(np.uint16).reshape(tensor.shape), BFLOAT16)
    if tensor.type_name == "F16" and not widen and simd_level() != "portable":
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
    """A matrix in affine groups, and how its records will lie."""

    groups: AffineGroups
    style: Format


@frozen(eq=False)
class _Floats:
    """A matrix of floats; ``style`` is FLOAT32, FLOAT16 or BFLOAT16."""

    values: NDArray[Any]
    style: int


def _pack_groups(parts: Sequence[AffineGroups], form: Format) -> PackedMatrix:
    q = _stack([part.q for part in parts])
    scale, minimum = _stack([part.scale for part in parts]), _stack([part.minimum for part in parts])
    out = np.zeros((num_blocks(len(q)), q.shape[1] // GROUP, form.record_bytes), np.uint8)
    pack_groups(form, q, scale, minimum, out)
    return PackedMatrix(rows=len(q), inputs=q.shape[1], form=form, data=out)


def _pack_floats(parts: Sequence[NDArray[Any]], kind: int) -> PackedMatrix:
    values = _stack(parts)
    out = np.zeros((num_blocks(len(values)), values.shape[1], BLOCK), values.dtype)
    pack_floats(values, out)
    return PackedMatrix(rows=len(values), inputs=values.shape[1], form=None, kind=kind, data=out)


def _stack(parts: Sequence[NDArray[Any]]) -> NDArray[Any]:
    return parts[0] if len(parts) == 1 else np.concatenate(parts)
