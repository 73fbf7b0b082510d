"""The numpy runner: a decoder model computed the plain way, in float32.

It is the reference that faster runners are compared with, and the one that runs anywhere. Rows of all sequences go
through the linears together; attention is computed sequence by sequence. Arithmetic is `kernels.reference`, weights
are `dense_weights`; results of one row may differ in the last bits with the company it keeps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
from attrs import field, frozen
from numpy.typing import NDArray

from tlserve.kernels import reference
from tlserve.model.batch import ForwardBatch, check_text
from tlserve.model.dense_weights import DenseLayer, DenseLinear, DenseWeights
from tlserve.model.hparams import HParams
from tlserve.model.kv_store import KVStore, kv_bytes_per_block, slots_of
from tlserve.model.runner import Capacity

Float32Array = NDArray[np.float32]
Attend = Callable[[int, Float32Array, Float32Array, Float32Array], Float32Array]
"""Layer number, query [T, H, D], key and value [T, K, D] -> [T, H, D]."""

ACTIVATIONS = {"silu": reference.silu, "gelu_tanh": reference.gelu_tanh}


@frozen(eq=False, repr=False)
class DenseRunner:
    """A ModelRunner over `DenseWeights`; see the protocol for what the methods promise."""

    hparams: HParams
    weights: DenseWeights
    capacity: Capacity
    description: str
    _store: KVStore = field(init=False)
    _rope_tables: tuple[tuple[Float32Array, Float32Array], ...] = field(init=False)

    @_store.default
    def _allocate_store(self) -> KVStore:
        return KVStore.allocate(self.hparams, num_blocks=self.num_blocks, block_size=self.block_size)

    @_rope_tables.default
    def _make_rope_tables(self) -> tuple[tuple[Float32Array, Float32Array], ...]:
        return tuple(rope.tables(self.hparams.head_dim, self.max_model_len) for rope in self.hparams.ropes)

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
        return kv_bytes_per_block(self.hparams, self.block_size)

    def run_pieces(self, tokens: Sequence[int]) -> Iterator[Float32Array]:
        """All of it in one piece."""
        yield self.run_once(tokens)

    def close(self) -> None:
        """Nothing runs beside it."""

    def forward(self, batch: ForwardBatch) -> Float32Array:
        """Store KV of every row, attend within each sequence, return logits [R, vocab_size]."""
        slots = slots_of(batch, self.block_size)

        def attend(layer: int, query: Float32Array, key: Float32Array, value: Float32Array) -> Float32Array:
            self._store.write(layer, slots, key, value)
            return self._attend_paged(layer, query, batch)

        hidden = self._decode(batch.tokens, batch.positions, attend)
        logits = self._normed(hidden[batch.logit_rows]) @ self.weights.lm_head.T
        return reference.softcap(logits, self.hparams.logit_softcap)

    def run_once(self, tokens: Sequence[int]) -> Float32Array:
        """Final-normed hidden states [T, hidden_size]; keys and values live only during the call."""
        ids = check_text(tokens, vocab_size=self.vocab_size, max_model_len=self.max_model_len)

        def attend(layer: int, query: Float32Array, key: Float32Array, value: Float32Array) -> Float32Array:
            return reference.attention(
                query,
                key,
                value,
                scale=self.hparams.query_scale,
                window=self.hparams.layer_windows[layer],
                cap=self.hparams.attention_softcap,
            )

        return self._normed(self._decode(ids, np.arange(len(ids), dtype=np.int32), attend))

    def _decode(self, tokens: NDArray[np.int32], positions: NDArray[np.int32], attend: Attend) -> Float32Array:
        """All decoder layers: tokens and positions [T] -> residual stream [T, hidden], not yet normalised."""
        hparams = self.hparams
        turns = [(cos[positions], sin[positions]) for cos, sin in self._rope_tables]
        x = self.weights.embedding[tokens] * np.float32(hparams.embedding_scale)
        for number, layer in enumerate(self.weights.layers):
            normed = reference.rms_norm(x, layer.attention_norm, hparams.norm_eps)
            query, key, value = self._project(layer, normed, turns[hparams.layer_ropes[number]])
            mixed = attend(number, query, key, value).reshape(len(x), -1)
            x += self._branch(_linear(mixed, layer.out), layer.attention_post_norm)
            normed = reference.rms_norm(x, layer.mlp_norm, hparams.norm_eps)
            x += self._branch(self._mlp(layer, normed), layer.mlp_post_norm)
        return x

    def _project(
        self, layer: DenseLayer, x: Float32Array, turn: tuple[Float32Array, Float32Array]
    ) -> tuple[Float32Array, Float32Array, Float32Array]:
        """Rows x [T, hidden] -> query [T, H, D], key and value [T, K, D]; query and key are turned."""
        hparams = self.hparams
        heads = _linear(x, layer.qkv).reshape(len(x), -1, hparams.head_dim)
        query, key, value = np.split(heads, [hparams.num_heads, hparams.num_heads + hparams.num_kv_heads], axis=1)
        if layer.q_norm is not None and layer.k_norm is not None:
            query = reference.rms_norm(query, layer.q_norm, hparams.norm_eps)
            key = reference.rms_norm(key, layer.k_norm, hparams.norm_eps)
        return reference.rotate(query, *turn), reference.rotate(key, *turn), value

    def _attend_paged(self, layer: int, query: Float32Array, batch: ForwardBatch) -> Float32Array:
        """Each sequence's rows over its own blocks: query [T, H, D] -> [T, H, D]."""
        keys, values = self._store.keys[layer], self._store.values[layer]
        out = np.empty_like(query)
        bounds = batch.query_start.tolist()
        for number, context_len in enumerate(batch.context_len.tolist()):
            rows = slice(bounds[number], bounds[number + 1])
            out[rows] = reference.paged_attention(
                query[rows],
                keys,
                values,
                batch.block_tables[number],
                context_len,
                scale=self.hparams.query_scale,
                window=self.hparams.layer_windows[layer],
                cap=self.hparams.attention_softcap,
            )
        return out

    def _mlp(self, layer: DenseLayer, x: Float32Array) -> Float32Array:
        gate, up = np.split(_linear(x, layer.gate_up), 2, axis=-1)
        return _linear(ACTIVATIONS[self.hparams.activation](gate) * up, layer.down)

    def _branch(self, x: Float32Array, post_norm: Float32Array | None) -> Float32Array:
        """What a branch adds to the residual stream."""
        return x if post_norm is None else reference.rms_norm(x, post_norm, self.hparams.norm_eps)

    def _normed(self, x: Float32Array) -> Float32Array:
        return reference.rms_norm(x, self.weights.final_norm, self.hparams.norm_eps)


def _linear(x: Float32Array, layer: DenseLinear) -> Float32Array:
    return reference.linear(x, layer.weight, layer.bias)
