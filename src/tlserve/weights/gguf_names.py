"""GGUF's tensor names and row orders in Hugging Face's terms.

Source of names and of the row permutation: llama.cpp's conversion from Hugging Face (``tensor_mapping`` of the gguf
package, ``permute`` for llama). An unknown name is refused: a weight left out in silence would change the answer.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

import numpy as np
import numpy.typing as npt
from attrs import evolve

from tlserve.errors import CheckpointError, UnsupportedModelError
from tlserve.weights.fields import Fields
from tlserve.weights.gguf import GgufFile
from tlserve.weights.tensor import Tensor

TOP_NAMES: Final[Mapping[str, str]] = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
    "rope_freqs.weight": "rope_freqs",
}

LAYER_PARTS: Final[Mapping[str, str]] = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "ffn_norm": "post_attention_layernorm",
}

GEMMA_PARTS: Final[Mapping[str, str]] = {
    **LAYER_PARTS,
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}

LAYER_NAME: Final = re.compile(r"blk\.(0|[1-9][0-9]{0,4})\.([a-z_]+)\.(weight|bias)")


def hugging_face_tensors(file: GgufFile, config: Mapping[str, object]) -> dict[str, Tensor]:
    """The file's tensors under their Hugging Face names and in their conventions (see `Checkpoint`).

    Raises:
        UnsupportedModelError: a tensor that the served architectures do not have.
    """
    settings = Fields(str(file.path), config)
    architecture = settings.required("model_type", str)
    normalise = {"llama": _normalise_llama, "gemma3": _normalise_gemma}.get(architecture, _keep)
    renamed = [evolve(t, name=_hugging_face_name(file, t.name, architecture)) for t in file.tensors.values()]
    return {tensor.name: normalise(tensor, settings) for tensor in renamed}


def _keep(tensor: Tensor, _config: Fields) -> Tensor:
    return tensor


def _normalise_gemma(tensor: Tensor, _config: Fields) -> Tensor:
    """The converter wrote 1 + w for norms; exact to take back wherever 1 + w is at least a half."""
    if not tensor.name.endswith("norm.weight"):
        return tensor
    return Tensor.from_array(tensor.name, tensor.dequantize() - np.float32(1))


def _normalise_llama(tensor: Tensor, config: Fields) -> Tensor:
    """Queries and keys (weights and biases) are written for interleaved rope."""
    for part, key in (("q_proj", "num_attention_heads"), ("k_proj", "num_key_value_heads")):
        if f".{part}." in tensor.name:
            num_rows, num_heads = tensor.shape[0], config.required(key, int)
            if num_rows % (2 * num_heads):
                problem = f"tensor {tensor.name!r} has {num_rows} rows, which {key} = {num_heads} cannot share evenly"
                raise CheckpointError(f"{config.origin}: {problem}")
            order = half_split_rows(num_rows, num_heads)
            if len(tensor.shape) == 1:
                return Tensor.from_array(tensor.name, tensor.dequantize()[order])
            return evolve(tensor, row_order=order)
    return tensor


def half_split_rows(num_rows: int, num_heads: int) -> npt.NDArray[np.int64]:
    """Which stored row is row i once each head's interleaved pairs are laid out as two halves.

    Stored, a head's rows are pair 0 first, pair 0 second, pair 1 first, ...; wanted are all firsts, then all seconds.
    """
    rows = np.arange(num_rows).reshape(num_heads, -1, 2)  # (head, pair, half)
    return rows.swapaxes(1, 2).reshape(-1)


def _hugging_face_name(file: GgufFile, name: str, architecture: str) -> str:
    if name in TOP_NAMES:
        return TOP_NAMES[name]
    parts = GEMMA_PARTS if architecture == "gemma3" else LAYER_PARTS
    match = LAYER_NAME.fullmatch(name)
    if match is None or match[2] not in parts:
        raise UnsupportedModelError(f"{file.path}: tensor {name!r} does not belong to a {architecture} model as served")
    return f"model.layers.{match[1]}.{parts[match[2]]}.{match[3]}"
