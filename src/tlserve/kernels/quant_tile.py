"""Integer tiles: sixteen output rows of 4- or 8-bit weights times up to eight tokens.

A *record* holds one group of 32 inputs for 16 output rows (a *block*), in the order in which it is used:

    weights   4 x 64 bytes (4-bit) or 8 x 64 bytes (8-bit)
    scales    16 x float16 or float32
    minimums  16 x float16 or float32; or none; or the scales of the group's second half

Each 64-byte vector has 32 lanes of 16 bits, two for each row: inputs 2p and 2p + 1. A lane holds four nibbles (or two
signed bytes), those of pairs p, p + 1, .., so a shift and a mask yield sixteen rows x two inputs, ready for the
multiply-add of 16-bit pairs (vpmaddwd, or vpdpwssd, which adds to the sum too) against a broadcast pair of activations.
Activations are int16 with one scale per group, so the sum of a group is exact in int32: 32 * 32767 * 128 < 2**31. Per group
follow one conversion and two FMAs:

    y[row] += sum(w x) * (scale[row] * x_scale) + minimum[row] * x_sum,    x_sum = x_scale * sum(x)

Invariant: an output element sees the same operations in the same order whatever the number of tokens in the tile and
whatever the vector length; tiles decide only who shares a load.
"""

# ruff: noqa: PLR0917  compiled code calls by position

from __future__ import annotations

from typing import Any

from attrs import frozen
from llvmlite import ir
from numba import types

from tlserve.kernels import emit
from tlserve.kernels.emit import f16, f32, i16, i32, i64
from tlserve.kernels.jit import instruction
from tlserve.kernels.target import Level, level_of

GROUP = 32
BLOCK = 16
SCALES_ONLY, WITH_MINIMUMS, TWO_SCALES = range(3)
"""What follows the weights of a record."""

PREFETCH_BYTES = 2560
"""How far ahead a tile asks for weights: beyond what the hardware prefetcher carries across a page."""


@frozen
class Format:
    """How a record lies in memory.

    Attributes:
        bits: 4 (unsigned) or 8 (signed).
        half: scales and minimums are float16, because float16 holds the file's values exactly.
        minimums: whether there are any.
        halves: whether each half of a group has a scale of its own (Q6_K); such a format has no minimums.

    """

    bits: int
    half: bool
    minimums: bool
    halves: bool = False

    @property
    def factors(self) -> int:
        """What follows the weights, as the kernels' constants say it."""
        return TWO_SCALES if self.halves else (WITH_MINIMUMS if self.minimums else SCALES_ONLY)

    @property
    def num_vectors(self) -> int:
        """64-byte vectors of weights in a record."""
        return self.bits

    @property
    def weight_bytes(self) -> int:
        """Bytes of weights in a record."""
        return 64 * self.bits

    @property
    def scale_bytes(self) -> int:
        """Bytes of one scale."""
        return 2 if self.half else 4

    @property
    def record_bytes(self) -> int:
        """Bytes of a record."""
        return self.weight_bytes + BLOCK * self.scale_bytes * (2 if self.minimums or self.halves else 1)


@frozen
class Lanes:
    """How wide this machine's integer tiles are.

    Attributes:
        rows: rows per vector: 16 (zmm) or 8 (ymm).
        tokens: tokens per tile; more would spill registers.
        constraint: the assembler's letter for a vector register, which ties the sums of a tile to their place; none where LLVM
            schedules well by itself.

    """

    rows: int
    tokens: int
    constraint: str | None


LANES: dict[Level, Lanes] = {
    "avx512vnni": Lanes(16, 8, None),
    "avx512": Lanes(16, 8, "v"),
    "avx2": Lanes(8, 4, "x"),
    "portable": Lanes(8, 4, None),
}


@instruction
def quant_tile(
    _typing: Any,
    bits: Any,
    half: Any,
    factors: Any,
    tokens: Any,
    _records: Any,
    _groups: Any,
    _x: Any,
    _x_scales: Any,
    _y: Any,
    _y_stride: Any,
    _addend: Any,
    _addend_stride: Any,
) -> Any:
    """Compute y[token, 0:16] = addend[token, 0:16] + x[token] . w[0:16] for ``tokens`` consecutive tokens.

    bits, half (0 or 1), factors (see `SCALES_ONLY`) and tokens are constants. Addresses: records of one block [groups]; x int16 [tokens,
    groups * 32]; x_scales float32 [tokens, 2, groups] (scales, then sums); y and addend float32 rows, whose strides are in
    bytes.
    """
    if not all(isinstance(kind, types.IntegerLiteral) for kind in (bits, half, factors, tokens)):
        return None
    form = Format(
        bits=bits.literal_value,
        half=bool(half.literal_value),
        minimums=factors.literal_value == WITH_MINIMUMS,
        halves=factors.literal_value == TWO_SCALES,
    )
    count = tokens.literal_value

    def codegen(context: Any, b: Any, _signature: Any, args: Any) -> Any:
        level = level_of(context)
        step = min(count, LANES[level].tokens)
        for first in range(0, count, step):
            _Tile(b, form, level, step, first, args[4:]).emit()
        return context.get_dummy_value()

    return types.void(bits, half, factors, tokens, *([types.int64] * 8)), codegen


def accumulate(b: Any, level: Level, before: Any, x: Any, y: Any) -> Any:
    """before[i] + x[2i] * y[2i] + x[2i + 1] * y[2i + 1] in int32, of two vectors of int16; ``before`` None: zeros."""
    if level == "avx512vnni":
        kind = ir.VectorType(i32, x.type.count // 2)
        start = emit.constant(kind, 0) if before is None else before
        return emit.call(b, "llvm.x86.avx512.vpdpwssd.512", kind, [start, b.bitcast(x, kind), b.bitcast(y, kind)])
    product = _products(b, level, x, y)
    return product if before is None else b.add(before, product)


def _products(b: Any, level: Level, x: Any, y: Any) -> Any:
    """x[2i] * y[2i] + x[2i + 1] * y[2i + 1] in int32."""
    rows = x.type.count // 2
    kind = ir.VectorType(i32, rows)
    if level == "avx512":
        return emit.call(b, "llvm.x86.avx512.pmaddw.d.512", kind, [x, y])
    if level == "avx2":
        return emit.call(b, "llvm.x86.avx2.pmadd.wd", kind, [x, y])
    products = []
    for parity in (0, 1):
        chosen = list(range(parity, 2 * rows, 2))
        products.append(b.mul(*(b.sext(emit.lanes(b, vector, chosen), kind) for vector in (x, y))))
    return b.add(*products)


class _Tile:
    """The IR of one tile of ``tokens`` tokens from token ``first`` on."""

    def __init__(self, b: Any, form: Format, level: Level, tokens: int, first: int, args: Any) -> None:
        self.b, self.form, self.level, self.tokens = b, form, level, tokens
        self.lanes = LANES[level]
        self.records, self.groups, x, x_scales, y, self.y_stride, addend, self.addend_stride = args
        token = [i64(first + t) for t in range(tokens)]
        x_stride, scale_stride = emit.times(b, self.groups, 2 * GROUP), emit.times(b, self.groups, 8)
        # Known to be equally far apart, they would be computed one from the other, load after load: a chain that takes longer than
        # the products.
        self.x = [emit.pinned(b, emit.offset(b, x, b.mul(x_stride, t)), "r") for t in token]
        self.x_scales = [emit.offset(b, x_scales, b.mul(scale_stride, t)) for t in token]
        self.y = [emit.offset(b, y, b.mul(self.y_stride, t)) for t in token]
        self.addend = [emit.offset(b, addend, b.mul(self.addend_stride, t)) for t in token]
        self.parts = range(BLOCK // self.lanes.rows)
        self.float_kind = ir.VectorType(f32, self.lanes.rows)
        self.short_kind = ir.VectorType(i16, 2 * self.lanes.rows)
        self.cells = [(part, t) for part in self.parts for t in range(tokens)]

    def emit(self) -> None:
        """The loop over groups, then the stores."""
        b = self.b
        loop = emit.Loop(b, self.groups, [emit.constant(self.float_kind, 0.0) for _ in self.cells])
        record = emit.offset(b, self.records, emit.times(b, loop.index, self.form.record_bytes))
        self._prefetch(record)
        totals = loop.close(self._next(record, loop.index, dict(zip(self.cells, loop.carried, strict=True))))
        for (part, t), value in zip(self.cells, totals, strict=True):
            place = i64(4 * self.lanes.rows * part)
            before = emit.load(b, b.add(self.addend[t], place), self.float_kind)
            emit.store(b, b.add(self.y[t], place), b.fadd(before, value))

    def _prefetch(self, record: Any) -> None:
        for line in range(0, self.form.record_bytes, 64):
            emit.prefetch(self.b, emit.offset(self.b, record, PREFETCH_BYTES + line), locality=3)

    def _integer_sums(self, record: Any, x_offset: Any, vectors: range) -> dict[tuple[int, int], Any]:
        """The exact int32 sums of a group's (or half a group's) vectors, per (part, token)."""
        b = self.b
        sums: dict[tuple[int, int], Any] = {}
        fields = 16 // self.form.bits
        x = [b.add(address, x_offset) for address in self.x]
        for vector in vectors:
            packed = [
                emit.load(b, emit.offset(b, record, 64 * vector + 4 * self.lanes.rows * part), self.short_kind)
                for part in self.parts
            ]
            for field in range(fields):
                weights = [self._unpacked(lanes, field) for lanes in packed]
                for t in range(self.tokens):
                    pair = emit.load(b, emit.offset(b, x[t], 4 * (fields * vector + field)), i32)
                    activations = b.bitcast(emit.broadcast(b, pair, self.lanes.rows), self.short_kind)
                    for part in self.parts:
                        sums[part, t] = accumulate(b, self.level, sums.get((part, t)), weights[part], activations)
            if self.lanes.constraint and len(self.cells) > 1:
                sums = {cell: emit.pinned(b, value, self.lanes.constraint) for cell, value in sums.items()}
        return sums

    def _unpacked(self, packed: Any, field: int) -> Any:
        """Nibble ``field`` (unsigned) or byte ``field`` (signed) of every 16-bit lane."""
        b, kind = self.b, self.short_kind
        if self.form.bits == 4:
            shifted = b.lshr(packed, emit.constant(kind, 4 * field)) if field else packed
            return b.and_(shifted, emit.constant(kind, 15)) if field < 3 else shifted
        shifted = packed if field else b.shl(packed, emit.constant(kind, 8))
        return b.ashr(shifted, emit.constant(kind, 8))

    def _next(self, record: Any, group: Any, running: dict[tuple[int, int], Any]) -> list[Any]:
        """The running float sums with this group's contribution."""
        b, count = self.b, self.form.num_vectors
        x_offset, scale_place = emit.times(b, group, 2 * GROUP), emit.times(b, group, 4)
        pieces = (range(count // 2), range(count // 2, count)) if self.form.halves else (range(count),)
        for which, vectors in enumerate(pieces):
            for cell, exact in self._integer_sums(record, x_offset, vectors).items():
                part, t = cell
                x_scale = self._broadcast(b.add(self.x_scales[t], scale_place))
                scale = b.fmul(self._factors(record, part, which), x_scale)
                running[cell] = emit.fma(b, b.sitofp(exact, self.float_kind), scale, running[cell])
        if self.form.minimums:
            sum_place = b.add(scale_place, emit.times(b, self.groups, 4))
            for part, t in self.cells:
                x_sum = self._broadcast(b.add(self.x_scales[t], sum_place))
                running[part, t] = emit.fma(b, self._factors(record, part, 1), x_sum, running[part, t])
        return [running[cell] for cell in self.cells]

    def _broadcast(self, address: Any) -> Any:
        return emit.broadcast(self.b, emit.load(self.b, address, f32), self.lanes.rows)

    def _factors(self, record: Any, part: int, which: int) -> Any:
        """The first (0) or second (1) factors of one part's rows."""
        size = self.form.scale_bytes
        place = self.form.weight_bytes + size * (BLOCK * which + self.lanes.rows * part)
        address = emit.offset(self.b, record, place)
        if not self.form.half:
            return emit.load(self.b, address, self.float_kind)
        return self.b.fpext(emit.load(self.b, address, ir.VectorType(f16, self.lanes.rows)), self.float_kind)
