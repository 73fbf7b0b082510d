"""Weights as small integers with a scale and a minimum for each group of a row: what the integer kernels compute with.

``value = q * scale + minimum``. Every quantised block format that is served fits this form exactly; float weights are
rounded into it when the operator asks. Packing for SIMD is the kernels' work.

========  ====  =====  ======================================
format    bits  group  minimum
========  ====  =====  ======================================
Q4_0      4     32     -8 scale
Q4_1      4     32     stored
Q4_K      4     32     stored (6 bits each for scale and minimum)
Q5_0      8     32     -16 scale
Q5_1      8     32     stored
Q5_K      8     32     stored
Q8_0      8     32     -128 scale (q is the signed byte + 128)
Q6_K      8     16     -32 scale
========  ====  =====  ======================================

Layouts of the blocks: ggml's ``ggml-common.h``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
from attrs import field, frozen

from tlserve.errors import CheckpointError, UnsupportedModelError
from tlserve.weights.tensor import BLOCK_FORMATS, Tensor

Bits: TypeAlias = Literal[4, 8]
Bytes: TypeAlias = npt.NDArray[np.uint8]
Floats: TypeAlias = npt.NDArray[np.float32]

GROUP_SIZE: Final = 32
CHUNK_ELEMENTS: Final = 1 << 20
"""How much is rounded at a time, so that a large embedding needs no second copy in float32."""


@frozen(kw_only=True, eq=False)
class AffineGroups:
    """A matrix (N, K) in groups along its rows; group g of a row covers elements g * group_size and on.

    Attributes:
        bits: q is below 2 ** bits.
        group_size: 32, or 16 (Q6_K).
        q: uint8 (N, K), C-contiguous.
        scale, minimum: float32 (N, K / group_size), C-contiguous.
    """

    bits: Bits
    group_size: int
    q: Bytes = field(repr=False)
    scale: Floats = field(repr=False)
    minimum: Floats = field(repr=False)

    def dequantize(self) -> Floats:
        """The values, float32 (N, K)."""
        grouped = self.q.reshape(*self.scale.shape, self.group_size)  # (rows, groups, elements)
        return (grouped * self.scale[..., None] + self.minimum[..., None]).reshape(self.q.shape)


def exact_groups(tensor: Tensor) -> AffineGroups | None:
    """A quantised matrix in affine groups, without any loss: `AffineGroups.dequantize` equals `Tensor.dequantize`.

    None for a matrix of plain floats, which only `rounded_groups` can put in this form.
    """
    layout = LAYOUTS.get(tensor.type_name)
    if layout is None:
        return None
    num_rows, num_columns = tensor.shape
    blocks = np.ascontiguousarray(tensor.raw).reshape(-1, BLOCK_FORMATS[tensor.type_name].num_bytes)
    with np.errstate(over="ignore", invalid="ignore"):  # an infinite scale is seen in the logits, not here
        q, scale, minimum = layout.unpack(blocks)
    return AffineGroups(
        bits=layout.bits,
        group_size=layout.group_size,
        q=q.reshape(num_rows, num_columns),
        scale=scale.reshape(num_rows, -1),
        minimum=minimum.reshape(num_rows, -1),
    )


def rounded_groups(tensor: Tensor, bits: Bits) -> AffineGroups:
    """Any matrix rounded to ``bits`` per weight: each group of 32 spans its minimum to its maximum in equal steps.

    The error of a weight is at most half a step, (maximum - minimum) / (2 ** bits - 1) / 2.

    Raises:
        UnsupportedModelError: rows are not a multiple of 32 long.
        CheckpointError: a weight is not finite.
    """
    num_rows, num_columns = tensor.shape
    if num_columns % GROUP_SIZE:
        problem = f"rows of {num_columns} weights are not a multiple of {GROUP_SIZE}; such a model needs weights = f32"
        raise UnsupportedModelError(f"tensor {tensor.name!r}: {problem}")
    q = np.empty((num_rows, num_columns), np.uint8)
    scale = np.empty((num_rows, num_columns // GROUP_SIZE), np.float32)
    minimum = np.empty_like(scale)
    step = max(1, CHUNK_ELEMENTS // num_columns)
    for start in range(0, num_rows, step):
        part = slice(start, min(start + step, num_rows))
        q[part], scale[part], minimum[part] = _round(tensor.rows(part.start, part.stop), (1 << bits) - 1)
    return AffineGroups(bits=bits, group_size=GROUP_SIZE, q=q, scale=scale, minimum=minimum)


def _round(tensor: Tensor, levels: int) -> tuple[Bytes, Floats, Floats]:
    values = tensor.dequantize().reshape(tensor.shape[0], -1, GROUP_SIZE)
    low = values.min(axis=2)
    with np.errstate(over="ignore", invalid="ignore"):
        scale = (values.max(axis=2) - low) / levels
    if not np.isfinite(scale).all():
        raise CheckpointError(f"tensor {tensor.name!r} holds a weight that is not finite, or too large to round")
    steps = (values - low[..., None]) / np.where(scale > 0, scale, 1)[..., None]
    q = np.rint(steps).clip(0, levels).astype(np.uint8)
    return q.reshape(tensor.shape), scale, low


Unpacked: TypeAlias = tuple[Bytes, Floats, Floats]
"""Of n blocks: q uint8 (n, elements), scale and minimum float32 (n, groups of a block)."""


def _half(data: Bytes) -> Floats:
    """Two bytes of each block as a half float, (n, 1)."""
    return np.ascontiguousarray(data).view(np.float16).astype(np.float32)


def _low(data: Bytes) -> Bytes:
    """The low nibble of each byte."""
    return data & np.uint8(0x0F)


def _high(data: Bytes) -> Bytes:
    """The high nibble of each byte."""
    return data >> np.uint8(4)


def _lifted(data: Bytes) -> Bytes:
    """Bits 0 and up moved to where a nibble's fifth and sixth bits are."""
    return data << np.uint8(4)


def _nibbles(data: Bytes) -> Bytes:
    """(n, 16) bytes as (n, 32): all low nibbles, then all high ones."""
    return np.concatenate([_low(data), _high(data)], axis=1)


def _fifth_bits(data: Bytes) -> Bytes:
    """(n, 4) bytes as (n, 32): bit i is element i's fifth, in its place (0 or 16)."""
    return _lifted(np.unpackbits(data, axis=1, bitorder="little"))


def _unpack_q4_0(blocks: Bytes) -> Unpacked:
    """18 bytes: d, nibbles."""
    scale = _half(blocks[:, :2])
    return _nibbles(blocks[:, 2:]), scale, -8 * scale


def _unpack_q4_1(blocks: Bytes) -> Unpacked:
    """20 bytes: d, m, nibbles."""
    return _nibbles(blocks[:, 4:]), _half(blocks[:, :2]), _half(blocks[:, 2:4])


def _unpack_q5_0(blocks: Bytes) -> Unpacked:
    """22 bytes: d, fifth bits, nibbles."""
    scale = _half(blocks[:, :2])
    return _nibbles(blocks[:, 6:]) | _fifth_bits(blocks[:, 2:6]), scale, -16 * scale


def _unpack_q5_1(blocks: Bytes) -> Unpacked:
    """24 bytes: d, m, fifth bits, nibbles."""
    q = _nibbles(blocks[:, 8:]) | _fifth_bits(blocks[:, 4:8])
    return q, _half(blocks[:, :2]), _half(blocks[:, 2:4])


def _unpack_q8_0(blocks: Bytes) -> Unpacked:
    """34 bytes: d, signed bytes; flipping the sign bit adds 128."""
    scale = _half(blocks[:, :2])
    return blocks[:, 2:] ^ np.uint8(0x80), scale, -128 * scale


def _unpack_q4_k(blocks: Bytes) -> Unpacked:
    """144 bytes: d, dmin, 12 bytes of scales, 128 bytes of nibbles."""
    scale, minimum = _k_scales(blocks)
    return _k_nibbles(blocks[:, 16:]).reshape(-1, 256), scale, minimum


def _unpack_q5_k(blocks: Bytes) -> Unpacked:
    """176 bytes: d, dmin, 12 of scales, 32 of fifth bits (bit g of byte i: element i of group g), 128 of nibbles."""
    scale, minimum = _k_scales(blocks)
    by_element = np.unpackbits(blocks[:, 16:48, None], axis=2, bitorder="little")  # (n, elements, groups)
    q = _k_nibbles(blocks[:, 48:]) | _lifted(by_element.swapaxes(1, 2))
    return q.reshape(-1, 256), scale, minimum


def _unpack_q6_k(blocks: Bytes) -> Unpacked:
    """210 bytes: 128 of low nibbles, 64 of high bit pairs, 16 signed scales, d; two halves of 128 elements each."""
    nibbles = blocks[:, :128].reshape(-1, 2, 1, 64)
    low = np.concatenate([_low(nibbles), _high(nibbles)], axis=2)
    pairs = blocks[:, 128:192].reshape(-1, 2, 1, 32)
    high = np.concatenate([pairs >> np.uint8(shift) & np.uint8(0x03) for shift in (0, 2, 4, 6)], axis=2)
    scale = _half(blocks[:, 208:]) * blocks[:, 192:208].view(np.int8)
    return low.reshape(-1, 256) | _lifted(high.reshape(-1, 256)), scale, -32 * scale


def _k_nibbles(data: Bytes) -> Bytes:
    """(n, 128) bytes as (n, 8, 32): a run of 32 bytes is one group in its low nibbles, the next in its high ones."""
    runs = data.reshape(-1, 4, 1, 32)
    return np.concatenate([_low(runs), _high(runs)], axis=2).reshape(-1, 8, 32)


def _k_scales(blocks: Bytes) -> tuple[Floats, Floats]:
    """Scale and minimum of a block's 8 groups, (n, 8): six bits each in bytes 4 to 16, in units of d and dmin.

    Of these twelve, 0-3 (scales) and 4-7 (minima) hold groups 0-3 in their low six bits. For groups 4-7, 8-11 hold
    the low four bits (scale in the low nibble, minimum in the high one); the two above are the top bits of 0-7.
    """
    first, second, rest = blocks[:, 4:8], blocks[:, 8:12], blocks[:, 12:16]
    six, top = np.uint8(0x3F), np.uint8(6)
    scale = np.concatenate([first & six, _low(rest) | _lifted(first >> top)], axis=1)
    minimum = np.concatenate([second & six, _high(rest) | _lifted(second >> top)], axis=1)
    return _half(blocks[:, :2]) * scale, -_half(blocks[:, 2:4]) * minimum


@frozen
class _Layout:
    bits: Bits
    group_size: int
    unpack: Callable[[Bytes], Unpacked]


LAYOUTS: Final[Mapping[str, _Layout]] = {
    "Q4_0": _Layout(4, 32, _unpack_q4_0),
    "Q4_1": _Layout(4, 32, _unpack_q4_1),
    "Q5_0": _Layout(8, 32, _unpack_q5_0),
    "Q5_1": _Layout(8, 32, _unpack_q5_1),
    "Q8_0": _Layout(8, 32, _unpack_q8_0),
    "Q4_K": _Layout(4, 32, _unpack_q4_k),
    "Q5_K": _Layout(8, 32, _unpack_q5_k),
    "Q6_K": _Layout(8, 16, _unpack_q6_k),
}
