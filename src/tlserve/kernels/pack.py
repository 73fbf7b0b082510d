"""Bringing weights into the order in which the tiles read them; see `quant_tile` and `float_tile` for the layouts.

Rows are padded with zeros to whole blocks of sixteen. The parts of a fused linear (query, key, value; gate, up) are packed one
after another into one array.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tlserve.kernels.jit import jit
from tlserve.kernels.quant_tile import BLOCK, GROUP, Format

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]


def num_blocks(rows: int) -> int:
    """Blocks that hold so many rows."""
    return -(-rows // BLOCK)


def pack_groups(form: Format, q: Bytes, scale: Floats, minimum: Floats, out: Bytes) -> None:
    """Pack q uint8 [N, K] with scale and minimum float32 [N, K / 32] (scale [N, K / 16] for halves) into out uint8 [blocks, K / 32, record bytes].

    Eight-bit q must be centred already: stored byte = q - 128 as int8, minimum + 128 * scale. ``out`` must be zeros.
    """
    groups = q.shape[1] // GROUP
    _pack_weights(q, form.bits, out)
    factors = out[:, :, form.weight_bytes :].view(np.float16 if form.half else np.float32)
    if form.halves:
        _pack_factors(scale[:, ::2], factors[:, :, :BLOCK], groups)
        _pack_factors(scale[:, 1::2], factors[:, :, BLOCK:], groups)
        return
    _pack_factors(scale, factors[:, :, :BLOCK], groups)
    if form.minimums:
        _pack_factors(minimum, factors[:, :, BLOCK:], groups)


def _pack_factors(values: Floats, out: NDArray[Any], groups: int) -> None:
    """[N, groups] into [blocks, groups, 16]."""
    rows = len(values)
    whole = rows // BLOCK
    out[:whole] = values[: whole * BLOCK].reshape(whole, BLOCK, groups).transpose(0, 2, 1)
    if rows % BLOCK:
        out[whole, :, : rows % BLOCK] = values[whole * BLOCK :].T


@jit
def _pack_weights(q: Bytes, bits: int, out: Bytes) -> None:
    """Fields of 16-bit lanes: pair p of a group lies in vector p // fields, field p % fields, lanes 2 row and 2 row + 1."""
    rows, columns = q.shape
    fields = 16 // bits
    for row in range(rows):
        for column in range(0, columns, 2):
            group, pair = column // GROUP, column % GROUP // 2
            place = pair // fields * 64 + row % BLOCK * 4
            shift = bits * (pair % fields)
            record = out[row // BLOCK, group]
            for parity in range(2):
                record[place + 2 * parity + shift // 8] |= q[row, column + parity] << (shift % 8)


def pack_floats(values: NDArray[Any], out: NDArray[Any]) -> None:
    """Pack values [N, K], float32, float16 or bfloat16 as uint16, into out [blocks, K, 16], which must be zeros."""
    rows, columns = values.shape
    whole = rows // BLOCK
    out[:whole] = values[: whole * BLOCK].reshape(whole, BLOCK, columns).transpose(0, 2, 1)
    if rows % BLOCK:
        out[whole, :, : rows % BLOCK] = values[whole * BLOCK :].T
