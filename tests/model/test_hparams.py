"""Reading hyper-parameters strictly: right values per architecture, every contradiction named."""

from __future__ import annotations

import math
from typing import Any

import pytest

from tlserve.errors import CheckpointError, UnsupportedModelError
from tlserve.model.hparams import HParams, read_hparams

LLAMA: dict[str, Any] = {
    "vocab_size": 1000,
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
}


def read(architecture: str, **changes: object) -> HParams:
    return read_hparams(architecture, LLAMA | changes)


def test_llama_defaults() -> None:
    """Only sizes are needed; head_dim is the heads' share, nothing is tied, biased, capped or windowed."""
    hparams = read("llama")
    assert (hparams.head_dim, hparams.query_size, hparams.kv_size) == (8, 64, 16)
    assert hparams.query_scale == pytest.approx(8**-0.5)
    assert hparams.activation == "silu"
    assert not any((hparams.tied_embeddings, hparams.qkv_bias, hparams.out_bias, hparams.mlp_bias, hparams.qk_norm))
    assert (hparams.attention_softcap, hparams.logit_softcap) == (None, None)
    assert hparams.layer_windows == (None,) * 4
    assert hparams.layer_ropes == (0,) * 4
    assert hparams.ropes[0].theta == 10_000.0


def test_key_value_heads_default_to_all_heads() -> None:
    """A config from before grouped attention has one key head per query head."""
    assert read("llama", num_key_value_heads=None).num_kv_heads == 8


def test_head_dim_may_differ_from_the_heads_share() -> None:
    """Where head_dim is given, hidden_size need not be a multiple of the heads."""
    hparams = read("qwen3", head_dim=32, hidden_size=60)
    assert (hparams.query_size, hparams.kv_size) == (256, 64)


def test_biases_follow_the_architecture() -> None:
    """Llama's flags cover all four projections and the MLP; Qwen 2 always biases q, k and v only."""
    llama = read("llama", attention_bias=True, mlp_bias=True)
    assert (llama.qkv_bias, llama.out_bias, llama.mlp_bias) == (True, True, True)
    qwen2 = read("qwen2", attention_bias=True)
    assert (qwen2.qkv_bias, qwen2.out_bias, qwen2.mlp_bias) == (True, False, False)


def test_mistral_slides_in_every_layer_when_it_has_a_window() -> None:
    """Version 0.1 has a window, later ones say null."""
    assert read("mistral", sliding_window=16).layer_windows == (16,) * 4
    assert read("mistral", sliding_window=None).layer_windows == (None,) * 4


def test_llama_never_slides() -> None:
    """The key means nothing to this architecture."""
    assert read("llama", sliding_window=16).layer_windows == (None,) * 4


@pytest.mark.parametrize("architecture", ["qwen2", "qwen3"])
def test_qwen_slides_from_max_window_layers_up(architecture: str) -> None:
    """And only when use_sliding_window says so."""
    window = {"sliding_window": 16, "max_window_layers": 3}
    assert read(architecture, **window, use_sliding_window=False).layer_windows == (None,) * 4
    assert read(architecture, **window, use_sliding_window=True).layer_windows == (None, None, None, 16)


def test_layer_types_win() -> None:
    """A config that lists its layers is taken at its word."""
    types = ["sliding_attention", "full_attention"] * 2
    assert read("qwen2", sliding_window=16, layer_types=types).layer_windows == (16, None, 16, None)


def test_gemma3_scales_and_two_ropes() -> None:
    """Embeddings times sqrt(hidden), norms of 1 + w, queries by their own scalar, local layers turn faster."""
    hparams = read(
        "gemma3",
        num_hidden_layers=7,
        head_dim=16,
        query_pre_attn_scalar=4,
        sliding_window=8,
        rope_theta=1e6,
        rope_local_base_freq=10_000,
        rope_scaling={"rope_type": "linear", "factor": 8.0},
        final_logit_softcapping=30.0,
    )
    assert hparams.layer_windows == (8, 8, 8, 8, 8, None, 8)
    assert hparams.layer_ropes == (1, 1, 1, 1, 1, 0, 1)
    everywhere, local = hparams.ropes
    assert (everywhere.theta, everywhere.kind, everywhere.factor) == (1e6, "linear", 8.0)
    assert (local.theta, local.kind) == (10_000.0, "default")
    assert (hparams.embedding_scale, hparams.query_scale) == (8.0, 0.5)
    assert (hparams.norm_offset, hparams.sandwich_norms, hparams.qk_norm) == (1.0, True, True)
    assert (hparams.activation, hparams.tied_embeddings, hparams.logit_softcap) == ("gelu_tanh", True, 30.0)


def test_gemma3_reads_rope_parameters_per_layer_kind() -> None:
    """Newer configs hold one object for full and one for sliding layers."""
    parameters = {
        "full_attention": {"rope_type": "default", "rope_theta": 5e5},
        "sliding_attention": {"rope_type": "default", "rope_theta": 2e4},
    }
    hparams = read("gemma3", sliding_window=8, rope_parameters=parameters)
    assert [rope.theta for rope in hparams.ropes] == [5e5, 2e4]


@pytest.mark.parametrize(
    ("architecture", "changes", "complaint"),
    [
        ("llama", {"hidden_size": None}, "hidden_size is missing"),
        ("llama", {"hidden_size": "64"}, "hidden_size is '64'"),
        ("llama", {"num_hidden_layers": 0}, "num_hidden_layers is 0"),
        ("llama", {"num_hidden_layers": True}, "num_hidden_layers is True"),
        ("llama", {"num_hidden_layers": 4.0}, "num_hidden_layers is 4.0"),
        ("llama", {"rms_norm_eps": math.nan}, "rms_norm_eps is nan"),
        ("llama", {"rms_norm_eps": math.inf}, "rms_norm_eps is inf"),
        ("llama", {"rms_norm_eps": -1e-6}, "rms_norm_eps is -1e-06"),
        ("llama", {"num_key_value_heads": 3}, "num_key_value_heads is 3.*num_attention_heads, which is 8"),
        ("llama", {"num_attention_heads": 6}, "num_attention_heads is 6.*hidden_size 64"),
        ("llama", {"head_dim": 7}, "head_dim is 7.*even"),
        ("llama", {"attention_bias": "yes"}, "attention_bias is 'yes'"),
        ("llama", {"tie_word_embeddings": 1}, "tie_word_embeddings is 1"),
        ("qwen2", {"layer_types": ["full_attention"] * 3}, "lists 3 layers, but num_hidden_layers is 4"),
        ("qwen2", {"layer_types": "full_attention"}, "layer_types is 'full_attention'"),
        ("qwen2", {"layer_types": ["sliding_attention"] * 4}, "sliding_window is None"),
        ("qwen2", {"use_sliding_window": True, "max_window_layers": 0}, "sliding_window is None"),
        ("qwen2", {"use_sliding_window": True, "max_window_layers": -1}, "max_window_layers is -1"),
        ("mistral", {"sliding_window": 0}, "sliding_window is 0"),
        ("gemma3", {}, "sliding_window is None"),
        ("gemma3", {"sliding_window": 8, "query_pre_attn_scalar": 0}, "query_pre_attn_scalar is 0"),
    ],
)
def test_contradictions_are_named(architecture: str, changes: dict[str, object], complaint: str) -> None:
    """The message says which key, which value, and what it should have been."""
    with pytest.raises(CheckpointError, match=complaint):
        read(architecture, **changes)


@pytest.mark.parametrize(
    ("architecture", "changes", "complaint"),
    [
        ("mixtral", {}, "'mixtral' is not served; served are llama, mistral, qwen2, qwen3, gemma3"),
        ("llama", {"hidden_act": "relu"}, "hidden_act is 'relu'"),
        ("gemma3", {"hidden_activation": "gelu", "sliding_window": 8}, "hidden_activation is 'gelu'"),
        ("gemma3", {"use_bidirectional_attention": True}, "use_bidirectional_attention"),
        ("qwen2", {"layer_types": ["linear_attention"] * 4}, "'linear_attention'"),
        ("llama", {"quantization_config": {"quant_method": "awq"}}, "'awq'"),
        ("llama", {"rope_scaling": {"type": "yarn", "factor": 4.0}}, "'yarn'"),
    ],
)
def test_what_is_not_served_is_refused_by_name(architecture: str, changes: dict[str, object], complaint: str) -> None:
    """A model that would be computed wrongly is not loaded."""
    with pytest.raises(UnsupportedModelError, match=complaint):
        read(architecture, **changes)
