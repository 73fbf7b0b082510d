"""The float32 KV arrays of the numpy runner, cut into blocks.

Knows block ids and positions, never sequences or requests. A slot is written once per forward pass and read through a
block table; what lies in a block beyond its sequence's context is never read.
"""

from __future__ import annotations

import numpy as np
from attrs import frozen
from numpy.typing import NDArray

from tlserve.model.batch import ForwardBatch
from tlserve.model.hparams import HParams


def kv_bytes_per_block(hparams: HParams, block_size: int) -> int:
    """Bytes that one block takes over all layers, keys and values together, in float32."""
    return 2 * hparams.num_layers * hparams.kv_size * block_size * np.dtype(np.float32).itemsize


@frozen(eq=False, repr=False)
class KVStore:
    """keys and values, each [layers, num_blocks, block_size, kv_heads, head_dim].

    A position's heads lie side by side, so that a gathered block is a run of the context.
    """

    keys: NDArray[np.float32]
    values: NDArray[np.float32]

    @classmethod
    def allocate(cls, hparams: HParams, *, num_blocks: int, block_size: int) -> KVStore:
        """An empty store. The system hands out its pages when they are first written."""
        shape = (hparams.num_layers, num_blocks, block_size, hparams.num_kv_heads, hparams.head_dim)
        return cls(np.zeros(shape, dtype=np.float32), np.zeros(shape, dtype=np.float32))

    def write(self, layer: int, slots: NDArray[np.intp], key: NDArray[np.float32], value: NDArray[np.float32]) -> None:
        """Store key and value [T, kv_heads, head_dim] at flat slots [T] of a layer."""
        shape = self.keys.shape
        self.keys[layer].reshape(-1, *shape[3:])[slots] = key
        self.values[layer].reshape(-1, *shape[3:])[slots] = value


def slots_of(batch: ForwardBatch, block_size: int) -> NDArray[np.intp]:
    """[T] flat slots, block id * block_size + offset, of the rows of a batch."""
    sequence_of_row = np.repeat(np.arange(batch.num_sequences), np.diff(batch.query_start))
    block = batch.block_tables[sequence_of_row, batch.positions // block_size]
    return block.astype(np.intp) * block_size + batch.positions % block_size
