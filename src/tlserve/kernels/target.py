"""Which vector instructions the compiled code may use.

The answer comes from the processor that numba compiles for (NUMBA_CPU_NAME and NUMBA_CPU_FEATURES can say another one),
because that is also what numba's cache on disk is keyed by. All levels compute the same bits: they differ only in how
many lanes one instruction has, and how many instructions a product takes.
"""

from __future__ import annotations

from typing import Any, Literal

from numba.core.registry import cpu_target

Level = Literal["avx512vnni", "avx512", "avx2", "portable"]

AVX512 = ("+avx512f", "+avx512bw", "+avx512vl")
VNNI = "+avx512vnni"
AVX2 = ("+avx2", "+fma", "+f16c")


def simd_level() -> Level:
    """The widest vector instructions that the kernels know and the target has."""
    return level_of(cpu_target.target_context)


def level_of(context: Any) -> Level:
    """`simd_level` of a numba target context, for code generators."""
    _triple, _name, features = context.codegen().magic_tuple()
    present = set(features.split(","))
    if present.issuperset(AVX512):
        return "avx512vnni" if VNNI in present else "avx512"
    return "avx2" if present.issuperset(AVX2) else "portable"


def describe_target() -> str:
    """One line for the log."""
    _triple, name, _features = cpu_target.target_context.codegen().magic_tuple()
    return f"{name}, {simd_level()}"
