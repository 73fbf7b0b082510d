"""GGUF's hyper-parameters as a Hugging Face config.

Source of keys and of what an absent one means: llama.cpp's loader and converter. Values are translated, not judged; the
model room reads them strictly. What cannot be said in Hugging Face's vocabulary is refused here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np

from tlserve.errors import CheckpointError, UnsupportedModelError
from tlserve.weights.fields import Fields
from tlserve.weights.tensor import Tensor

ARCHITECTURES: Final = ("llama", "qwen2", "qwen3", "gemma3")
"""Mistral's files say llama too."""

GEMMA3_PATTERN: Final = 6  # five sliding layers, then a full one
GEMMA3_27B_LAYERS: Final = 62


def hugging_face_config(metadata: Fields, tensors: Mapping[str, Tensor]) -> dict[str, object]:
    """The config.json that these metadata amount to; ``tensors`` are under GGUF's names.

    Raises:
        CheckpointError: a key is missing or has a wrong type.
        UnsupportedModelError: an architecture or a feature that is not served.
    """
    arch = metadata.required("general.architecture", str)
    if arch not in ARCHITECTURES:
        problem = f"architecture {arch!r} is not served; GGUF files may hold {', '.join(ARCHITECTURES)}"
        raise UnsupportedModelError(f"{metadata.origin}: {problem}")
    _refuse_variants(metadata, arch)
    config = _sizes(metadata, arch, max_layers=len(tensors)) | {
        "model_type": arch,
        "vocab_size": _vocab_size(metadata, tensors),
        "tie_word_embeddings": "output.weight" not in tensors,
        "hidden_act": "silu",
        "attention_bias": "blk.0.attn_q.bias" in tensors,
        "mlp_bias": "blk.0.ffn_gate.bias" in tensors,
        "rope_scaling": _rope_scaling(metadata, arch),
        "bos_token_id": metadata.token_id("tokenizer.ggml.bos_token_id"),
        "eos_token_id": metadata.token_id("tokenizer.ggml.eos_token_id"),
    }
    return config | _gemma3(metadata) if arch == "gemma3" else config


def _sizes(metadata: Fields, arch: str, *, max_layers: int) -> dict[str, object]:
    hidden_size = _positive(metadata, f"{arch}.embedding_length")
    num_heads = _positive(metadata, f"{arch}.attention.head_count")
    num_layers = _positive(metadata, f"{arch}.block_count")
    if num_layers > max_layers:  # each layer has tensors of its own
        metadata.fail(f"{arch}.block_count", f"at most the number of tensors, {max_layers}")
    return {
        "hidden_size": hidden_size,
        "num_hidden_layers": num_layers,
        "num_attention_heads": num_heads,
        "num_key_value_heads": _positive(metadata, f"{arch}.attention.head_count_kv", num_heads),
        "head_dim": _head_dim(metadata, arch),
        "intermediate_size": _positive(metadata, f"{arch}.feed_forward_length"),
        "max_position_embeddings": _positive(metadata, f"{arch}.context_length"),
        "rms_norm_eps": metadata.required(f"{arch}.attention.layer_norm_rms_epsilon", float),
        "rope_theta": metadata.get(f"{arch}.rope.freq_base", 10_000.0),
    }


def _head_dim(metadata: Fields, arch: str) -> int:
    """Elements of one head; its own key only where heads do not simply share hidden_size."""
    hidden_size = _positive(metadata, f"{arch}.embedding_length")
    num_heads = _positive(metadata, f"{arch}.attention.head_count")
    return _positive(metadata, f"{arch}.attention.key_length", hidden_size // num_heads)


def _positive(metadata: Fields, key: str, default: int | None = None) -> int:
    value = metadata.required(key, int) if default is None else metadata.get(key, default)
    if value < 1:
        metadata.fail(key, "at least 1")
    return value


def _vocab_size(metadata: Fields, tensors: Mapping[str, Tensor]) -> int:
    """The embedding's rows: files made by old converters have no vocab_size key, or one that counts padding."""
    embedding = tensors.get("token_embd.weight")
    if embedding is None:
        raise CheckpointError(f"{metadata.origin}: tensor 'token_embd.weight' is missing")
    return embedding.shape[0]


def _refuse_variants(metadata: Fields, arch: str) -> None:
    """Features that share an architecture's name but compute something else."""
    if metadata.get("split.count", 1) > 1:
        problem = "one part of a split model; join the parts with llama-gguf-split --merge"
        raise UnsupportedModelError(f"{metadata.origin}: {problem}")
    if metadata.get(f"{arch}.expert_count", 0) > 0:
        raise UnsupportedModelError(f"{metadata.origin}: a mixture of experts; only dense models are served")
    head_dim = _head_dim(metadata, arch)
    for key in ("attention.value_length", "rope.dimension_count"):
        length = metadata.get(f"{arch}.{key}", head_dim)
        if length != head_dim:
            problem = f"{arch}.{key} is {length} but heads have {head_dim}; only equal sizes are served"
            raise UnsupportedModelError(f"{metadata.origin}: {problem}")


def _rope_scaling(metadata: Fields, arch: str) -> dict[str, object] | None:
    """Llama 3's own kind never comes this way: its factors are a tensor, ``rope_freqs``."""
    prefix = f"{arch}.rope.scaling"
    old_factor = metadata.optional(f"{arch}.rope.scale_linear", float)
    kind = metadata.get(f"{prefix}.type", "none" if old_factor is None else "linear")
    if kind == "none":
        return None
    factor = metadata.get(f"{prefix}.factor", 1.0 if old_factor is None else old_factor)
    scaling: dict[str, object] = {"rope_type": kind, "factor": factor}
    original = metadata.optional(f"{prefix}.original_context_length", int)
    return scaling if original is None else scaling | {"original_max_position_embeddings": original}


def _gemma3(metadata: Fields) -> dict[str, object]:
    return {
        "hidden_activation": "gelu_pytorch_tanh",
        "sliding_window": metadata.optional("gemma3.attention.sliding_window", int),
        "layer_types": _layer_types(metadata),
        "rope_local_base_freq": metadata.get("gemma3.rope.freq_base_swa", 10_000.0),
        "query_pre_attn_scalar": _query_pre_attn_scalar(metadata),
        "final_logit_softcapping": metadata.optional("gemma3.final_logit_softcapping", float),
        "attn_logit_softcapping": metadata.optional("gemma3.attn_logit_softcapping", float),
    }


def _layer_types(metadata: Fields) -> list[str]:
    """Which layers slide; files older than the key mean every layer but each sixth."""
    num_layers = _positive(metadata, "gemma3.block_count")
    key = "gemma3.attention.sliding_window_pattern"
    listed = metadata.values.get(key)
    if isinstance(listed, np.ndarray):
        slides = [bool(value) for value in listed[:num_layers]]
    else:
        period = metadata.get(key, GEMMA3_PATTERN)
        slides = [period == 0 or (layer + 1) % period != 0 for layer in range(num_layers)]
    return ["sliding_attention" if slide else "full_attention" for slide in slides]


def _query_pre_attn_scalar(metadata: Fields) -> int:
    """Queries are divided by the root of this: head_dim, but for the 27B size hidden_size / heads."""
    hidden_size = _positive(metadata, "gemma3.embedding_length")
    per_head = hidden_size // _positive(metadata, "gemma3.attention.head_count")
    if metadata.get("gemma3.block_count", 0) == GEMMA3_27B_LAYERS:
        return per_head
    return metadata.get("gemma3.attention.key_length", per_head)
