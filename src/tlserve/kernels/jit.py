"""Compiling: typed wrappers around numba, whose decorators publish no types.

Three kinds of compiled code live in this room. A *helper* (`jit`) is an ordinary compiled function that others call. A
*kernel* (`Kernel`) has the one signature that the thread team can call through its address, and is compiled only when a
model needs it. An *instruction* (`instruction`) emits LLVM IR itself.
All of it releases the GIL, divides without checks (numpy's error model) and is cached on disk (see `cache_dir`).
Invariant: nothing here turns on fastmath; a sum is added up in the order in which it is written.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar, cast

from attrs import frozen
from numba import cfunc, config, njit, types
from numba.extending import intrinsic

from tlserve.kernels.cache_dir import compile_cache_directory

# Before any function is compiled: numba asks for its cache directory then.
_settings: Any = config
_settings.CACHE_DIR = str(compile_cache_directory())


def cache_directory() -> str:
    """Where compiled code goes, and is looked for."""
    return str(_settings.CACHE_DIR)


P = ParamSpec("P")
R = TypeVar("R")

_numba: Any = types
_RECORD = _numba.CPointer(types.int64)

KERNEL_SIGNATURE = _numba.void(_RECORD, _RECORD, types.int64, types.int64)
"""kernel(op, step, tile, member): the operation's record, the step's numbers, which tile of the work to do, and which
member of the team does it."""


def jit(function: Callable[P, R]) -> Callable[P, R]:
    """Compile a function that other compiled functions, or Python, call."""
    return cast("Callable[P, R]", njit(nogil=True, cache=True, error_model="numpy")(function))


def inline(function: Callable[P, R]) -> Callable[P, R]:
    """Compile a function into its caller, so that constant arguments stay constants."""
    return cast("Callable[P, R]", njit(nogil=True, error_model="numpy", inline="always")(function))


def instruction(function: Callable[..., Any]) -> Callable[..., Any]:
    """Mark a function that returns (signature, code generator): a few machine instructions under a Python name."""
    return cast("Callable[..., Any]", intrinsic(prefer_literal=True)(function))


@frozen(eq=False)
class Kernel:
    """A compiled function that the team calls by address; see `KERNEL_SIGNATURE`.

    Attributes:
        function: its Python source.

    """

    function: Callable[[Any, Any, int, int], None]

    @property
    def name(self) -> str:
        """The function's name, for progress reports."""
        return self.function.__name__

    def compile(self) -> CompiledKernel:
        """Compile it, or load it from the cache on disk: seconds, or milliseconds."""
        return CompiledKernel(cfunc(KERNEL_SIGNATURE, cache=True, error_model="numpy")(self.function))


@frozen(eq=False)
class CompiledKernel:
    """Machine code; it lives as long as this object."""

    code: Any

    @property
    def address(self) -> int:
        """Where the code begins."""
        return int(self.code.address)
