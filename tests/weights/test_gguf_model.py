"""A GGUF file's metadata and tensors come out in Hugging Face's terms."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tlserve.errors import CheckpointError, UnsupportedModelError
from tlserve.weights.checkpoint import Checkpoint, GgufBpe, GgufSpm, open_checkpoint
from tlserve.weights.gguf_names import half_split_rows

GEMMA = {
    "gemma3.attention.key_length": 16,
    "gemma3.attention.value_length": 16,
    "gemma3.attention.sliding_window": 32,
}
GEMMA_NORMS = {
    f"blk.{i}.post_{part}_norm.weight": np.ones(64, np.float32) * 3 for i in range(2) for part in ("attention", "ffw")
}
SPM = {
    "tokenizer.ggml.model": "llama",
    "tokenizer.ggml.pre": None,
    "tokenizer.ggml.merges": None,
    "tokenizer.ggml.scores": [0.0, -1.5] * 6,
}


def test_config_of_a_llama(write_gguf: Any) -> None:
    """The hyper-parameters have config.json's names; head_dim and tying are worked out."""
    config = open_checkpoint(write_gguf()).config
    assert config == {
        "model_type": "llama",
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "intermediate_size": 96,
        "vocab_size": 12,
        "max_position_embeddings": 128,
        "rms_norm_eps": pytest.approx(1e-5),
        "rope_theta": 50_000.0,
        "rope_scaling": None,
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": True,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }


def test_config_of_a_gemma3(write_gguf: Any) -> None:
    """Gemma's own facts are added: windows by layer, the local rope, the query scale."""
    metadata = GEMMA | {"gemma3.rope.scaling.type": "linear", "gemma3.rope.scaling.factor": 8.0}
    config = open_checkpoint(write_gguf(metadata, GEMMA_NORMS, arch="gemma3")).config
    assert config["model_type"] == "gemma3"
    assert config["sliding_window"] == 32
    assert config["layer_types"] == ["sliding_attention"] * 2
    assert config["rope_scaling"] == {"rope_type": "linear", "factor": 8.0}
    assert config["rope_local_base_freq"] == 10_000.0
    assert config["query_pre_attn_scalar"] == 16
    assert config["hidden_activation"] == "gelu_pytorch_tanh"


@pytest.mark.parametrize(
    ("pattern", "types"),
    [(None, "ss"), (2, "sf"), (1, "ff"), ([False, True], "fs"), (0, "ss")],
)
def test_gemma3_sliding_pattern(write_gguf: Any, pattern: Any, types: str) -> None:
    """Which layers slide is said by a period or layer by layer; old files mean every layer but each sixth."""
    metadata = GEMMA | {"gemma3.attention.sliding_window_pattern": pattern}
    config = open_checkpoint(write_gguf(metadata, GEMMA_NORMS, arch="gemma3")).config
    names = {"s": "sliding_attention", "f": "full_attention"}
    assert config["layer_types"] == [names[letter] for letter in types]


@pytest.mark.parametrize(
    ("metadata", "scaling"),
    [
        ({"llama.rope.scaling.type": "none"}, None),
        ({"llama.rope.scale_linear": 4.0}, {"rope_type": "linear", "factor": 4.0}),
        (
            {
                "llama.rope.scaling.type": "yarn",
                "llama.rope.scaling.factor": 2.0,
                "llama.rope.scaling.original_context_length": 64,
            },
            {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 64},
        ),
    ],
)
def test_rope_scaling(write_gguf: Any, metadata: Mapping[str, Any], scaling: Any) -> None:
    """Scaling keys, the old one too, become a rope_scaling object."""
    assert open_checkpoint(write_gguf(metadata)).config["rope_scaling"] == scaling


def test_hugging_face_names(write_gguf: Any) -> None:
    """Tensors are under Hugging Face's names; a separate output matrix unties the embeddings."""
    extra = {
        "output.weight": np.zeros((12, 64), np.float32),
        "rope_freqs.weight": np.ones(8, np.float32),
        "blk.0.attn_q.bias": np.zeros(64, np.float32),
    }
    checkpoint = open_checkpoint(write_gguf(tensors=extra))
    layer = "model.layers.1."
    assert {
        "model.embed_tokens.weight",
        "model.norm.weight",
        "lm_head.weight",
        "rope_freqs",
        "model.layers.0.self_attn.q_proj.bias",
        f"{layer}input_layernorm.weight",
        f"{layer}post_attention_layernorm.weight",
        f"{layer}self_attn.o_proj.weight",
        f"{layer}mlp.gate_proj.weight",
        f"{layer}mlp.up_proj.weight",
        f"{layer}mlp.down_proj.weight",
    } < checkpoint.tensors.keys()
    assert all(tensor.name == name for name, tensor in checkpoint.tensors.items())
    assert checkpoint.config["tie_word_embeddings"] is False
    assert checkpoint.config["attention_bias"] is True


def interleaved(rows: np.ndarray, num_heads: int) -> np.ndarray:
    """Rows as a converter writes them for rope over neighbours: from (head, half, pair) to (head, pair, half)."""
    return rows.reshape(num_heads, 2, -1, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)


def test_llama_rows_are_put_back(write_gguf: Any, llama_values: dict[str, np.ndarray]) -> None:
    """Query and key rows, weights and biases, are half-split again; values and the others are left alone."""
    wanted = llama_values | {"blk.0.attn_q.bias": np.arange(64, dtype=np.float32)}
    stored = {
        name: interleaved(values, 4 if "attn_q." in name else 2)
        for name, values in wanted.items()
        if "attn_q." in name or "attn_k." in name
    }
    tensors = open_checkpoint(write_gguf(tensors=stored)).tensors
    attention = "model.layers.0.self_attn"
    for ours, theirs in [
        (f"{attention}.q_proj.weight", "blk.0.attn_q.weight"),
        (f"{attention}.q_proj.bias", "blk.0.attn_q.bias"),
        (f"{attention}.k_proj.weight", "blk.0.attn_k.weight"),
        (f"{attention}.v_proj.weight", "blk.0.attn_v.weight"),
    ]:
        np.testing.assert_array_equal(tensors[ours].dequantize(), wanted[theirs])
        np.testing.assert_array_equal(tensors[ours].raw.view("<f4"), wanted[theirs].reshape(tensors[ours].shape))


def test_other_architectures_keep_their_rows(write_gguf: Any, llama_values: dict[str, np.ndarray]) -> None:
    """Only llama's files are written for interleaved rope."""
    tensors = open_checkpoint(write_gguf(arch="qwen3")).tensors
    np.testing.assert_array_equal(
        tensors["model.layers.0.self_attn.q_proj.weight"].dequantize(), llama_values["blk.0.attn_q.weight"]
    )


def test_half_split_rows() -> None:
    """Of two heads with two pairs each: firsts, then seconds, head by head."""
    assert half_split_rows(8, 2).tolist() == [0, 2, 1, 3, 4, 6, 5, 7]


def test_gemma_norms_are_hugging_face_ones(write_gguf: Any, llama_values: dict[str, np.ndarray]) -> None:
    """GGUF's gemma norms hold 1 + w; w comes out. Names follow gemma's two norms around each block."""
    tensors = open_checkpoint(write_gguf(GEMMA, GEMMA_NORMS, arch="gemma3")).tensors
    np.testing.assert_array_equal(tensors["model.layers.0.post_attention_layernorm.weight"].dequantize(), 2)
    np.testing.assert_array_equal(tensors["model.layers.1.post_feedforward_layernorm.weight"].dequantize(), 2)
    np.testing.assert_array_equal(tensors["model.norm.weight"].dequantize(), llama_values["output_norm.weight"] - 1)
    np.testing.assert_array_equal(
        tensors["model.layers.0.pre_feedforward_layernorm.weight"].dequantize(),
        llama_values["blk.0.ffn_norm.weight"] - 1,
    )


def test_bpe_tokenizer(write_gguf: Any) -> None:
    """The vocabulary is handed on as plain data, with the ids of the special tokens and the texts for the template."""
    checkpoint = open_checkpoint(
        write_gguf({"tokenizer.ggml.add_bos_token": True, "tokenizer.ggml.unknown_token_id": 0})
    )
    tokenizer = checkpoint.tokenizer
    assert isinstance(tokenizer, GgufBpe)
    assert tokenizer.tokens[5:9] == ("a", "b", "c", "ab")
    assert tokenizer.token_types[:3] == (2, 3, 3)
    assert tokenizer.merges == ("a b", "b c", "a bc")
    assert (tokenizer.pre, tokenizer.bos_id, tokenizer.eos_id, tokenizer.unk_id) == ("smollm", 1, 2, 0)
    assert tokenizer.add_bos
    assert (checkpoint.bos_token, checkpoint.eos_token) == ("<s>", "</s>")
    assert checkpoint.chat_template == "{{ messages }}"


@pytest.mark.parametrize(
    ("pre", "adds"), [("smollm", False), ("llama-bpe", True), ("tekken", True), ("qwen2", False), (None, False)]
)
def test_begin_token_of_old_bpe_files(write_gguf: Any, pre: str | None, *, adds: bool) -> None:
    """Without the key, only Llama 3's vocabulary begins a text with its begin token."""
    tokenizer = open_checkpoint(write_gguf({"tokenizer.ggml.pre": pre})).tokenizer
    assert isinstance(tokenizer, GgufBpe)
    assert tokenizer.add_bos is adds


def test_sentencepiece_tokenizer(write_gguf: Any) -> None:
    """Scores come instead of merges; SentencePiece adds a begin token and a space unless told otherwise."""
    tokenizer = open_checkpoint(write_gguf(SPM)).tokenizer
    assert isinstance(tokenizer, GgufSpm)
    assert tokenizer.scores == (0.0, -1.5) * 6
    assert tokenizer.add_bos
    assert tokenizer.add_space_prefix


@pytest.mark.parametrize(
    ("metadata", "ends"),
    [
        ({}, (2, 3, 4)),
        ({"tokenizer.ggml.eos_token_id": 3}, (3, 4)),
        ({"tokenizer.ggml.eot_token_id": 7}, (2, 7, 3, 4)),
        ({"tokenizer.ggml.token_type": [2, 3, 3, 1, 1, 1, 1, 1, 1, 1, 1, 1]}, (2,)),
        ({"tokenizer.ggml.eos_token_id": None}, (3, 4)),
    ],
)
def test_end_tokens(write_gguf: Any, metadata: Mapping[str, Any], ends: tuple[int, ...]) -> None:
    """The named end token first, then control tokens that are known to end a turn; a normal token never does."""
    assert open_checkpoint(write_gguf(metadata)).eos_token_ids == ends


def test_sampling_defaults(write_gguf: Any) -> None:
    """What the file recommends is passed on under the API's names."""
    metadata = {"general.sampling.temp": 0.5, "general.sampling.top_k": 20}
    assert open_checkpoint(write_gguf(metadata)).generation_defaults == {"temperature": 0.5, "top_k": 20.0}


@pytest.mark.parametrize(
    ("metadata", "problem"),
    [
        ({"llama.block_count": None}, "llama.block_count is missing, expected a whole number"),
        ({"llama.block_count": 0}, "llama.block_count is 0, expected at least 1"),
        ({"llama.block_count": 4_000_000_000}, "at most the number of tensors"),
        ({"llama.embedding_length": "wide"}, "llama.embedding_length is 'wide', expected a whole number"),
        ({"llama.attention.head_count": [4, 4]}, "llama.attention.head_count is array"),
        ({"llama.attention.head_count": 5}, "64 rows, which num_attention_heads = 5 cannot share"),
        ({"llama.attention.layer_norm_rms_epsilon": None}, "layer_norm_rms_epsilon is missing"),
        ({"tokenizer.ggml.tokens": None}, "tokenizer.ggml.tokens is missing"),
        ({"tokenizer.ggml.merges": None}, "tokenizer.ggml.merges is missing"),
        ({"tokenizer.ggml.token_type": [1, 2]}, "12 tokens but 2 tokenizer.ggml.token_type"),
        ({"tokenizer.ggml.token_type": None}, "12 tokens but 0 tokenizer.ggml.token_type"),
        ({"tokenizer.ggml.token_type": [1.0] * 12}, "expected an array of whole numbers"),
        ({"tokenizer.ggml.bos_token_id": 12}, "bos_token_id is 12, expected below the number of tokens, 12"),
        (SPM | {"tokenizer.ggml.scores": [1.0]}, "12 tokens but 1 tokenizer.ggml.scores"),
    ],
)
def test_contradicting_metadata(write_gguf: Any, metadata: Mapping[str, Any], problem: str) -> None:
    """A missing or wrong key is named, with its value and what was expected, and so is the file."""
    path = write_gguf(metadata)
    with pytest.raises(CheckpointError) as caught:
        open_checkpoint(path)
    assert problem in str(caught.value)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    ("metadata", "tensors", "problem"),
    [
        ({"llama.expert_count": 8}, {}, "mixture of experts"),
        ({"split.count": 3}, {}, "llama-gguf-split --merge"),
        (
            {"llama.attention.key_length": 16, "llama.attention.value_length": 8},
            {},
            "value_length is 8 but heads have 16",
        ),
        ({"llama.rope.dimension_count": 8}, {}, "rope.dimension_count is 8 but heads have 16"),
        ({"tokenizer.ggml.model": "bert"}, {}, "'bert'; served are 'gpt2'"),
        (
            {},
            {"blk.0.ffn_gate_inp.weight": np.ones(4, np.float32)},
            "'blk.0.ffn_gate_inp.weight' does not belong to a llama",
        ),
        ({}, {"blk.01.attn_q.weight": np.ones(4, np.float32)}, "'blk.01.attn_q.weight' does not belong"),
    ],
)
def test_what_is_not_served(
    write_gguf: Any, metadata: Mapping[str, Any], tensors: Mapping[str, Any], problem: str
) -> None:
    """A variant that computes something else is refused by name rather than served wrong."""
    with pytest.raises(UnsupportedModelError, match=problem):
        open_checkpoint(write_gguf(metadata, tensors))


def test_other_architecture_is_refused(write_gguf: Any) -> None:
    """The message lists the architectures that are served."""
    with pytest.raises(
        UnsupportedModelError, match="'mamba' is not served; GGUF files may hold llama, qwen2, qwen3, gemma3"
    ):
        open_checkpoint(write_gguf(arch="mamba"))


def test_missing_embedding(write_gguf: Any) -> None:
    """Without the embedding nothing is known about the vocabulary."""
    with pytest.raises(CheckpointError, match=r"'token_embd.weight' is missing"):
        open_checkpoint(write_gguf(tensors={"token_embd.weight": None}))


@pytest.mark.model
def test_real_model(smollm2_path: Path) -> None:
    """SmolLM2-135M's facts, as its file has them."""
    checkpoint: Checkpoint = open_checkpoint(smollm2_path)
    assert checkpoint.architecture == "llama"
    assert checkpoint.config["head_dim"] == 64
    assert checkpoint.config["vocab_size"] == 49152
    assert checkpoint.config["tie_word_embeddings"] is True
    assert (checkpoint.bos_token, checkpoint.eos_token) == ("<|im_start|>", "<|im_end|>")
    assert checkpoint.eos_token_ids == (2, 0)
    assert checkpoint.chat_template is not None
    assert checkpoint.chat_template.startswith("{% for message in messages %}")
    assert checkpoint.num_bytes == 96_576_768
