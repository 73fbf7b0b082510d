"""A model as data: the list of operations of a forward pass, in the order in which they run.

A tape is an int64 matrix; each row is the *record* of one operation: the address of its kernel, how its work is cut into
tiles, then addresses and sizes that only the kernel understands. What changes from step to step (how many rows, where
the batch's arrays lie) is in one more int64 vector, the *step*. The team plays a tape without ever entering Python.

Leaves the meaning of fields 4 and on to each kernel's file, and the order of operations to the runner.
Invariant: every address on a tape belongs to an array in ``Tape.keep``, so it stays valid as long as the tape does.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from attrs import define, field, frozen
from numpy.typing import NDArray

from tlserve.kernels.jit import CompiledKernel

OP_FIELDS = 24
"""int64 fields of a record."""

KERNEL, EXTENT, ROWS_PER_TILE, PARTS = range(4)
"""Kernel address; index of the step field that counts the operation's rows; rows in a tile; parts of a row."""

FIRST_OWN = 4
"""The first field that belongs to the kernel."""

ROWS, LOGIT_ROWS, QUERY_TILES, SPLIT_ROWS = range(4)
"""Counts of a step: tokens (T), rows whose logits are wanted (R), tiles of attention, rows whose context is split."""

TOKENS, POSITIONS, SEQUENCE_OF_ROW, BLOCK_TABLES, TABLE_STRIDE, LOGIT_ROW_IDS = range(4, 10)
"""Addresses of int32 arrays of the batch: [T], [T], [T], [S, stride], the stride in elements, [R]."""

TILE_LIST, SPLIT_LIST, PARTIALS, KV_POOL, KV_LAYER_BYTES, SCRATCH, SCRATCH_BYTES, LOGITS = range(10, 18)
"""Attention's work lists and partial results; the KV pool and how far its layers lie apart; every member's scratch and
its size; where logits go, float32 [R, padded vocabulary]."""

STEP_FIELDS = 24

Field: TypeAlias = int | float | NDArray[Any] | None
"""A number, a float32, an array that stands for its address, or nothing (0)."""


@frozen(kw_only=True, eq=False)
class Op:
    """One operation before it is written down.

    Attributes:
        kernel: what computes it.
        extent: which step field counts its rows.
        rows_per_tile, parts: a tile is one part (of ``parts``) of ``rows_per_tile`` rows.
        fields: the kernel's own fields, from FIRST_OWN on; an array stands for its address.

    """

    kernel: CompiledKernel
    extent: int
    rows_per_tile: int
    parts: int = 1
    fields: tuple[Field, ...]


@define(eq=False)
class Tape:
    """Operations in order; `freeze` yields the matrix that the team plays."""

    _ops: list[Op] = field(factory=list, init=False)

    def add(self, op: Op) -> None:
        """Append an operation."""
        if len(op.fields) > OP_FIELDS - FIRST_OWN:
            raise ValueError(
                f"an operation has {len(op.fields)} fields of its own; at most {OP_FIELDS - FIRST_OWN} fit"
            )
        self._ops.append(op)

    def freeze(self) -> FrozenTape:
        """The tape as the team reads it."""
        records = np.zeros((len(self._ops), OP_FIELDS), np.int64)
        for record, op in zip(records, self._ops, strict=True):
            record[:FIRST_OWN] = (op.kernel.address, op.extent, op.rows_per_tile, op.parts)
            record[FIRST_OWN : FIRST_OWN + len(op.fields)] = [_word(value) for value in op.fields]
        return FrozenTape(records, tuple(self._ops))


@frozen(eq=False)
class FrozenTape:
    """records [operations, OP_FIELDS], and what their addresses point to."""

    records: NDArray[np.int64]
    keep: tuple[Op, ...]


def _word(value: float | NDArray[Any] | None) -> int:
    """A field as int64: a number, the bits of a float32, an array's address, or 0 for nothing."""
    if value is None:
        return 0
    if isinstance(value, np.ndarray):
        return int(value.ctypes.data)
    if isinstance(value, int):
        return value
    return int(np.float32(value).view(np.int32))
