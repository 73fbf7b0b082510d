"""Every kernel there is, to compile them before any model is at hand."""

from __future__ import annotations

from tlserve.kernels import activation, attention, embedding, kv, linear, norm
from tlserve.kernels.float_tile import FLOAT16
from tlserve.kernels.jit import Kernel
from tlserve.kernels.target import simd_level


def all_kernels() -> tuple[Kernel, ...]:
    """The kernels that some model may need on this machine; one that needs half precision is left out where that is slow."""
    has_half = simd_level() != "portable"
    return (
        norm.NORM,
        norm.ADD,
        norm.ROUND_ROWS,
        norm.PICK,
        kv.STORE_KV,
        attention.ATTEND,
        attention.MERGE,
        activation.GATE_ROWS,
        activation.CAP_LOGITS,
        embedding.EMBED_FLOATS,
        embedding.EMBED_QUANTISED,
        *(kernel for form, kernel in linear.QUANT_KERNELS.items() if has_half or not form.half),
        *(kernel for kind, kernel in linear.FLOAT_KERNELS.items() if has_half or kind != FLOAT16),
    )
