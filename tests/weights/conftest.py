"""Small models of every kind, written to disk."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGMLQuantizationType, GGUFValueType, GGUFWriter
from numpy.typing import NDArray

HIDDEN, HEADS, KV_HEADS, MLP, LAYERS, VOCAB = 64, 4, 2, 96, 2, 12
TOKENS = ["<unk>", "<s>", "</s>", "<|im_end|>", "<|endoftext|>", "a", "b", "c", "ab", "bc", "abc", "Ġ"]
TYPES = [2, 3, 3, 3, 3, 1, 1, 1, 1, 1, 1, 1]

Metadata = dict[str, Any]
Arrays = dict[str, NDArray[np.float32]]
WriteGguf = Callable[..., Path]


def llama_metadata(arch: str = "llama") -> Metadata:
    return {
        f"{arch}.embedding_length": HIDDEN,
        f"{arch}.block_count": LAYERS,
        f"{arch}.attention.head_count": HEADS,
        f"{arch}.attention.head_count_kv": KV_HEADS,
        f"{arch}.feed_forward_length": MLP,
        f"{arch}.context_length": 128,
        f"{arch}.attention.layer_norm_rms_epsilon": 1e-5,
        f"{arch}.rope.freq_base": 50_000.0,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": TOKENS,
        "tokenizer.ggml.token_type": TYPES,
        "tokenizer.ggml.merges": ["a b", "b c", "a bc"],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.chat_template": "{{ messages }}",
    }


def llama_arrays() -> Arrays:
    rng = np.random.default_rng(7)
    kv = HIDDEN // HEADS * KV_HEADS
    shapes: dict[str, tuple[int, ...]] = {"token_embd.weight": (VOCAB, HIDDEN), "output_norm.weight": (HIDDEN,)}
    for layer in range(LAYERS):
        parts: dict[str, tuple[int, ...]] = {
            "attn_norm": (HIDDEN,),
            "attn_q": (HIDDEN, HIDDEN),
            "attn_k": (kv, HIDDEN),
            "attn_v": (kv, HIDDEN),
            "attn_output": (HIDDEN, HIDDEN),
            "ffn_norm": (HIDDEN,),
            "ffn_gate": (MLP, HIDDEN),
            "ffn_up": (MLP, HIDDEN),
            "ffn_down": (HIDDEN, MLP),
        }
        shapes |= {f"blk.{layer}.{part}.weight": shape for part, shape in parts.items()}
    return {name: rng.standard_normal(shape, dtype=np.float32) for name, shape in shapes.items()}


def add(writer: GGUFWriter, key: str, value: Any) -> None:
    """A float is written as FLOAT32 and an int as UINT32, as converters do; lists by their first item."""
    if isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, int) and not isinstance(value, bool):
        writer.add_uint32(key, value)
    else:
        writer.add_key_value(key, value, GGUFValueType.get_type(value))


@pytest.fixture
def write_gguf(tmp_path: Path) -> WriteGguf:
    """Writes a small llama as GGUF, with changed metadata (None leaves a key out), tensors and architecture name."""

    def write(
        metadata: Mapping[str, Any] | None = None,
        tensors: Mapping[str, Any] | None = None,
        *,
        arch: str = "llama",
        name: str = "model.gguf",
        quantized: Mapping[str, tuple[str, NDArray[np.uint8]]] | None = None,
    ) -> Path:
        path = tmp_path / name
        writer = GGUFWriter(path, arch)
        for key, value in (llama_metadata(arch) | dict(metadata or {})).items():
            if value is not None:
                add(writer, key, value)
        raw = dict(quantized or {})
        for key, array in (llama_arrays() | dict(tensors or {})).items():
            if array is not None and key not in raw:
                writer.add_tensor(key, array)
        for key, (type_name, data) in raw.items():
            writer.add_tensor(key, data, raw_dtype=GGMLQuantizationType[type_name])
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path

    return write


@pytest.fixture
def llama_values() -> Arrays:
    """The tensors that `write_gguf` writes."""
    return llama_arrays()
