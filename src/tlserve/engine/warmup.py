"""Compiles everything that serving compiles, without a model: for the build of an image.

What is compiled goes into the cache on disk (`kernels.cache_dir`), where the next start on such a processor finds it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from tlserve.config import EngineConfig
from tlserve.decode.params import SamplingParams
from tlserve.engine.engine import Engine
from tlserve.engine.messages import GenRequest
from tlserve.kernels.catalog import all_kernels
from tlserve.kernels.jit import cache_directory
from tlserve.model.load import load_runner
from tlserve.weights.contents import ByteTokenizer, Checkpoint
from tlserve.weights.tensor import Tensor

_WIDTH = 64
_VOCAB = 256


def warm_up(report: Callable[[str], None]) -> None:
    """Compile all kernels for this machine's processor, then serve requests of toy models for the rest.

    Takes a minute at most, on the calling thread; with everything in the cache, a second or two.

    Args:
        report: hears what is being done, a line at a time.

    """
    report(f"compiled code goes to {cache_directory()}")
    kernels = all_kernels()
    for number, kernel in enumerate(kernels, start=1):
        report(f"kernel {number} of {len(kernels)}: {kernel.name}")
        kernel.compile()
    for weights in ("f32", "q4", "q8"):
        report(f"a request of a toy model, {weights}")
        _serve_one(weights)


def _serve_one(weights: Literal["f32", "q4", "q8"]) -> None:
    runner = load_runner(
        _toy_model(),
        kernels="numba",
        weights=weights,
        num_blocks=4,
        block_size=16,
        max_model_len=_WIDTH,
        threads=2,
        report=lambda _: None,
    )
    engine = Engine(runner, EngineConfig(), max_waiting=1)
    for temperature in (0.0, 1.0):
        params = SamplingParams(temperature=temperature, top_p=0.9, top_k=8, logprobs=2)
        engine.add_request(GenRequest(prompt=(1, 2, 3), params=params, seed=1, max_tokens=4))
        while engine.has_work():
            engine.step()
    engine.close()


def _toy_model() -> Checkpoint:
    """A llama of one layer with random weights."""
    config = {
        "vocab_size": _VOCAB,
        "hidden_size": _WIDTH,
        "intermediate_size": _WIDTH,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "max_position_embeddings": _WIDTH,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": True,
    }
    return Checkpoint(
        architecture="llama",
        config=config,
        tensors={name: Tensor.from_array(name, values) for name, values in _toy_weights().items()},
        tokenizer=ByteTokenizer(),
        chat_template=None,
        bos_token="",
        eos_token="",
        eos_token_ids=(),
        source="a toy",
    )


def _toy_weights() -> dict[str, NDArray[np.float32]]:
    draw = np.random.default_rng(0)
    half = _WIDTH // 2
    shapes = {
        "model.embed_tokens": (_VOCAB, _WIDTH),
        "model.norm": (_WIDTH,),
        "model.layers.0.input_layernorm": (_WIDTH,),
        "model.layers.0.post_attention_layernorm": (_WIDTH,),
        "model.layers.0.self_attn.q_proj": (_WIDTH, _WIDTH),
        "model.layers.0.self_attn.k_proj": (half, _WIDTH),
        "model.layers.0.self_attn.v_proj": (half, _WIDTH),
        "model.layers.0.self_attn.o_proj": (_WIDTH, _WIDTH),
        "model.layers.0.mlp.gate_proj": (_WIDTH, _WIDTH),
        "model.layers.0.mlp.up_proj": (_WIDTH, _WIDTH),
        "model.layers.0.mlp.down_proj": (_WIDTH, _WIDTH),
    }
    return {f"{name}.weight": draw.standard_normal(shape, np.float32) for name, shape in shapes.items()}
