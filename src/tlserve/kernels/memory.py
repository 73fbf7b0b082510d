"""Scalars at addresses, for the parts of kernels that are not vectors."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types

from tlserve.kernels import emit
from tlserve.kernels.emit import f32, i8, i16, i32
from tlserve.kernels.jit import instruction, jit

HALF_TO_SINGLE = np.float32(2.0**112)
"""Makes up for the different exponent biases, 15 and 127."""


@instruction
def get_f32(_typing: Any, _address: Any) -> Any:
    """A float32."""

    def codegen(_context: Any, b: Any, _signature: Any, args: Any) -> Any:
        return emit.load(b, args[0], f32)

    return types.float32(types.int64), codegen


@instruction
def get_i32(_typing: Any, _address: Any) -> Any:
    """An int32 as int64."""

    def codegen(_context: Any, b: Any, _signature: Any, args: Any) -> Any:
        return b.sext(emit.load(b, args[0], i32), emit.i64)

    return types.int64(types.int64), codegen


@instruction
def get_u16(_typing: Any, _address: Any) -> Any:
    """Sixteen bits as int64, without sign."""

    def codegen(_context: Any, b: Any, _signature: Any, args: Any) -> Any:
        return b.zext(emit.load(b, args[0], i16), emit.i64)

    return types.int64(types.int64), codegen


@instruction
def get_u8(_typing: Any, _address: Any) -> Any:
    """A byte as int64, without sign."""

    def codegen(_context: Any, b: Any, _signature: Any, args: Any) -> Any:
        return b.zext(emit.load(b, args[0], i8), emit.i64)

    return types.int64(types.int64), codegen


@instruction
def put_f32(_typing: Any, _address: Any, _value: Any) -> Any:
    """Store a float32."""

    def codegen(context: Any, b: Any, _signature: Any, args: Any) -> Any:
        emit.store(b, args[0], args[1])
        return context.get_dummy_value()

    return types.void(types.int64, types.float32), codegen


@instruction
def put_i16(_typing: Any, _address: Any, _value: Any) -> Any:
    """Store the low sixteen bits of an int64."""

    def codegen(context: Any, b: Any, _signature: Any, args: Any) -> Any:
        emit.store(b, args[0], b.trunc(args[1], i16))
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), codegen


@instruction
def float_of_bits(_typing: Any, _bits: Any) -> Any:
    """The float32 whose bits are the low half of an int64."""

    def codegen(_context: Any, b: Any, _signature: Any, args: Any) -> Any:
        return b.bitcast(b.trunc(args[0], i32), f32)

    return types.float32(types.int64), codegen


@jit
def get_f16(address: int) -> np.float32:
    """A finite float16 as float32, by its bits: a fast instruction for it is not on every processor."""
    bits = get_u16(address)
    return np.float32(float_of_bits((bits & 0x8000) << 16 | (bits & 0x7FFF) << 13) * HALF_TO_SINGLE)


@instruction
def prefetch(_typing: Any, _address: Any) -> Any:
    """Ask for the cache line at an address, which need not be valid."""

    def codegen(context: Any, b: Any, _signature: Any, args: Any) -> Any:
        emit.prefetch(b, args[0], locality=2)
        return context.get_dummy_value()

    return types.void(types.int64), codegen
