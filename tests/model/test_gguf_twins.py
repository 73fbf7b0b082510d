"""A GGUF file and a Hugging Face folder of one model give one answer.

The test writes the tiny folders as GGUF by the rules of llama.cpp's converter: its names, query and key rows permuted
for llama, 1 + w in gemma's norms, Llama 3's rope scaling as a tensor of divisors.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGUFWriter
from numpy.typing import NDArray

from tlserve.model.batch import SequenceRows
from tlserve.model.runner import ModelRunner
from tlserve.weights.checkpoint import open_checkpoint
from tlserve.weights.contents import Checkpoint

Floats = NDArray[np.float32]

TOP = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
PARTS = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
GEMMA_PARTS = PARTS | {
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}


def gguf_name(name: str, architecture: str) -> str:
    stem, kind = name.rsplit(".", 1)
    if stem in TOP:
        return f"{TOP[stem]}.{kind}"
    _, _, layer, part = stem.split(".", 3)
    return f"blk.{layer}.{(GEMMA_PARTS if architecture == 'gemma3' else PARTS)[part]}.{kind}"


def gguf_values(name: str, values: Floats, checkpoint: Checkpoint) -> Floats:
    if checkpoint.architecture == "gemma3" and name.endswith("norm.weight"):
        return values + 1
    if checkpoint.architecture == "llama":
        for part, key in (("q_proj", "num_attention_heads"), ("k_proj", "num_key_value_heads")):
            if part in name:
                return interleave(values, int(str(checkpoint.config[key])))
    return values


def interleave(rows: Floats, num_heads: int) -> Floats:
    """Row i and row i + D / 2 of a head become neighbours."""
    halves = rows.reshape(num_heads, 2, -1, rows.shape[-1])  # (head, half, pair, inputs)
    return halves.swapaxes(1, 2).reshape(rows.shape)


def llama3_divisors(rope: Mapping[str, Any], head_dim: int) -> Floats:
    """What the converter writes as rope_freqs, by wavelengths."""
    divisors = []
    for i in range(0, head_dim, 2):
        wavelength = 2 * math.pi * rope["rope_theta"] ** (i / head_dim)
        context = rope["original_max_position_embeddings"]
        low, high = context / rope["low_freq_factor"], context / rope["high_freq_factor"]
        smooth = (context / wavelength - rope["low_freq_factor"]) / (rope["high_freq_factor"] - rope["low_freq_factor"])
        blend = 1 / ((1 - smooth) / rope["factor"] + smooth)
        divisors.append(1.0 if wavelength < high else rope["factor"] if wavelength > low else blend)
    return np.array(divisors, dtype=np.float32)


def write_gguf(path: Path, checkpoint: Checkpoint) -> None:
    writer = GGUFWriter(path, checkpoint.architecture)
    add_hyper_parameters(writer, checkpoint)
    add_vocabulary(writer)
    for tensor in checkpoint.tensors.values():
        values = gguf_values(tensor.name, tensor.dequantize(), checkpoint)
        writer.add_tensor(gguf_name(tensor.name, checkpoint.architecture), np.ascontiguousarray(values))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def add_hyper_parameters(writer: GGUFWriter, checkpoint: Checkpoint) -> None:
    config: dict[str, Any] = dict(checkpoint.config)
    head_dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    rope = config["rope_parameters"]
    if checkpoint.architecture == "gemma3":
        writer.add_sliding_window(config["sliding_window"])
        rope = rope["full_attention"]
    writer.add_rope_freq_base(rope["rope_theta"])
    if rope["rope_type"] == "llama3":
        writer.add_tensor("rope_freqs.weight", llama3_divisors(rope, head_dim))


def add_vocabulary(writer: GGUFWriter) -> None:
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list([f"t{token}" for token in range(256)])
    writer.add_token_types([1] * 256)
    writer.add_token_merges(["t 1"])


@pytest.mark.parametrize("name", ["llama", "llama3", "qwen2", "qwen3", "gemma3"])
def test_both_forms_of_a_model_agree(
    name: str,
    tmp_path: Path,
    open_tiny: Callable[[str], Checkpoint],
    make_runner: Callable[..., ModelRunner],
    forward: Callable[[ModelRunner, Sequence[SequenceRows]], Floats],
) -> None:
    """Every logit of forty tokens, up to the rounding of the detours that the converter takes."""
    checkpoint = open_tiny(name)
    write_gguf(tmp_path / "twin.gguf", checkpoint)
    rows = [SequenceRows(list(range(100, 140)), 0, [2, 0, 1], 40)]
    expected = forward(make_runner(checkpoint), rows)
    found = forward(make_runner(open_checkpoint(tmp_path / "twin.gguf")), rows)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)
