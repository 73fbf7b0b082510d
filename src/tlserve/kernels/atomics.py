"""Words that several threads share, and the ways to wait for them.

Atomic operations on int64 words by address, all sequentially consistent; a polite spin; Linux's futex, which sleeps
until a word changes. What the words mean is `team`'s business.
"""

from __future__ import annotations

import platform
import sys
from typing import Any

from llvmlite import ir
from numba import types

from tlserve.kernels import emit
from tlserve.kernels.emit import i64
from tlserve.kernels.jit import instruction, jit

_FUTEX_CALLS = {"x86_64": 202, "aarch64": 98, "AMD64": 202}
FUTEX_CALL = _FUTEX_CALLS.get(platform.machine(), 0)
"""The system call's number on this processor."""

CAN_SLEEP = sys.platform == "linux" and FUTEX_CALL > 0
"""Whether threads can wait for a word here; elsewhere a team has one member."""

FUTEX_WAIT_PRIVATE = 128
FUTEX_WAKE_PRIVATE = 129

_ON_X86 = platform.machine() in ("x86_64", "AMD64")

_word: Any = types.int64
_syscall: Any = types.ExternalFunction("syscall", _word(*([_word] * 7)))


@instruction
def read(_typing: Any, _address: Any) -> Any:
    """The word at an address."""

    def codegen(_context: Any, b: Any, _signature: Any, args: Any) -> Any:
        return b.load_atomic(emit.pointer(b, args[0], i64), "seq_cst", 8)

    return types.int64(types.int64), codegen


@instruction
def write(_typing: Any, _address: Any, _value: Any) -> Any:
    """Replace the word at an address."""

    def codegen(context: Any, b: Any, _signature: Any, args: Any) -> Any:
        b.store_atomic(args[1], emit.pointer(b, args[0], i64), "seq_cst", 8)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), codegen


@instruction
def add(_typing: Any, _address: Any, _amount: Any) -> Any:
    """Add to the word at an address; returns what it held before."""

    def codegen(_context: Any, b: Any, _signature: Any, args: Any) -> Any:
        return b.atomic_rmw("add", emit.pointer(b, args[0], i64), args[1], "seq_cst")

    return types.int64(types.int64, types.int64), codegen


@instruction
def swap_if(_typing: Any, _address: Any, _expected: Any, _value: Any) -> Any:
    """Replace the word if it still holds ``expected``; returns whether it did."""

    def codegen(_context: Any, b: Any, _signature: Any, args: Any) -> Any:
        result = b.cmpxchg(emit.pointer(b, args[0], i64), args[1], args[2], "seq_cst", "seq_cst")
        return b.extract_value(result, 1)

    return types.boolean(types.int64, types.int64, types.int64), codegen


@instruction
def pause(_typing: Any) -> Any:
    """Tell the processor that this is a waiting loop."""

    def codegen(context: Any, b: Any, _signature: Any, _args: Any) -> Any:
        if _ON_X86:
            emit.call(b, "llvm.x86.sse2.pause", ir.VoidType(), [])
        return context.get_dummy_value()

    return types.void(), codegen


@instruction
def call_kernel(_typing: Any, _code: Any, _op: Any, _step: Any, _tile: Any, _member: Any) -> Any:
    """Call the kernel whose code begins at an address; see `jit.KERNEL_SIGNATURE`."""

    def codegen(context: Any, b: Any, _signature: Any, args: Any) -> Any:
        code, op, step, tile, member = args
        record = i64.as_pointer()
        kind = ir.FunctionType(ir.VoidType(), [record, record, i64, i64])
        b.call(emit.pointer(b, code, kind), [emit.pointer(b, op, i64), emit.pointer(b, step, i64), tile, member])
        return context.get_dummy_value()

    return types.void(*([types.int64] * 5)), codegen


@jit
def sleep_while(address: int, value: int) -> None:
    """Sleep while the low 32 bits of the word are those of ``value``; may wake for no reason."""
    _syscall(FUTEX_CALL, address, FUTEX_WAIT_PRIVATE, value & 0xFFFFFFFF, 0, 0, 0)


@jit
def wake_all(address: int) -> None:
    """Wake every thread that sleeps on the word."""
    _syscall(FUTEX_CALL, address, FUTEX_WAKE_PRIVATE, 0x7FFFFFFF, 0, 0, 0)
