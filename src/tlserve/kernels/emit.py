"""Words of LLVM IR that every code generator of this room needs.

Knows llvmlite only; which instructions exist as Python functions is said in `simd`, `atomics` and the tiles.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.core.cgutils import get_or_insert_function

f16, f32 = ir.HalfType(), ir.FloatType()
i8, i16, i32, i64 = ir.IntType(8), ir.IntType(16), ir.IntType(32), ir.IntType(64)


declare: Any = get_or_insert_function
"""declare(module, type, name): a function of the module, declared if it is not yet."""


def pointer(builder: Any, address: Any, kind: Any) -> Any:
    """The int64 address as a pointer to ``kind``."""
    return builder.inttoptr(address, kind.as_pointer())


def offset(builder: Any, address: Any, *terms: Any) -> Any:
    """The address plus all terms, which are int64 values or Python numbers."""
    for term in terms:
        address = builder.add(address, i64(term) if isinstance(term, int) else term)
    return address


def times(builder: Any, value: Any, factor: int) -> Any:
    """An int64 value times a Python number."""
    return builder.mul(value, i64(factor))


def load(builder: Any, address: Any, kind: Any) -> Any:
    """Load a scalar or a vector, aligned or not."""
    return builder.load(pointer(builder, address, kind), align=1)


def store(builder: Any, address: Any, value: Any) -> None:
    """Store a scalar or a vector, aligned or not."""
    builder.store(value, pointer(builder, address, value.type), align=1)


def constant(kind: Any, value: float) -> Any:
    """A vector with the same constant in every lane."""
    return ir.Constant(kind, [ir.Constant(kind.element, value)] * kind.count)


def broadcast(builder: Any, value: Any, count: int) -> Any:
    """A scalar in every one of ``count`` lanes."""
    kind = ir.VectorType(value.type, count)
    undefined = ir.Constant(kind, ir.Undefined)
    lanes = ir.Constant(ir.VectorType(i32, count), [i32(0)] * count)
    return builder.shuffle_vector(builder.insert_element(undefined, value, i32(0)), undefined, lanes)


def lanes(builder: Any, vector: Any, indices: list[int]) -> Any:
    """The chosen lanes of a vector as a new one."""
    chosen = ir.Constant(ir.VectorType(i32, len(indices)), [i32(i) for i in indices])
    return builder.shuffle_vector(vector, ir.Constant(vector.type, ir.Undefined), chosen)


def call(builder: Any, name: str, result: Any, arguments: list[Any]) -> Any:
    """Call an LLVM intrinsic by its mangled name."""
    kind = ir.FunctionType(result, [argument.type for argument in arguments])
    return builder.call(declare(builder.module, kind, name), arguments)


def fma(builder: Any, a: Any, b: Any, c: Any) -> Any:
    """Multiply a by b and add c, rounding once; vectors of any length."""
    return call(builder, f"llvm.fma.v{a.type.count}f32", a.type, [a, b, c])


def prefetch(builder: Any, address: Any, *, locality: int) -> None:
    """Ask for a cache line to be read; locality 3: into the nearest cache, 2: into the second."""
    kind = ir.FunctionType(ir.VoidType(), [i8.as_pointer(), i32, i32, i32])
    function = declare(builder.module, kind, "llvm.prefetch.p0")
    builder.call(function, [pointer(builder, address, i8), i32(0), i32(locality), i32(1)])


def pinned(builder: Any, value: Any, constraint: str) -> Any:
    """The same value, computed here and now: an empty assembler statement that the optimiser cannot look into.

    Without it LLVM hoists every unpacked weight of a tile to its top and spills them. ``constraint`` is the assembler's letter
    for a register: r, or x or v for vectors.
    """
    kind = ir.FunctionType(value.type, [value.type])
    return builder.asm(kind, "", f"={constraint},0", [value], side_effect=True)


class Loop:
    """A counted loop of IR: ``for index in range(count)`` with values carried round; count must be at least 1.

    Use: ``loop = Loop(b, count, initial)``, emit the body with loop.index and loop.carried, then ``loop.close(next)``,
    which returns the final values.
    """

    def __init__(self, builder: Any, count: Any, initial: list[Any]) -> None:
        self.builder, self.count = builder, count
        before, function = builder.block, builder.function
        self.body, self.after = function.append_basic_block("loop"), function.append_basic_block("done")
        builder.branch(self.body)
        builder.position_at_end(self.body)
        self.index = builder.phi(i64)
        self.index.add_incoming(i64(0), before)
        self.carried = []
        for value in initial:
            phi = builder.phi(value.type)
            phi.add_incoming(value, before)
            self.carried.append(phi)

    def close(self, values: list[Any]) -> list[Any]:
        """End the body; ``values`` are carried into the next round, or out of the loop."""
        builder = self.builder
        following = builder.add(self.index, i64(1))
        self.index.add_incoming(following, builder.block)
        for phi, value in zip(self.carried, values, strict=True):
            phi.add_incoming(value, builder.block)
        builder.cbranch(builder.icmp_signed("<", following, self.count), self.body, self.after)
        builder.position_at_end(self.after)
        return values
