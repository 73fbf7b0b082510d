"""The fast runner: a decoder played by a team of threads from a tape of compiled kernels.

Packing weights is `kernels.matrix`, the order of operations `numba_program`, the arithmetic the other files of kernels. One
call per step leaves Python; between the first operation and the last the GIL is not needed.
Invariant: the bits of a row's logits depend on its own sequence only: not on the batch, the chunking or the threads.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from attrs import define, field
from numpy.typing import NDArray

from tlserve.errors import EngineError
from tlserve.kernels import attention, kv
from tlserve.kernels.buffers import aligned_zeros, padded
from tlserve.kernels.footprint import release_load_memory
from tlserve.kernels.jit import CompiledKernel, Kernel
from tlserve.kernels.plan import plan_attention
from tlserve.kernels.tape import (
    BLOCK_TABLES,
    KV_LAYER_BYTES,
    KV_POOL,
    LOGIT_ROW_IDS,
    LOGIT_ROWS,
    LOGITS,
    PARTIALS,
    POSITIONS,
    QUERY_TILES,
    ROWS,
    SCRATCH,
    SCRATCH_BYTES,
    SEQUENCE_OF_ROW,
    SPLIT_LIST,
    SPLIT_ROWS,
    STEP_FIELDS,
    TABLE_STRIDE,
    TILE_LIST,
    TOKENS,
    FrozenTape,
)
from tlserve.kernels.target import describe_target
from tlserve.kernels.team import Team, team_size
from tlserve.model.batch import ForwardBatch, check_text
from tlserve.model.hparams import HParams
from tlserve.model.matrix_format import WeightFormat
from tlserve.model.numba_program import Program, kernels_of
from tlserve.model.numba_weights import PackedWeights, pack_weights
from tlserve.model.runner import Capacity, ReportCompile, ReportProgress
from tlserve.weights.tensor import Tensor

Float32Array = NDArray[np.float32]

ROWS_AT_FIRST = 128
"""Rows that buffers hold before a larger batch comes."""

MOST_PARTIALS = 1024
"""Partials of lone rows with a long context that a step may spread over tiles."""


def kv_bytes_per_block(hparams: HParams, block_size: int, element: int = 2) -> int:
    """Bytes that one block takes over all layers; for ``element`` see `kv_element`."""
    return hparams.num_layers * _layer_block_bytes(hparams, block_size, element)


def kv_element(tensors: Mapping[str, Tensor], weights: WeightFormat) -> int:
    """Bytes of a stored key's or value's element: 4 (float32) where all weights are float32, else 2 (scaled int16)."""
    as_stored = weights == "auto" and all(tensor.type_name == "F32" for tensor in tensors.values())
    return 4 if as_stored or weights == "f32" else 2


def _layer_block_bytes(hparams: HParams, block_size: int, element: int) -> int:
    chunks = -(-block_size // kv.KEYS_PER_CHUNK)
    return hparams.num_kv_heads * chunks * kv.chunk_bytes(hparams.head_dim, element)


@define(eq=False, repr=False)
class NumbaRunner:
    """A ModelRunner; see the protocol for what its methods promise. ``close`` ends its threads."""

    hparams: HParams
    weights: PackedWeights
    capacity: Capacity
    team: Team
    kernels: Mapping[Kernel, CompiledKernel]
    description: str
    kv_element: int
    _pool: NDArray[np.uint8] = field(init=False)
    _ropes: Sequence[tuple[Float32Array, Float32Array]] = field(init=False)
    _program: Program = field(init=False)
    _tape: FrozenTape = field(init=False)
    _hidden: Float32Array = field(init=False)
    _scratch: NDArray[np.uint8] = field(init=False)
    _partials: NDArray[np.uint8] = field(init=False)

    def __attrs_post_init__(self) -> None:
        self._ropes = tuple(rope.tables(self.hparams.head_dim, self.max_model_len) for rope in self.hparams.ropes)
        self._pool = self._allocate_pool(self.num_blocks)
        self._partials = aligned_zeros(MOST_PARTIALS * self._partial_bytes, np.uint8)
        self._write_program(ROWS_AT_FIRST)
        self._scratch = aligned_zeros(self.team.size * self._program.scratch_bytes, np.uint8)

    @property
    def vocab_size(self) -> int:
        """The number of logits per row."""
        return self.hparams.vocab_size

    @property
    def hidden_size(self) -> int:
        """The length of one hidden state."""
        return self.hparams.hidden_size

    @property
    def max_model_len(self) -> int:
        """The longest sequence in tokens."""
        return self.capacity.max_model_len

    @property
    def num_blocks(self) -> int:
        """KV blocks in the pool."""
        return self.capacity.num_blocks

    @property
    def block_size(self) -> int:
        """Tokens per KV block."""
        return self.capacity.block_size

    @property
    def kv_bytes_per_block(self) -> int:
        """Bytes of KV that one block holds over all layers."""
        return kv_bytes_per_block(self.hparams, self.block_size, self.kv_element)

    def close(self) -> None:
        """End the helper threads; the runner can still be used, and starts them again."""
        self.team.close()

    def forward(self, batch: ForwardBatch) -> Float32Array:
        """Store KV of every row, attend within each sequence, return logits [R, vocab_size].

        Raises:
            EngineError: a sequence is longer than max_model_len.

        """
        wide = np.empty((len(batch.logit_rows), self._program.logit_stride), np.float32)
        step, keep = self._step(batch, self._pool, wide)
        operations = len(self._tape.records)
        if not len(batch.logit_rows):
            operations -= self._program.logit_operations
        self.team.play(self._tape, step, first=0, stop=operations)
        del keep
        return wide[:, : self.vocab_size]

    def run_once(self, tokens: Sequence[int]) -> Float32Array:
        """Final-normed hidden states [T, hidden_size]."""
        return np.concatenate(list(self.run_pieces(tokens)))

    def run_pieces(self, tokens: Sequence[int]) -> Iterator[Float32Array]:
        """The same, ROWS_AT_FIRST rows at a time; keys and values live in a pool of their own until the last."""
        ids = check_text(tokens, vocab_size=self.vocab_size, max_model_len=self.max_model_len)
        blocks = np.arange(-(-len(ids) // self.block_size), dtype=np.int32)
        pool = self._allocate_pool(len(blocks))
        for start in range(0, len(ids), ROWS_AT_FIRST):
            rows = np.arange(start, min(start + ROWS_AT_FIRST, len(ids)), dtype=np.int32)
            batch = ForwardBatch(
                tokens=ids[rows],
                positions=rows,
                query_start=np.array([0, len(rows)], np.int32),
                context_len=rows[-1:] + np.int32(1),
                block_tables=blocks[None],
                logit_rows=rows - np.int32(start),
            )
            step, keep = self._step(batch, pool, np.empty((0, 0), np.float32))
            stop = len(self._tape.records) - self._program.logit_operations
            self.team.play(self._tape, step, first=0, stop=stop)
            del keep
            yield self._hidden[: len(rows), : self.hidden_size].copy()

    @property
    def _partial_bytes(self) -> int:
        return attention.partial_bytes(kv.padded_dim(self.hparams.head_dim)) * self.hparams.num_heads

    def _allocate_pool(self, blocks: int) -> NDArray[np.uint8]:
        """KV of ``blocks`` blocks, [layers, bytes]; the system hands out pages when they are first written."""
        size = blocks * _layer_block_bytes(self.hparams, self.block_size, self.kv_element)
        return aligned_zeros(self.hparams.num_layers * size, np.uint8).reshape(self.hparams.num_layers, size)

    def _write_program(self, rows: int) -> None:
        self._program = Program(
            hparams=self.hparams,
            weights=self.weights,
            kernels=self.kernels,
            ropes=self._ropes,
            rows=rows,
            members=self.team.size,
            block_size=self.block_size,
            kv_element=self.kv_element,
        )
        self._tape, self._hidden = self._program.write()

    def _step(
        self, batch: ForwardBatch, pool: NDArray[np.uint8], logits: Float32Array
    ) -> tuple[NDArray[np.int64], list[NDArray[np.int32]]]:
        """The step's numbers, and the arrays that must outlive it."""
        if int(batch.context_len.max()) > self.max_model_len:
            longest = int(batch.context_len.max())
            raise EngineError(f"a sequence of {longest} tokens is longer than max_model_len {self.max_model_len}")
        if batch.num_rows > self._program.rows:
            self._write_program(padded(batch.num_rows, ROWS_AT_FIRST))
        lengths = np.diff(batch.query_start)
        sequence_of_row = np.repeat(np.arange(len(lengths), dtype=np.int32), lengths)
        tiles, splits = self._plan(batch)
        keep = [
            np.ascontiguousarray(array, dtype=np.int32)
            for array in (
                batch.tokens,
                batch.positions,
                sequence_of_row,
                batch.block_tables,
                batch.logit_rows,
                tiles,
                splits,
            )
        ]
        addresses = [array.ctypes.data for array in keep]
        step = np.zeros(STEP_FIELDS, np.int64)
        step[[ROWS, LOGIT_ROWS, QUERY_TILES, SPLIT_ROWS]] = (batch.num_rows, len(keep[4]), len(tiles), len(splits))
        step[[TOKENS, POSITIONS, SEQUENCE_OF_ROW, BLOCK_TABLES, LOGIT_ROW_IDS, TILE_LIST, SPLIT_LIST]] = addresses
        step[TABLE_STRIDE] = batch.block_tables.shape[1]
        step[[KV_POOL, KV_LAYER_BYTES]] = (pool.ctypes.data, pool.strides[0])
        step[[SCRATCH, SCRATCH_BYTES]] = (self._scratch.ctypes.data, self._program.scratch_bytes)
        step[[PARTIALS, LOGITS]] = (self._partials.ctypes.data, logits.ctypes.data)
        return step, keep

    def _plan(self, batch: ForwardBatch) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        return plan_attention(
            batch.query_start.tolist(),
            batch.context_len.tolist(),
            tokens_per_tile=self._program.query_tokens,
            block_size=self.block_size,
            wanted=2 * self.team.size // self.hparams.num_kv_heads + 1 if self.team.size > 1 else 0,
            room=MOST_PARTIALS,
        )


def load_numba_runner(
    tensors: Mapping[str, Tensor],
    hparams: HParams,
    capacity: Capacity,
    *,
    weights: WeightFormat,
    threads: int | None,
    report: ReportProgress,
    report_compile: ReportCompile,
    title: str,
) -> NumbaRunner:
    """Pack the weights, compile (or load) the kernels that they need, and allocate the pool. Takes seconds.

    ``report`` hears the share of the weights that is packed, ``report_compile`` each kernel; both may raise to stop. ``title`` begins
    the description.

    Raises:
        UnsupportedModelError, CheckpointError: see `matrix_format.matrix_groups`.

    """
    packed = pack_weights(tensors, hparams, weights, report=report)
    kernels: dict[Kernel, CompiledKernel] = {}
    needed = kernels_of(hparams, packed)
    for number, kernel in enumerate(needed, start=1):
        report_compile(kernel.name, number, len(needed))
        kernels[kernel] = kernel.compile()
    size = team_size(threads)
    runner = NumbaRunner(
        hparams=hparams,
        weights=packed,
        capacity=capacity,
        team=Team(size),
        kernels=kernels,
        description=f"{title}, numba ({describe_target()}), {weights}, {size} threads",
        kv_element=kv_element(tensors, weights),
    )
    runner.run_once([0])
    release_load_memory()
    return runner
