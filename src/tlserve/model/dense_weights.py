"""A model's weights as float32 matrices, for the numpy runner.

Takes tensors from a checkpoint by their Hugging Face names, widens them to float32 and joins those that one input
feeds (q, k and v; gate and up). Names and shapes were checked by `inventory` before.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from attrs import frozen
from numpy.typing import NDArray

from tlserve.model.hparams import HParams
from tlserve.model.inventory import EMBEDDING, FINAL_NORM, LM_HEAD, layer_tensor
from tlserve.model.runner import ReportProgress
from tlserve.weights.tensor import Tensor

Float32Array = NDArray[np.float32]
ReadMatrix = Callable[[Tensor], Float32Array]
"""How a linear's weight becomes float32: as the file says, or rounded to fewer bits first."""


@frozen(kw_only=True, eq=False, repr=False)
class DenseLinear:
    """weight [outputs, inputs] and bias [outputs], or None."""

    weight: Float32Array
    bias: Float32Array | None


@frozen(kw_only=True, eq=False, repr=False)
class DenseLayer:
    """One decoder layer. Norm weights are ready to multiply with; norms that the model lacks are None."""

    attention_norm: Float32Array  # (hidden,)
    qkv: DenseLinear  # (query_size + 2 * kv_size, hidden)
    q_norm: Float32Array | None  # (head_dim,)
    k_norm: Float32Array | None  # (head_dim,)
    out: DenseLinear  # (hidden, query_size)
    attention_post_norm: Float32Array | None  # (hidden,)
    mlp_norm: Float32Array  # (hidden,)
    gate_up: DenseLinear  # (2 * intermediate, hidden)
    down: DenseLinear  # (hidden, intermediate)
    mlp_post_norm: Float32Array | None  # (hidden,)


@frozen(kw_only=True, eq=False, repr=False)
class DenseWeights:
    """The whole model; ``lm_head`` is the embedding itself where the two are tied."""

    embedding: Float32Array  # (vocab, hidden)
    layers: tuple[DenseLayer, ...]
    final_norm: Float32Array  # (hidden,)
    lm_head: Float32Array  # (vocab, hidden)


def load_dense_weights(
    tensors: Mapping[str, Tensor], hparams: HParams, *, read_matrix: ReadMatrix, report: ReportProgress
) -> DenseWeights:
    """Widen all weights; ``report`` hears the loaded share after each layer and may raise to stop.

    An embedding that is the output matrix too goes through ``read_matrix``, so that both stay one matrix; a separate
    one is only looked up and is never rounded.
    """
    report(0.0)
    tied = hparams.tied_embeddings
    embedding = read_matrix(tensors[EMBEDDING]) if tied else tensors[EMBEDDING].dequantize()
    lm_head = embedding if tied else read_matrix(tensors[LM_HEAD])
    layers: list[DenseLayer] = []
    for number in range(hparams.num_layers):
        report((number + 1) / (hparams.num_layers + 1))
        layers.append(_LayerReader(tensors, hparams, number, read_matrix).layer())
    report(1.0)
    return DenseWeights(
        embedding=embedding,
        layers=tuple(layers),
        final_norm=tensors[FINAL_NORM].dequantize() + np.float32(hparams.norm_offset),
        lm_head=lm_head,
    )


@frozen
class _LayerReader:
    """Takes the tensors of one layer out of the checkpoint."""

    tensors: Mapping[str, Tensor]
    hparams: HParams
    number: int
    read_matrix: ReadMatrix

    def layer(self) -> DenseLayer:
        sandwich = self.hparams.sandwich_norms
        qk_norm = self.hparams.qk_norm
        return DenseLayer(
            attention_norm=self.norm("input_layernorm"),
            qkv=self.linear("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", bias=self.hparams.qkv_bias),
            q_norm=self.norm("self_attn.q_norm") if qk_norm else None,
            k_norm=self.norm("self_attn.k_norm") if qk_norm else None,
            out=self.linear("self_attn.o_proj", bias=self.hparams.out_bias),
            attention_post_norm=self.norm("post_attention_layernorm") if sandwich else None,
            mlp_norm=self.norm("pre_feedforward_layernorm" if sandwich else "post_attention_layernorm"),
            gate_up=self.linear("mlp.gate_proj", "mlp.up_proj", bias=self.hparams.mlp_bias),
            down=self.linear("mlp.down_proj", bias=self.hparams.mlp_bias),
            mlp_post_norm=self.norm("post_feedforward_layernorm") if sandwich else None,
        )

    def norm(self, name: str) -> Float32Array:
        return self.tensor(f"{name}.weight").dequantize() + np.float32(self.hparams.norm_offset)

    def linear(self, *names: str, bias: bool) -> DenseLinear:
        """The linears of one input as one: their outputs stand side by side."""
        weights = [self.read_matrix(self.tensor(f"{name}.weight")) for name in names]
        biases = [self.tensor(f"{name}.bias").dequantize() for name in names] if bias else []
        return DenseLinear(
            weight=np.concatenate(weights) if len(weights) > 1 else weights[0],
            bias=np.concatenate(biases) if biases else None,
        )

    def tensor(self, name: str) -> Tensor:
        return self.tensors[layer_tensor(self.number, name)]
