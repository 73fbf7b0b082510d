"""Reads the head of a GGUF file: its metadata and its table of tensors, over a memory map.

Leaves the meaning of keys and names to `gguf_model`, and the values to `tensor`. The ``gguf`` package's own reader
takes two seconds for a vocabulary of fifty thousand and trusts the file; this one takes 30 ms. Nothing is believed:
every count, length and offset is compared with the bytes that are left before anything is built from it.
Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

import math
import mmap
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NoReturn

import numpy as np
import numpy.typing as npt
from attrs import define, field, frozen
from gguf.constants import GGMLQuantizationType

from tlserve.errors import CheckpointError, UnsupportedModelError
from tlserve.weights.mapping import map_file
from tlserve.weights.tensor import BLOCK_FORMATS, TENSOR_TYPES, Tensor

MAGIC: Final = b"GGUF"
VERSIONS: Final = (2, 3)
"""Version 1 had 32-bit lengths; 2 and 3 read alike."""

MAX_DIMENSIONS: Final = 4
DEFAULT_ALIGNMENT: Final = 32
MIN_PAIR_BYTES: Final = 8 + 4 + 1  # length of the key, type of the value, the shortest value
MIN_TENSOR_BYTES: Final = 8 + 4 + 8 + 4 + 8  # length of the name, dimension count, one dimension, type, offset

U32: Final = struct.Struct("<I")
U64: Final = struct.Struct("<Q")

STRING: Final = 8
ARRAY: Final = 9
BOOL: Final = 7
SCALARS: Final[Mapping[int, np.dtype[np.generic]]] = {
    0: np.dtype("<u1"),
    1: np.dtype("<i1"),
    2: np.dtype("<u2"),
    3: np.dtype("<i2"),
    4: np.dtype("<u4"),
    5: np.dtype("<i4"),
    6: np.dtype("<f4"),
    BOOL: np.dtype("<u1"),
    10: np.dtype("<u8"),
    11: np.dtype("<i8"),
    12: np.dtype("<f8"),
}
"""Value types of GGUF other than strings and arrays."""


@frozen(kw_only=True, eq=False)
class GgufFile:
    """A file's head.

    Attributes:
        path: where it was read from.
        metadata: key to int, float, bool or str; an array is a tuple of str, or a read-only numpy array of numbers.
        tensors: the file's own names (``blk.0.attn_q.weight``) to tensors over the mapped file.
    """

    path: Path
    metadata: Mapping[str, object] = field(repr=False)
    tensors: Mapping[str, Tensor] = field(repr=False)


@frozen
class _Entry:
    """One line of the tensor table; ``offset`` counts from the start of the data."""

    name: str
    shape: tuple[int, ...]
    type_name: str
    offset: int
    num_bytes: int


def read_gguf(path: Path) -> GgufFile:
    """Map a file and read its head.

    Raises:
        CheckpointError: it cannot be read, is not GGUF, is cut short, or contradicts itself.
        UnsupportedModelError: a version, byte order or tensor type that is not served.
    """
    data = map_file(path)
    cursor = _Cursor(path, data)
    num_tensors, num_pairs = _read_preamble(cursor)
    metadata = _read_metadata(cursor, num_pairs)
    entries = _read_table(cursor, num_tensors)
    start = _data_start(cursor, metadata)
    _check_extents(path, entries, start=start, file_size=len(data))
    content = np.frombuffer(data, dtype=np.uint8)
    return GgufFile(path=path, metadata=metadata, tensors={e.name: _tensor(e, content[start:]) for e in entries})


@define(eq=False)
class _Cursor:
    """A position in the mapped file that never passes its end."""

    path: Path
    data: mmap.mmap
    position: int = 0

    def fail(self, problem: str) -> NoReturn:
        message = (
            f"{self.path}: {problem} (at byte {self.position} of {len(self.data)}); the file is damaged or cut short"
        )
        raise CheckpointError(message)

    @property
    def left(self) -> int:
        return len(self.data) - self.position

    def need(self, count: int, each: int, what: str) -> None:
        """Refuse ``count`` things of at least ``each`` bytes that the rest of the file cannot hold."""
        if count * each > self.left:
            self.fail(f"{what}: {count} x {each} bytes announced, {self.left} left")

    def take(self, num_bytes: int, what: str) -> bytes:
        self.need(num_bytes, 1, what)
        start = self.position
        self.position += num_bytes
        return self.data[start : self.position]

    def u32(self, what: str) -> int:
        return int(U32.unpack(self.take(4, what))[0])

    def u64(self, what: str) -> int:
        return int(U64.unpack(self.take(8, what))[0])

    def string(self, what: str) -> str:
        return self.strings(1, what)[0]

    def strings(self, count: int, what: str) -> tuple[str, ...]:
        """So many strings in a row; the loop that a vocabulary of 256k entries goes through."""
        self.need(count, 8, what)
        data, end, position = self.data, len(self.data), self.position
        unpack = U64.unpack_from
        texts: list[str] = []
        try:
            for _ in range(count):
                start = position + 8
                position = start + unpack(data, position)[0]
                if position > end:
                    self.fail(f"{what}: a string of {position - start} bytes, {end - start} left")
                texts.append(data[start:position].decode())
        except struct.error:
            self.fail(f"{what}: the file ends within {count} strings")
        except UnicodeDecodeError as error:
            self.fail(f"{what}: string {len(texts)} is not UTF-8 ({error.reason})")
        self.position = position
        return tuple(texts)


def _read_preamble(cursor: _Cursor) -> tuple[int, int]:
    """Magic and version; returns the numbers of tensors and of metadata pairs."""
    magic = bytes(cursor.data[:4])
    if magic != MAGIC:
        raise CheckpointError(f"{cursor.path}: not a GGUF file: it starts with {magic!r} instead of {MAGIC!r}")
    cursor.position = 4
    version = cursor.u32("version")
    if version not in VERSIONS:
        swapped = int.from_bytes(version.to_bytes(4, "little"), "big")
        problem = "a big-endian file" if swapped in VERSIONS else f"version {version}"
        raise UnsupportedModelError(f"{cursor.path}: {problem}; tlserve reads little-endian GGUF of versions 2 and 3")
    num_tensors, num_pairs = cursor.u64("tensor count"), cursor.u64("metadata count")
    cursor.need(num_pairs, MIN_PAIR_BYTES, "metadata pairs")
    cursor.need(num_tensors, MIN_TENSOR_BYTES, "tensor table")
    return num_tensors, num_pairs


def _read_metadata(cursor: _Cursor, num_pairs: int) -> dict[str, object]:
    metadata: dict[str, object] = {}
    for _ in range(num_pairs):
        key = cursor.string("metadata key")
        if key in metadata:
            cursor.fail(f"metadata key {key!r} appears twice")
        metadata[key] = _read_value(cursor, key)
    return metadata


def _read_value(cursor: _Cursor, key: str) -> object:
    kind = cursor.u32(key)
    if kind == STRING:
        return cursor.string(key)
    if kind == ARRAY:
        return _read_array(cursor, key)
    value = _numbers(cursor, kind, 1, key)[0].item()
    return bool(value) if kind == BOOL else value


def _read_array(cursor: _Cursor, key: str) -> object:
    kind, count = cursor.u32(key), cursor.u64(key)
    if kind == STRING:
        return cursor.strings(count, key)
    if kind == ARRAY:
        cursor.fail(f"{key}: an array of arrays, which no served model has")
    return _numbers(cursor, kind, count, key)


def _numbers(cursor: _Cursor, kind: int, count: int, what: str) -> npt.NDArray[np.generic]:
    if kind not in SCALARS:
        cursor.fail(f"{what}: unknown value type {kind}")
    dtype = SCALARS[kind]
    cursor.need(count, dtype.itemsize, what)
    return np.frombuffer(cursor.take(count * dtype.itemsize, what), dtype)


def _read_table(cursor: _Cursor, num_tensors: int) -> list[_Entry]:
    entries: dict[str, _Entry] = {}
    for _ in range(num_tensors):
        entry = _read_entry(cursor)
        if entry.name in entries:
            cursor.fail(f"tensor {entry.name!r} appears twice")
        entries[entry.name] = entry
    return list(entries.values())


def _read_entry(cursor: _Cursor) -> _Entry:
    name = cursor.string("tensor name")
    rank = cursor.u32(name)
    if not 1 <= rank <= MAX_DIMENSIONS:
        cursor.fail(f"tensor {name!r}: {rank} dimensions, allowed are 1 to {MAX_DIMENSIONS}")
    shape = tuple(cursor.u64(name) for _ in range(rank))[::-1]  # the file counts the fastest dimension first
    type_name = _type_name(cursor.path, name, cursor.u32(name))
    return _Entry(name, shape, type_name, cursor.u64(name), _num_bytes(cursor, name, shape, type_name))


def _type_name(path: Path, tensor: str, code: int) -> str:
    known = {int(kind): kind.name for kind in GGMLQuantizationType}
    name = known.get(code, f"number {code}")
    if name not in BLOCK_FORMATS:
        raise UnsupportedModelError(f"{path}: tensor {tensor!r} has type {name}; served are {', '.join(TENSOR_TYPES)}")
    return name


def _num_bytes(cursor: _Cursor, name: str, shape: tuple[int, ...], type_name: str) -> int:
    layout = BLOCK_FORMATS[type_name]
    if min(shape) < 1:
        cursor.fail(f"tensor {name!r}: shape {shape} has an empty dimension")
    if shape[-1] % layout.elements:
        cursor.fail(
            f"tensor {name!r}: rows of {shape[-1]} elements do not fill {type_name} blocks of {layout.elements}"
        )
    return math.prod(shape) // layout.elements * layout.num_bytes


def _data_start(cursor: _Cursor, metadata: Mapping[str, object]) -> int:
    alignment = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
    if not isinstance(alignment, int) or alignment < 1 or alignment & (alignment - 1):
        cursor.fail(f"general.alignment is {alignment!r}, it must be a power of two")
    return -(-cursor.position // alignment) * alignment


def _check_extents(path: Path, entries: list[_Entry], *, start: int, file_size: int) -> None:
    """Every tensor lies within the file, and no two share a byte."""
    taken = 0
    for entry in sorted(entries, key=lambda e: e.offset):
        if entry.offset < taken:
            raise CheckpointError(f"{path}: tensor {entry.name!r} overlaps the one before it; the file is damaged")
        taken = entry.offset + entry.num_bytes
        if start + taken > file_size:
            problem = f"tensor {entry.name!r} {entry.shape} {entry.type_name} ends at byte {start + taken}"
            raise CheckpointError(f"{path}: {problem} but the file has {file_size}; it is damaged or cut short")


def _tensor(entry: _Entry, content: npt.NDArray[np.uint8]) -> Tensor:
    data = content[entry.offset : entry.offset + entry.num_bytes]
    return Tensor(
        name=entry.name, shape=entry.shape, type_name=entry.type_name, blocks=data.reshape(*entry.shape[:-1], -1)
    )
