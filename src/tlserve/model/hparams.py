"""The hyper-parameters of a decoder model, read strictly from its config in Hugging Face vocabulary.

Every fact that changes the arithmetic is here, per layer where layers differ, so that a runner asks no architecture
name. Tensors are checked by `inventory`, rotary frequencies are computed by `rope`.
Invariant: an HParams that exists can be computed; everything else was refused by name.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Literal

from attrs import frozen

from tlserve.errors import CheckpointError, UnsupportedModelError
from tlserve.model.entries import Entries
from tlserve.model.rope import RopeSpec, read_rope, read_section

Activation = Literal["silu", "gelu_tanh"]


@frozen(kw_only=True)
class Family:
    """What an architecture's name alone decides; the values that a config may leave out are its defaults."""

    activation_key: str = "hidden_act"
    activation: str = "silu"
    rope_theta: float = 10_000.0
    tied_embeddings: bool = False
    qkv_bias: bool = False
    has_attention_bias: bool = True  # the config may ask for biases in all four attention projections
    has_mlp_bias: bool = False
    qk_norm: bool = False
    gemma: bool = False


FAMILIES: Mapping[str, Family] = {
    "llama": Family(has_mlp_bias=True),
    "mistral": Family(has_attention_bias=False),
    "qwen2": Family(qkv_bias=True, has_attention_bias=False),
    "qwen3": Family(qk_norm=True),
    "gemma3": Family(
        activation_key="hidden_activation",
        activation="gelu_pytorch_tanh",
        rope_theta=1_000_000.0,
        tied_embeddings=True,
        qk_norm=True,
        gemma=True,
    ),
}

ACTIVATIONS: Mapping[str, Activation] = {"silu": "silu", "gelu_pytorch_tanh": "gelu_tanh"}


@frozen(kw_only=True)
class HParams:
    """The shape and the arithmetic of one decoder model.

    Attributes:
        num_heads: query heads; each group of num_heads / num_kv_heads of them shares one key and value head.
        max_position: the longest context the model was made for, in tokens.
        qkv_bias, out_bias, mlp_bias: which linears add a bias.
        qk_norm: query and key heads are RMS-normalised (over head_dim) before they are turned.
        sandwich_norms: attention and MLP outputs are normalised too, before they join the residual (Gemma).
        norm_offset: what is added to every stored RMS-norm weight: 1.0 where the file holds w - 1 (Gemma), else 0.0.
        embedding_scale: token embeddings are multiplied by this; sqrt(hidden_size) for Gemma, else 1.0.
        query_scale: attention scores are query . key times this.
        attention_softcap, logit_softcap: x becomes cap * tanh(x / cap), or stays where None.
        ropes: the distinct rotary embeddings; layer i uses ropes[layer_ropes[i]].
        layer_windows: layer i sees the last layer_windows[i] tokens, the current one included; None sees all.

    """

    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_position: int
    norm_eps: float
    activation: Activation
    tied_embeddings: bool
    qkv_bias: bool
    out_bias: bool
    mlp_bias: bool
    qk_norm: bool
    sandwich_norms: bool
    norm_offset: float
    embedding_scale: float
    query_scale: float
    attention_softcap: float | None
    logit_softcap: float | None
    ropes: tuple[RopeSpec, ...]
    layer_ropes: tuple[int, ...]
    layer_windows: tuple[int | None, ...]

    @property
    def query_size(self) -> int:
        """Elements of one token's queries, all heads together."""
        return self.num_heads * self.head_dim

    @property
    def kv_size(self) -> int:
        """Elements of one token's keys (or values) in one layer, all heads together."""
        return self.num_kv_heads * self.head_dim


def read_hparams(architecture: str, config: Mapping[str, object]) -> HParams:
    """Read the hyper-parameters of a checkpoint.

    Args:
        architecture: "llama", "mistral", "qwen2", "qwen3" or "gemma3".
        config: config.json, or a GGUF file's metadata in the same vocabulary.

    Raises:
        CheckpointError: a key is missing, has a wrong value, or contradicts another one.
        UnsupportedModelError: the architecture, or something the config asks for, is not served.

    """
    family = FAMILIES.get(architecture)
    if family is None:
        raise UnsupportedModelError(f"architecture {architecture!r} is not served; served are {', '.join(FAMILIES)}")
    entries = Entries(config)
    _refuse_unserved(entries)
    num_layers = entries.count("num_hidden_layers")
    hidden_size = entries.count("hidden_size")
    num_heads, num_kv_heads, head_dim = _read_heads(entries, hidden_size, gemma=family.gemma)
    attention_bias = family.has_attention_bias and entries.flag("attention_bias", default=False)
    windows = _read_windows(entries, architecture, num_layers)
    ropes, layer_ropes = _read_ropes(entries, family, windows)
    return HParams(
        architecture=architecture,
        vocab_size=entries.count("vocab_size"),
        hidden_size=hidden_size,
        intermediate_size=entries.count("intermediate_size"),
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        max_position=entries.count("max_position_embeddings"),
        norm_eps=entries.positive("rms_norm_eps"),
        activation=_read_activation(entries, family),
        tied_embeddings=entries.flag("tie_word_embeddings", default=family.tied_embeddings),
        qkv_bias=family.qkv_bias or attention_bias,
        out_bias=attention_bias,
        mlp_bias=family.has_mlp_bias and entries.flag("mlp_bias", default=False),
        qk_norm=family.qk_norm,
        sandwich_norms=family.gemma,
        norm_offset=1.0 if family.gemma else 0.0,
        embedding_scale=math.sqrt(hidden_size) if family.gemma else 1.0,
        query_scale=_read_query_scale(entries, head_dim, gemma=family.gemma),
        attention_softcap=entries.optional_positive("attn_logit_softcapping"),
        logit_softcap=entries.optional_positive("final_logit_softcapping"),
        ropes=ropes,
        layer_ropes=layer_ropes,
        layer_windows=windows,
    )


def _refuse_unserved(entries: Entries) -> None:
    if entries.flag("use_bidirectional_attention", default=False):
        raise UnsupportedModelError(
            "config.json: use_bidirectional_attention is true; tlserve computes causal models only"
        )
    if entries.has("quantization_config"):
        method = entries.section("quantization_config").text("quant_method", "unknown")
        raise UnsupportedModelError(
            f"config.json: quantization_config.quant_method is {method!r}; use the unquantised model or a GGUF file"
        )


def _read_heads(entries: Entries, hidden_size: int, *, gemma: bool) -> tuple[int, int, int]:
    """Query heads, key/value heads and head_dim, which must fit each other."""
    num_heads = entries.count("num_attention_heads")
    num_kv_heads = entries.count("num_key_value_heads", num_heads)
    if num_heads % num_kv_heads:
        raise entries.wrong("num_key_value_heads", f"a divisor of num_attention_heads, which is {num_heads}")
    if not entries.has("head_dim") and not gemma and hidden_size % num_heads:
        raise entries.wrong("num_attention_heads", f"a divisor of hidden_size {hidden_size} unless head_dim is given")
    head_dim = entries.count("head_dim", 256 if gemma else max(1, hidden_size // num_heads))
    if head_dim % 2:
        raise CheckpointError(f"config.json: head_dim is {head_dim}; rotary embeddings need an even number")
    return num_heads, num_kv_heads, head_dim


def _read_activation(entries: Entries, family: Family) -> Activation:
    key = family.activation_key if entries.has(family.activation_key) else "hidden_act"
    name = entries.text(key, family.activation)
    if name not in ACTIVATIONS:
        raise UnsupportedModelError(f"config.json: {key} is {name!r}; served are {', '.join(ACTIVATIONS)}")
    return ACTIVATIONS[name]


def _read_query_scale(entries: Entries, head_dim: int, *, gemma: bool) -> float:
    size = entries.positive("query_pre_attn_scalar", 256.0) if gemma else head_dim
    return 1.0 / math.sqrt(size)


def _read_windows(entries: Entries, architecture: str, num_layers: int) -> tuple[int | None, ...]:
    """Each layer's sliding window; ``layer_types`` decides where it is given, else the architecture's own rule."""
    window = entries.optional_count("sliding_window")
    slides = _read_layer_types(entries, num_layers)
    if slides is None:
        slides = _default_slides(entries, architecture, num_layers)
    if any(slides) and window is None:
        raise entries.wrong("sliding_window", "a number of tokens, because the model has sliding layers")
    return tuple(window if slide else None for slide in slides)


def _read_layer_types(entries: Entries, num_layers: int) -> tuple[bool, ...] | None:
    """For each layer whether its attention slides, or None where the config does not list it."""
    if not entries.has("layer_types"):
        return None
    types = entries.texts("layer_types")
    if len(types) != num_layers:
        raise CheckpointError(
            f"config.json: layer_types lists {len(types)} layers, but num_hidden_layers is {num_layers}"
        )
    unknown = sorted(set(types) - {"full_attention", "sliding_attention"})
    if unknown:
        raise UnsupportedModelError(
            f"config.json: layer_types has {unknown[0]!r}; served are full_attention and sliding_attention"
        )
    return tuple(kind == "sliding_attention" for kind in types)


def _default_slides(entries: Entries, architecture: str, num_layers: int) -> tuple[bool, ...]:
    match architecture:
        case "mistral":
            return (entries.has("sliding_window"),) * num_layers
        case "qwen2" | "qwen3":
            first = _first_sliding_layer(entries, num_layers)
            return tuple(layer >= first for layer in range(num_layers))
        case "gemma3":
            # Five local layers, then a global one, over and over.
            pattern = entries.count("sliding_window_pattern", entries.count("_sliding_window_pattern", 6))
            return tuple((layer + 1) % pattern != 0 for layer in range(num_layers))
        case _:
            return (False,) * num_layers


def _first_sliding_layer(entries: Entries, num_layers: int) -> int:
    """Qwen slides from layer max_window_layers upwards, and only when use_sliding_window says so."""
    if not entries.flag("use_sliding_window", default=False):
        return num_layers
    value = entries.values.get("max_window_layers", num_layers)
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise entries.wrong("max_window_layers", "a whole number of at least 0")
    return value


def _read_ropes(
    entries: Entries, family: Family, windows: tuple[int | None, ...]
) -> tuple[tuple[RopeSpec, ...], tuple[int, ...]]:
    """The distinct rotary embeddings and each layer's index into them."""
    if not family.gemma:
        return (read_rope(entries, family.rope_theta),), (0,) * len(windows)
    sliding = tuple(int(window is not None) for window in windows)
    return _read_gemma_ropes(entries, family), sliding


def _read_gemma_ropes(entries: Entries, family: Family) -> tuple[RopeSpec, RopeSpec]:
    """Gemma 3 turns the heads of its global layers slower than those of its local ones: (global, local)."""
    if entries.has("rope_parameters") and entries.section("rope_parameters").has("full_attention"):
        parts = entries.section("rope_parameters")
        full, local = parts.section("full_attention"), parts.section("sliding_attention")
        return (
            read_section(full, full.positive("rope_theta", family.rope_theta)),
            read_section(local, local.positive("rope_theta", 10_000.0)),
        )
    local_theta = entries.positive("rope_local_base_freq", 10_000.0)
    return read_rope(entries, family.rope_theta), RopeSpec(theta=local_theta)
