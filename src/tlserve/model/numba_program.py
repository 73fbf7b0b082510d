"""A decoder written down as a tape: which kernels run in which order, over which buffers.

Reads hyper-parameters and packed weights, computes nothing. Buffers hold a fixed number of rows; a runner that needs more
writes a new tape. Every architecture difference (biases, query/key norms, sandwich norms, activation, windows) is a branch
here and nowhere in the kernels' loops.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
from attrs import define, field
from numpy.typing import NDArray

from tlserve.kernels import activation, attention, embedding, kv, linear, norm
from tlserve.kernels.buffers import RowBuffer, padded
from tlserve.kernels.jit import CompiledKernel, Kernel
from tlserve.kernels.matrix import PackedMatrix
from tlserve.kernels.simd import LOG2_E
from tlserve.kernels.tape import LOGIT_ROWS, QUERY_TILES, ROWS, SPLIT_ROWS, Field, FrozenTape, Op, Tape
from tlserve.model.hparams import HParams
from tlserve.model.numba_weights import FusedLinear, PackedLayer, PackedWeights

Float32Array = NDArray[np.float32]

TOKENS_PER_TILE = 8
"""Rows per tile of work in operations that go row by row."""

TILES_PER_MEMBER = 4
"""Into how many parts a linear is cut for each thread: enough that one who is late leaves little undone."""

MOST_PARTS = 256

QUERY_ROWS = 32
"""Query rows (tokens x heads of a group) that attention aims at in a tile."""


@define(eq=False, repr=False)
class Program:
    """The tape of a model for at most ``rows`` rows in a step; see `tape` for what a step holds."""

    hparams: HParams
    weights: PackedWeights
    kernels: Mapping[Kernel, CompiledKernel]
    ropes: Sequence[tuple[Float32Array, Float32Array]]
    rows: int
    members: int
    block_size: int
    kv_element: int
    _tape: Tape = field(factory=Tape, init=False)

    @property
    def query_tokens(self) -> int:
        """Tokens of a tile of attention."""
        return max(1, QUERY_ROWS // (self.hparams.num_heads // self.hparams.num_kv_heads))

    @property
    def query_rows(self) -> int:
        """Query rows of a tile of attention, in whole steps."""
        group = self.hparams.num_heads // self.hparams.num_kv_heads
        return padded(self.query_tokens * group, attention.ROW_STEP)

    @property
    def scratch_bytes(self) -> int:
        """What each member of the team needs."""
        return padded(attention.scratch_bytes(self.query_rows, kv.padded_dim(self.hparams.head_dim)), 64)

    def write(self) -> tuple[FrozenTape, Float32Array]:
        """The tape, and the buffer of final-normed rows [rows, padded hidden], which all but its last operations fill."""
        hparams, weights = self.hparams, self.weights
        normed_for = [weights.lm_head, *(part for layer in weights.layers for part in (layer.qkv, layer.gate_up))]
        hidden = RowBuffer.allocate(self.rows, hparams.hidden_size)
        normed = RowBuffer.allocate(self.rows, hparams.hidden_size, rounded=_any_rounds(normed_for))
        qkv = RowBuffer.allocate(self.rows, hparams.query_size + 2 * hparams.kv_size)
        out_rounds, down_rounds = (
            _any_rounds([getattr(layer, name) for layer in weights.layers]) for name in ("out", "down")
        )
        mixed = RowBuffer.allocate(self.rows, hparams.query_size, rounded=out_rounds)
        gate_up = RowBuffer.allocate(self.rows, 2 * hparams.intermediate_size)
        gated = RowBuffer.allocate(self.rows, hparams.intermediate_size, rounded=down_rounds)
        branch = RowBuffer.allocate(self.rows, hparams.hidden_size)
        self._embed(hidden)
        for number, layer in enumerate(weights.layers):
            self._norm(hidden, layer.attention_norm, normed)
            self._linear(normed, layer.qkv, qkv)
            self._attention(number, layer, qkv, mixed)
            self._round(mixed)
            self._join(mixed, layer.out, layer.attention_post_norm, branch, hidden)
            last = number == len(weights.layers) - 1
            if last:  # From here on no row looks at another, so those whose logits nobody wants can go.
                self._pick(hidden)
            extent = LOGIT_ROWS if last else ROWS
            self._norm(hidden, layer.mlp_norm, normed, extent=extent)
            self._linear(normed, layer.gate_up, gate_up, extent=extent)
            self._gate(gate_up, gated, extent=extent)
            self._join(gated, layer.down, layer.mlp_post_norm, branch, hidden, extent=extent)
        self._norm(hidden, weights.final_norm, normed, extent=LOGIT_ROWS)
        self._linear(normed, weights.lm_head, None, extent=LOGIT_ROWS)
        if hparams.logit_softcap is not None:
            self._cap(hparams.logit_softcap)
        return self._tape.freeze(), normed.floats

    @property
    def logit_operations(self) -> int:
        """How many operations at the tape's end turn hidden states into logits."""
        return len(self.weights.lm_head.matrices) + (self.hparams.logit_softcap is not None)

    @property
    def logit_stride(self) -> int:
        """Elements of a row of logits, whole blocks."""
        return padded(self.hparams.vocab_size)

    def _add(self, kernel: Kernel, extent: int, rows_per_tile: int, parts: int, *fields: Field) -> None:
        self._tape.add(
            Op(
                kernel=self.kernels[kernel],
                extent=extent,
                rows_per_tile=rows_per_tile,
                parts=parts,
                fields=fields,
            )
        )

    def _embed(self, result: RowBuffer) -> None:
        table, scale = self.weights.embedding, float(np.float32(self.hparams.embedding_scale))
        form = table.form
        fields: tuple[Field, ...] = (table.data, table.depth, result.floats, result.stride, scale)
        if form is None:
            self._add(embedding.EMBED_FLOATS, ROWS, TOKENS_PER_TILE, 1, *fields, table.kind)
        else:
            layout = (form.bits, int(form.half), form.factors, form.record_bytes)
            self._add(embedding.EMBED_QUANTISED, ROWS, TOKENS_PER_TILE, 1, *fields, *layout)

    def _norm(
        self,
        source: RowBuffer,
        weight: Float32Array,
        result: RowBuffer,
        *,
        extent: int = ROWS,
        addend: RowBuffer | None = None,
    ) -> None:
        """Normalise rows; ``addend``: join them to a residual."""
        self._add(
            norm.NORM,
            extent,
            TOKENS_PER_TILE,
            1,
            source.floats,
            source.stride,
            weight,
            source.size,
            padded(source.size) // 16,
            float(np.float32(self.hparams.norm_eps)),
            None if addend is None else addend.floats,
            result.floats,
            result.stride,
            result.quantised,
            result.scales,
            result.groups,
        )

    def _round(self, rows: RowBuffer) -> None:
        if rows.quantised is not None:
            fields = (rows.floats, rows.stride, rows.quantised, rows.scales, rows.groups)
            self._add(norm.ROUND_ROWS, ROWS, TOKENS_PER_TILE, 1, *fields)

    def _pick(self, rows: RowBuffer) -> None:
        self._add(norm.PICK, LOGIT_ROWS, self.rows, 1, rows.floats, rows.stride, padded(rows.size) // 16)

    def _linear(
        self,
        source: RowBuffer,
        fused: FusedLinear,
        result: RowBuffer | None,
        *,
        extent: int = ROWS,
        residual: RowBuffer | None = None,
    ) -> None:
        """Multiply; ``result`` None: into the step's logits. A residual is read where the result is written."""
        stride = 4 * self.logit_stride if result is None else result.stride
        first_row = 0
        for matrix in fused.matrices:
            place = 0 if result is None else result.floats.ctypes.data + 4 * first_row
            addend: tuple[Field, int, int] = (np.zeros(16, np.float32), 0, 0)
            if residual is not None:
                addend = (residual.floats, residual.stride, 64)
            elif fused.bias is not None:
                addend = (fused.bias[first_row:], 0, 64)
            x, extra = (source.floats, source.stride) if matrix.form is None else (source.quantised, source.scales)
            blocks = matrix.data.shape[0]
            per_part = max(1, math.ceil(blocks / min(MOST_PARTS, self._parts(matrix))))
            self._add(
                matrix.kernel,
                extent,
                linear.TOKENS,
                math.ceil(blocks / per_part),
                matrix.data,
                blocks,
                per_part,
                matrix.depth,
                x,
                extra,
                place,
                stride,
                *addend,
            )
            first_row += matrix.rows

    def _parts(self, matrix: PackedMatrix) -> int:
        """At least TILES_PER_MEMBER for each member; more for a large matrix, so that a part stays below 1/4 MB."""
        return max(TILES_PER_MEMBER * self.members, matrix.data.nbytes >> 18)

    def _attention(self, number: int, layer: PackedLayer, qkv: RowBuffer, result: RowBuffer) -> None:
        hparams = self.hparams
        group = hparams.num_heads // hparams.num_kv_heads
        cap = hparams.attention_softcap
        scale = hparams.query_scale * LOG2_E if cap is None else hparams.query_scale / cap
        chunks = -(-self.block_size // kv.KEYS_PER_CHUNK)
        cosines, sines = self.ropes[hparams.layer_ropes[number]]
        self._add(
            kv.STORE_KV,
            ROWS,
            TOKENS_PER_TILE,
            1,
            qkv.floats,
            qkv.stride,
            hparams.num_heads,
            hparams.num_kv_heads,
            hparams.head_dim,
            cosines,
            sines,
            layer.q_norm,
            layer.k_norm,
            float(np.float32(hparams.norm_eps)),
            float(np.float32(scale)),
            number,
            self.block_size,
            chunks,
            self.kv_element,
        )
        fields = (
            qkv.floats,
            qkv.stride,
            hparams.num_kv_heads,
            group,
            hparams.head_dim,
            hparams.layer_windows[number] or 0,
            float(np.float32(cap or 0.0)),
            number,
            self.block_size,
            chunks,
            self.kv_element,
            result.floats,
            result.stride,
            self.query_rows,
        )
        self._add(attention.ATTEND, QUERY_TILES, 1, hparams.num_kv_heads, *fields)
        self._add(attention.MERGE, SPLIT_ROWS, 1, hparams.num_heads, *fields)

    def _gate(self, source: RowBuffer, result: RowBuffer, *, extent: int) -> None:
        kind = {"silu": activation.SILU, "gelu_tanh": activation.GELU_TANH}[self.hparams.activation]
        self._add(
            activation.GATE_ROWS,
            extent,
            TOKENS_PER_TILE,
            1,
            source.floats,
            source.stride,
            4 * result.size,
            padded(result.size) // 16,
            kind,
            result.floats,
            result.stride,
            result.quantised,
            result.scales,
            result.groups,
        )

    def _join(
        self,
        source: RowBuffer,
        fused: FusedLinear,
        post_norm: Float32Array | None,
        branch: RowBuffer,
        hidden: RowBuffer,
        *,
        extent: int = ROWS,
    ) -> None:
        """Multiply and add to the residual stream: at once if nothing stands between, else by way of ``branch``."""
        if post_norm is None and fused.bias is None:
            self._linear(source, fused, hidden, extent=extent, residual=hidden)
            return
        self._linear(source, fused, branch, extent=extent)
        if post_norm is not None:
            self._norm(branch, post_norm, hidden, extent=extent, addend=hidden)
        else:
            self._add(
                norm.ADD,
                extent,
                TOKENS_PER_TILE,
                1,
                branch.floats,
                branch.stride,
                hidden.floats,
                padded(hidden.size) // 16,
            )

    def _cap(self, cap: float) -> None:
        fields = (float(np.float32(cap)), self.logit_stride // 16, 4 * self.logit_stride)
        self._add(activation.CAP_LOGITS, LOGIT_ROWS, 1, 1, *fields)


def _any_rounds(linears: Sequence[FusedLinear]) -> bool:
    return any(fused.rounds_inputs for fused in linears)


def kernels_of(hparams: HParams, weights: PackedWeights) -> list[Kernel]:
    """The kernels that a model's tape needs."""
    needed = [
        norm.NORM,
        kv.STORE_KV,
        attention.ATTEND,
        attention.MERGE,
        activation.GATE_ROWS,
        norm.ROUND_ROWS,
        norm.PICK,
        norm.ADD,
    ]
    needed.append(embedding.EMBED_FLOATS if weights.embedding.form is None else embedding.EMBED_QUANTISED)
    fused = [weights.lm_head]
    for layer in weights.layers:
        fused += [layer.qkv, layer.out, layer.gate_up, layer.down]
    for linear_ in fused:
        needed += [matrix.kernel for matrix in linear_.matrices]
    if hparams.logit_softcap is not None:
        needed.append(activation.CAP_LOGITS)
    return list(dict.fromkeys(needed))
