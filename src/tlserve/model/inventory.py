"""The tensors that a model must have, by name and shape.

Knows names and shapes, never values. A checkpoint passes only when it holds exactly what the hyper-parameters ask for:
a missing tensor, one of another shape, and one that nobody would read are errors alike.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from tlserve.errors import CheckpointError
from tlserve.model.hparams import HParams

Shape = tuple[int, ...]

EMBEDDING = "model.embed_tokens.weight"
FINAL_NORM = "model.norm.weight"
LM_HEAD = "lm_head.weight"


def expected_shapes(hparams: HParams) -> dict[str, Shape]:
    """Every tensor of the model, Hugging Face name to shape (outputs first)."""
    hidden = hparams.hidden_size
    shapes: dict[str, Shape] = {EMBEDDING: (hparams.vocab_size, hidden), FINAL_NORM: (hidden,)}
    if not hparams.tied_embeddings:
        shapes[LM_HEAD] = (hparams.vocab_size, hidden)
    for layer in range(hparams.num_layers):
        shapes.update((layer_tensor(layer, name), shape) for name, shape in _layer_shapes(hparams))
    return shapes


def layer_tensor(layer: int, name: str) -> str:
    """The full name of a tensor of one layer, such as ``mlp.up_proj.weight``."""
    return f"model.layers.{layer}.{name}"


def check_tensors(hparams: HParams, found: Mapping[str, Shape]) -> None:
    """Compare the tensors of a checkpoint with what the model needs.

    Raises:
        CheckpointError: a tensor is missing, misshapen or unknown; the message names it, and both shapes.

    """
    expected = expected_shapes(hparams)
    for name, shape in expected.items():
        if name not in found:
            raise CheckpointError(f"tensor {name} is missing; a {hparams.architecture} model needs it, shape {shape}")
        if found[name] != shape:
            raise CheckpointError(f"tensor {name} has shape {found[name]}, but the config asks for {shape}")
    for name in found:
        if name not in expected:
            raise CheckpointError(f"tensor {name}, shape {found[name]}, is not part of a {hparams.architecture} model")


def _layer_shapes(hparams: HParams) -> Iterator[tuple[str, Shape]]:
    yield from _norm_shapes(hparams)
    hidden, inner = hparams.hidden_size, hparams.intermediate_size
    queries, kv = hparams.query_size, hparams.kv_size
    for name, outputs, inputs, has_bias in (
        ("self_attn.q_proj", queries, hidden, hparams.qkv_bias),
        ("self_attn.k_proj", kv, hidden, hparams.qkv_bias),
        ("self_attn.v_proj", kv, hidden, hparams.qkv_bias),
        ("self_attn.o_proj", hidden, queries, hparams.out_bias),
        ("mlp.gate_proj", inner, hidden, hparams.mlp_bias),
        ("mlp.up_proj", inner, hidden, hparams.mlp_bias),
        ("mlp.down_proj", hidden, inner, hparams.mlp_bias),
    ):
        yield f"{name}.weight", (outputs, inputs)
        if has_bias:
            yield f"{name}.bias", (outputs,)


def _norm_shapes(hparams: HParams) -> Iterator[tuple[str, Shape]]:
    hidden = (hparams.hidden_size,)
    yield "input_layernorm.weight", hidden
    yield "post_attention_layernorm.weight", hidden
    if hparams.sandwich_norms:
        yield "pre_feedforward_layernorm.weight", hidden
        yield "post_feedforward_layernorm.weight", hidden
    if hparams.qk_norm:
        yield "self_attn.q_norm.weight", (hparams.head_dim,)
        yield "self_attn.k_norm.weight", (hparams.head_dim,)
