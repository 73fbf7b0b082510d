"""Arrays that kernels may read and write in whole vectors."""

from __future__ import annotations

from typing import Any

import numpy as np
from attrs import frozen
from numpy.typing import NDArray

Float32Array = NDArray[np.float32]

CACHE_LINE = 64


def padded(size: int, step: int = 16) -> int:
    """Size rounded up to whole steps."""
    return -(-size // step) * step


def aligned_zeros(count: int, kind: Any) -> NDArray[Any]:
    """Zeros [count] that begin on a cache line; pages that are never written take no memory."""
    size = np.dtype(kind).itemsize
    raw = np.zeros(count * size + CACHE_LINE, np.uint8)
    start = -raw.ctypes.data % CACHE_LINE
    return raw[start : start + count * size].view(kind)


def with_slack(values: Float32Array) -> Float32Array:
    """A vector [N] with zeros behind it: up to whole vectors, and one more."""
    out = aligned_zeros(padded(len(values)) + 16, np.float32)
    out[: len(values)] = values
    return out


@frozen(eq=False, repr=False)
class RowBuffer:
    """Rows that pass from one operation to the next: float32, and where an integer linear follows, rounded too."""

    floats: Float32Array  # (rows, padded size + 16); zeros beyond size
    size: int
    quantised: NDArray[np.int16] | None  # (rows, groups * 32)
    scales: Float32Array | None  # (rows, 2, groups): scales, then scaled sums

    @classmethod
    def allocate(cls, rows: int, size: int, *, rounded: bool = False) -> RowBuffer:
        """Room for ``rows`` rows of ``size`` elements, which must be a multiple of 32 if they are to be rounded."""
        # A spare vector behind each row: a matrix's last block may be wider than what is left of the row.
        width = padded(size) + 16
        floats = aligned_zeros(rows * width, np.float32).reshape(rows, width)
        if not rounded:
            return cls(floats, size, None, None)
        groups = size // 32
        quantised = aligned_zeros(rows * groups * 32, np.int16).reshape(rows, groups * 32)
        return cls(floats, size, quantised, aligned_zeros(rows * 2 * groups, np.float32).reshape(rows, 2, groups))

    @property
    def stride(self) -> int:
        """Bytes from row to row."""
        return int(self.floats.strides[0])

    @property
    def groups(self) -> int:
        """Groups of a rounded row."""
        return self.size // 32
