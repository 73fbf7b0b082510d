"""A checkpoint's weights, packed for the compiled kernels.

Knows tensor names; how a matrix is packed is `kernels.matrix`, which operations use it `numba_program`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from attrs import frozen
from numpy.typing import NDArray

from tlserve.kernels.buffers import with_slack
from tlserve.kernels.matrix import PackedMatrix, pack_matrices
from tlserve.model.hparams import HParams
from tlserve.model.inventory import EMBEDDING, FINAL_NORM, LM_HEAD, layer_tensor
from tlserve.model.matrix_format import WeightFormat, matrix_groups
from tlserve.model.runner import ReportProgress
from tlserve.weights.tensor import Tensor

Float32Array = NDArray[np.float32]


@frozen(kw_only=True, eq=False, repr=False)
class FusedLinear:
    """Linears of one input, side by side: matrices from top to bottom, and a bias over all their rows."""

    matrices: Sequence[PackedMatrix]
    bias: Float32Array | None

    @property
    def rounds_inputs(self) -> bool:
        """Whether any of the matrices multiplies with rounded rows."""
        return any(matrix.form is not None for matrix in self.matrices)


@frozen(kw_only=True, eq=False, repr=False)
class PackedLayer:
    """One decoder layer; norm weights are padded to whole vectors; norms that the model lacks are None."""

    attention_norm: Float32Array
    qkv: FusedLinear
    q_norm: Float32Array | None
    k_norm: Float32Array | None
    out: FusedLinear
    attention_post_norm: Float32Array | None
    mlp_norm: Float32Array
    gate_up: FusedLinear
    down: FusedLinear
    mlp_post_norm: Float32Array | None


@frozen(kw_only=True, eq=False, repr=False)
class PackedWeights:
    """The whole model; ``lm_head`` is the embedding itself where the two are tied."""

    embedding: PackedMatrix
    layers: tuple[PackedLayer, ...]
    final_norm: Float32Array
    lm_head: FusedLinear


def pack_weights(
    tensors: Mapping[str, Tensor], hparams: HParams, weights: WeightFormat, *, report: ReportProgress
) -> PackedWeights:
    """Pack all weights; ``report`` hears the share after each layer and may raise to stop.

    Raises:
        UnsupportedModelError, CheckpointError: see `matrix_format.matrix_groups`.

    """
    return _Packer(tensors, hparams, weights).pack(report)


@frozen
class _Packer:
    """Takes tensors out of a checkpoint and packs them."""

    tensors: Mapping[str, Tensor]
    hparams: HParams
    weights: WeightFormat

    def pack(self, report: ReportProgress) -> PackedWeights:
        tied = self.hparams.tied_embeddings
        # A separate embedding is only looked up and never rounded.
        report(0.0)
        embedding = self.matrices([EMBEDDING], self.weights if tied else "auto")
        lm_head = embedding if tied else self.matrices([LM_HEAD], self.weights)
        layers = []
        for number in range(self.hparams.num_layers):
            report((number + 1) / (self.hparams.num_layers + 1))
            layers.append(self.layer(number))
        return PackedWeights(
            embedding=embedding[0],
            layers=tuple(layers),
            final_norm=self.norm(FINAL_NORM),
            lm_head=FusedLinear(matrices=lm_head, bias=None),
        )

    def layer(self, number: int) -> PackedLayer:
        hparams, sandwich = self.hparams, self.hparams.sandwich_norms

        def norm(name: str) -> Float32Array:
            return self.norm(layer_tensor(number, f"{name}.weight"))

        def linear(*names: str, bias: bool) -> FusedLinear:
            return self.linear([layer_tensor(number, name) for name in names], bias=bias)

        return PackedLayer(
            attention_norm=norm("input_layernorm"),
            qkv=linear("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", bias=hparams.qkv_bias),
            q_norm=norm("self_attn.q_norm") if hparams.qk_norm else None,
            k_norm=norm("self_attn.k_norm") if hparams.qk_norm else None,
            out=linear("self_attn.o_proj", bias=hparams.out_bias),
            attention_post_norm=norm("post_attention_layernorm") if sandwich else None,
            mlp_norm=norm("pre_feedforward_layernorm" if sandwich else "post_attention_layernorm"),
            gate_up=linear("mlp.gate_proj", "mlp.up_proj", bias=hparams.mlp_bias),
            down=linear("mlp.down_proj", bias=hparams.mlp_bias),
            mlp_post_norm=norm("post_feedforward_layernorm") if sandwich else None,
        )

    def matrices(self, names: Sequence[str], weights: WeightFormat) -> list[PackedMatrix]:
        tensors = [self.tensors[name] for name in names]
        return pack_matrices([matrix_groups(tensor, weights) or tensor for tensor in tensors], widen=weights == "f32")

    def norm(self, name: str) -> Float32Array:
        """A norm's weight as it is multiplied with, in whole vectors."""
        return with_slack(self.tensors[name].dequantize() + np.float32(self.hparams.norm_offset))

    def linear(self, names: Sequence[str], *, bias: bool) -> FusedLinear:
        matrices = self.matrices([f"{name}.weight" for name in names], self.weights)
        biases = [self.tensors[f"{name}.bias"].dequantize() for name in names] if bias else []
        return FusedLinear(matrices=matrices, bias=with_slack(np.concatenate(biases)) if biases else None)
