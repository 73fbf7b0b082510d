"""Sixteen lanes: the vector in which the small kernels of this room are written.

`F32x16` is a numba type backed by LLVM's <16 x float>: one zmm register, two ymm or four NEON registers, as the
processor has. It adds, subtracts, multiplies and divides with Python's operators; the functions below do the rest.
Addresses are plain int64 (bytes).
Invariant: every operation is IEEE and lane by lane, and the two reductions fold in one fixed tree, so what a kernel
computes with them does not depend on the machine's vector length.
"""

from __future__ import annotations

import math
import operator
from typing import Any

from llvmlite import ir
from numba import types
from numba.core.typing import templates
from numba.extending import lower_builtin, models, register_model

from tlserve.kernels import emit
from tlserve.kernels.emit import f32, i16, i32
from tlserve.kernels.jit import instruction

LANES = 16
LOG2_E = 1.4426950408889634

V16F = ir.VectorType(f32, LANES)
V16I = ir.VectorType(i32, LANES)
V16H = ir.VectorType(i16, LANES)

EXP2_LOWEST = -126.0
EXP2_HIGHEST = 127.0
EXP2_TERMS = tuple(math.log(2.0) ** k / math.factorial(k) for k in range(8))


class VectorType(types.Type):
    """The numba type of sixteen float32 lanes."""


numba_type: Any = VectorType
F32x16: Any = numba_type("F32x16")


@register_model(VectorType)
class VectorModel(models.PrimitiveModel):
    """An F32x16 is one LLVM vector, in registers and in memory."""

    def __init__(self, manager: Any, kind: Any) -> None:
        base: Any = super()
        base.__init__(manager, kind, V16F)


class LaneByLane(templates.AbstractTemplate):
    """An arithmetic operator on two F32x16 yields one."""

    def generic(self, args: tuple[Any, ...], _kws: Any) -> Any:
        """The signature, if both arguments are vectors."""
        return F32x16(F32x16, F32x16) if args == (F32x16, F32x16) else None


register_type: Any = templates.infer_global
register_code: Any = lower_builtin


def _register(python_operator: Any, method: str) -> None:
    def lower(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        return getattr(builder, method)(*args)

    register_type(python_operator)(type(f"Vector_{method}", (LaneByLane,), {"key": python_operator}))
    register_code(python_operator, F32x16, F32x16)(lower)


for _operator, _method in (
    (operator.add, "fadd"),
    (operator.sub, "fsub"),
    (operator.mul, "fmul"),
    (operator.truediv, "fdiv"),
):
    _register(_operator, _method)


@instruction
def load(_typing: Any, _address: Any) -> Any:
    """Sixteen float32 from an address."""

    def codegen(_context: Any, b: Any, _signature: Any, args: Any) -> Any:
        return emit.load(b, args[0], V16F)

    return F32x16(types.int64), codegen


@instruction
def load_i16(_typing: Any, _address: Any) -> Any:
    """Sixteen int16 from an address, converted exactly."""

    def codegen(_context: Any, b: Any, _signature: Any, args: Any) -> Any:
        return b.sitofp(b.sext(emit.load(b, args[0], V16H), V16I), V16F)

    return F32x16(types.int64), codegen


@instruction
def store(_typing: Any, _address: Any, _vector: Any) -> Any:
    """Sixteen float32 to an address."""

    def codegen(context: Any, b: Any, _signature: Any, args: Any) -> Any:
        emit.store(b, args[0], args[1])
        return context.get_dummy_value()

    return types.void(types.int64, F32x16), codegen


@instruction
def store_i16(_typing: Any, _address: Any, _vector: Any) -> Any:
    """Sixteen whole numbers of at most 16 bits to an address, as int16."""

    def codegen(context: Any, b: Any, _signature: Any, args: Any) -> Any:
        emit.store(b, args[0], b.trunc(b.fptosi(args[1], V16I), V16H))
        return context.get_dummy_value()

    return types.void(types.int64, F32x16), codegen


@instruction
def splat(_typing: Any, _value: Any) -> Any:
    """A float32 in every lane."""

    def codegen(_context: Any, b: Any, _signature: Any, args: Any) -> Any:
        return emit.broadcast(b, args[0], LANES)

    return F32x16(types.float32), codegen


@instruction
def fma(_typing: Any, _a: Any, _b: Any, _c: Any) -> Any:
    """A * b + c, rounded once."""

    def codegen(_context: Any, b: Any, _signature: Any, args: Any) -> Any:
        return emit.fma(b, *args)

    return F32x16(F32x16, F32x16, F32x16), codegen


def _unary(name: str) -> Any:
    def codegen(_context: Any, b: Any, _signature: Any, args: Any) -> Any:
        return emit.call(b, f"llvm.{name}.v16f32", V16F, [args[0]])

    return F32x16(F32x16), codegen


@instruction
def absolute(_typing: Any, _vector: Any) -> Any:
    """The lanes without their signs."""
    return _unary("fabs")


@instruction
def nearest(_typing: Any, _vector: Any) -> Any:
    """The lanes rounded to whole numbers, halves to even."""
    return _unary("nearbyint")


def _greater(b: Any, x: Any, y: Any) -> Any:
    return b.select(b.fcmp_ordered(">", x, y), x, y)


@instruction
def greater(_typing: Any, _a: Any, _b: Any) -> Any:
    """The greater of each pair of lanes; the second where one is NaN."""

    def codegen(_context: Any, b: Any, _signature: Any, args: Any) -> Any:
        return _greater(b, *args)

    return F32x16(F32x16, F32x16), codegen


def _fold(b: Any, vector: Any, combine: Any) -> Any:
    """Lane i meets lane i + 8, then i + 4, i + 2, i + 1."""
    while vector.type.count > 1:
        half = vector.type.count // 2
        low, high = emit.lanes(b, vector, list(range(half))), emit.lanes(b, vector, list(range(half, 2 * half)))
        vector = combine(low, high)
    return b.extract_element(vector, i32(0))


@instruction
def total(_typing: Any, _vector: Any) -> Any:
    """The sum of the lanes, in a fixed tree."""

    def codegen(_context: Any, b: Any, _signature: Any, args: Any) -> Any:
        return _fold(b, args[0], b.fadd)

    return types.float32(F32x16), codegen


@instruction
def highest(_typing: Any, _vector: Any) -> Any:
    """The greatest lane."""

    def codegen(_context: Any, b: Any, _signature: Any, args: Any) -> Any:
        return _fold(b, args[0], lambda x, y: _greater(b, x, y))

    return types.float32(F32x16), codegen


@instruction
def first(_typing: Any, _vector: Any) -> Any:
    """Lane 0."""

    def codegen(_context: Any, b: Any, _signature: Any, args: Any) -> Any:
        return b.extract_element(args[0], i32(0))

    return types.float32(F32x16), codegen


@instruction
def where_between(_typing: Any, _vector: Any, _keys: Any, _low: Any, _high: Any, _otherwise: Any) -> Any:
    """The vector in lanes whose key is from ``low`` to ``high``, both included, the scalar ``otherwise`` in all others."""

    def codegen(_context: Any, b: Any, _signature: Any, args: Any) -> Any:
        vector, keys, low, high, otherwise = args
        low, high, otherwise = (emit.broadcast(b, scalar, LANES) for scalar in (low, high, otherwise))
        inside = b.and_(b.fcmp_ordered(">=", keys, low), b.fcmp_ordered("<=", keys, high))
        return b.select(inside, vector, otherwise)

    return F32x16(F32x16, F32x16, types.float32, types.float32, types.float32), codegen


@instruction
def counting(_typing: Any, _start: Any) -> Any:
    """start, start + 1, ..., start + 15."""

    def codegen(_context: Any, b: Any, _signature: Any, args: Any) -> Any:
        lanes = ir.Constant(V16F, [ir.Constant(f32, float(i)) for i in range(LANES)])
        return b.fadd(emit.broadcast(b, args[0], LANES), lanes)

    return F32x16(types.float32), codegen


@instruction
def exp2(_typing: Any, _vector: Any) -> Any:
    """Two to the power of each lane, within 2 ulp; 0 below 2**-126, never above 2**127. NaN stays NaN.

    x = n + r with |r| <= 1/2; the Taylor polynomial of 2**r to r**7, whose next term is below 2**-27; n goes straight
    into the exponent bits.
    """

    def codegen(_context: Any, b: Any, _signature: Any, args: Any) -> Any:
        return emit_exp2(b, args[0])

    return F32x16(F32x16), codegen


def emit_exp2(b: Any, x: Any) -> Any:
    """The IR of `exp2`, for other code generators."""
    lowest, highest_power = emit.constant(V16F, EXP2_LOWEST), emit.constant(V16F, EXP2_HIGHEST)
    bounded = b.select(b.fcmp_ordered(">", x, highest_power), highest_power, x)
    whole = emit.call(b, "llvm.nearbyint.v16f32", V16F, [bounded])
    rest = b.fsub(bounded, whole)
    power = emit.constant(V16F, EXP2_TERMS[-1])
    for term in reversed(EXP2_TERMS[:-1]):
        power = emit.fma(b, power, rest, emit.constant(V16F, term))
    exponent = b.shl(b.fptosi(whole, V16I), emit.constant(V16I, 23))
    scaled = b.bitcast(b.add(b.bitcast(power, V16I), exponent), V16F)
    return b.select(b.fcmp_ordered("<", x, lowest), emit.constant(V16F, 0.0), scaled)
