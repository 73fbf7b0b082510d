"""GGUF files are read whole and right, and a damaged or hostile one is refused before it can do harm."""

from __future__ import annotations

import struct
import time
import tracemalloc
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGUFValueType, GGUFWriter
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tlserve.errors import CheckpointError, UnsupportedModelError
from tlserve.weights.checkpoint import open_checkpoint
from tlserve.weights.gguf import read_gguf

SCALARS: Mapping[GGUFValueType, Any] = {
    GGUFValueType.UINT8: 200,
    GGUFValueType.INT8: -100,
    GGUFValueType.UINT16: 60_000,
    GGUFValueType.INT16: -30_000,
    GGUFValueType.UINT32: 4_000_000_000,
    GGUFValueType.INT32: -2_000_000_000,
    GGUFValueType.FLOAT32: 0.5,
    GGUFValueType.BOOL: True,
    GGUFValueType.STRING: "grüße",
    GGUFValueType.UINT64: 2**63,
    GGUFValueType.INT64: -(2**62),
    GGUFValueType.FLOAT64: 0.1,
}


def string(text: str | bytes) -> bytes:
    data = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(data)) + data


def u32_pair(key: str, value: int) -> bytes:
    return string(key) + struct.pack("<II", 4, value)


def entry(name: str, dims: tuple[int, ...] = (4,), kind: int = 0, offset: int = 0) -> bytes:
    return string(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, kind, offset)


def header(tensors: int = 0, pairs: int = 0, *, magic: bytes = b"GGUF", version: int = 3) -> bytes:
    return magic + struct.pack("<IQQ", version, tensors, pairs)


HOSTILE: Mapping[str, tuple[bytes, str]] = {
    "not gguf": (b"PK\x03\x04 and so on", "not a GGUF file"),
    "three bytes": (b"GGU", "not a GGUF file"),
    "only the magic": (b"GGUF", "version"),
    "half a preamble": (header()[:17], "metadata count"),
    "pairs beyond the file": (header(pairs=2**63), "metadata pairs"),
    "tensors beyond the file": (header(tensors=2**40), "tensor table"),
    "key longer than the file": (header(pairs=1) + struct.pack("<Q", 2**62) + bytes(99), "metadata key"),
    "key not utf-8": (header(pairs=1) + string(b"\xff\xfe") + bytes(99), "not UTF-8"),
    "unknown value type": (header(pairs=1) + string("k") + struct.pack("<II", 77, 1), "unknown value type 77"),
    "huge array": (header(pairs=1) + string("k") + struct.pack("<IIQ", 9, 4, 2**61), "k: 2305843009213693952 x 4"),
    "huge array of strings": (
        header(pairs=1) + string("k") + struct.pack("<IIQ", 9, 8, 2**61),
        "2305843009213693952 x 8",
    ),
    "array of arrays": (header(pairs=1) + string("k") + struct.pack("<IIQ", 9, 9, 1) + bytes(99), "array of arrays"),
    "strings cut short": (
        header(pairs=1) + string("k") + struct.pack("<IIQ", 9, 8, 3) + string("longer than what is left") + bytes(7),
        "ends within 3 strings",
    ),
    "key twice": (header(pairs=2) + u32_pair("k", 1) * 2, "'k' appears twice"),
    "no dimensions": (header(tensors=1) + entry("t", ()) + bytes(64), "0 dimensions"),
    "five dimensions": (header(tensors=1) + entry("t", (1, 1, 1, 1, 1)) + bytes(64), "5 dimensions"),
    "empty dimension": (header(tensors=1) + entry("t", (4, 0)) + bytes(64), "empty dimension"),
    "dimensions that overflow": (header(tensors=1) + entry("t", (2**33, 2**33)) + bytes(64), "ends at byte"),
    "broken blocks": (header(tensors=1) + entry("t", (33,), 2) + bytes(64), "do not fill Q4_0 blocks of 32"),
    "offset beyond the file": (header(tensors=1) + entry("t", offset=2**62) + bytes(64), "ends at byte"),
    "data cut short": (header(tensors=1) + entry("t", (64,)) + bytes(200), "ends at byte"),
    "tensor twice": (header(tensors=2) + entry("t") + entry("t", offset=32) + bytes(128), "'t' appears twice"),
    "overlap": (header(tensors=2) + entry("t") + entry("u", offset=8) + bytes(128), "'u' overlaps"),
    "odd alignment": (header(pairs=1) + u32_pair("general.alignment", 48) + bytes(64), "power of two"),
    "no alignment": (header(pairs=1) + u32_pair("general.alignment", 0) + bytes(64), "power of two"),
}

UNSUPPORTED: Mapping[str, tuple[bytes, str]] = {
    "version 1": (header(version=1) + bytes(64), "version 1"),
    "version of the future": (header(version=4) + bytes(64), "version 4"),
    "big-endian": (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "big-endian"),
    "type not served": (
        header(tensors=1) + entry("t", (256,), 20) + bytes(256),
        "'t' has type IQ4_NL; served are F32,",
    ),
    "type not known": (header(tensors=1) + entry("t", (256,), 9999) + bytes(256), "number 9999"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_file_is_refused(tmp_path: Path, case: str) -> None:
    """A file that contradicts itself is refused, and the message names the file and what is wrong."""
    content, problem = HOSTILE[case]
    path = tmp_path / "bad.gguf"
    path.write_bytes(content)
    with pytest.raises(CheckpointError) as caught:
        read_gguf(path)
    assert problem in str(caught.value)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("case", UNSUPPORTED)
def test_unserved_file_is_refused_by_name(tmp_path: Path, case: str) -> None:
    """What is sound but not served is told apart from what is broken."""
    content, problem = UNSUPPORTED[case]
    path = tmp_path / "other.gguf"
    path.write_bytes(content)
    with pytest.raises(UnsupportedModelError, match=problem):
        read_gguf(path)


@pytest.mark.parametrize("content", [None, b""])
def test_missing_or_empty_file_is_refused(tmp_path: Path, content: bytes | None) -> None:
    """A file that cannot be mapped gives a CheckpointError, not an OSError."""
    path = tmp_path / "model.gguf"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(CheckpointError, match="cannot be read" if content is None else "is empty"):
        read_gguf(path)


@pytest.mark.parametrize("kind", SCALARS)
def test_metadata_of_every_type(tmp_path: Path, kind: GGUFValueType) -> None:
    """Each value type comes back as it was written, alone and in an array."""
    path = tmp_path / "model.gguf"
    writer = GGUFWriter(path, "llama")
    writer.add_key_value("alone", SCALARS[kind], kind)
    writer.add_key_value("many", [SCALARS[kind]] * 3, GGUFValueType.ARRAY, sub_type=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    metadata = read_gguf(path).metadata
    assert metadata["alone"] == SCALARS[kind]
    assert type(metadata["alone"]) is type(SCALARS[kind])
    many: Any = metadata["many"]
    assert list(many) == [SCALARS[kind]] * 3


def test_tensors_as_written(write_gguf: Any, llama_values: Mapping[str, Any]) -> None:
    """Every tensor has its name, its shape rows first, and its values."""
    tensors = read_gguf(write_gguf()).tensors
    assert tensors.keys() == llama_values.keys()
    for name, values in llama_values.items():
        np.testing.assert_array_equal(tensors[name].dequantize(), values)


def test_other_alignment(tmp_path: Path) -> None:
    """Data begin where the file's own alignment says."""
    path = tmp_path / "model.gguf"
    content = header(1, 1) + u32_pair("general.alignment", 512) + entry("t")
    path.write_bytes(content.ljust(512, b"\xee") + np.arange(4, dtype="<f4").tobytes())
    np.testing.assert_array_equal(read_gguf(path).tensors["t"].dequantize(), np.arange(4))


@pytest.mark.model
def test_real_model_opens_quickly(smollm2_path: Path) -> None:
    """Fifty thousand tokens and merges take some 50 ms on an idle machine; this leaves room for a busy one."""
    times = []
    for _ in range(3):
        start = time.perf_counter()
        checkpoint = open_checkpoint(smollm2_path)
        times.append(time.perf_counter() - start)
    assert checkpoint.num_parameters == 134_515_008
    assert min(times) < 0.3


NASTY = st.sampled_from([0, 1, 2**16, 2**31 - 1, 2**31, 2**32 - 1, 2**40, 2**62, 2**63 - 1, 2**63, 2**64 - 1])


@st.composite
def damaged(draw: st.DrawFn, content: bytes) -> bytes:
    """The content with a few bytes or whole numbers overwritten, sometimes cut short."""
    data = bytearray(content)
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(data) - 8))
        if draw(st.booleans()):
            data[at] = draw(st.integers(0, 255))
        else:
            data[at : at + 8] = struct.pack("<Q", draw(NASTY))
    return bytes(data[: draw(st.integers(0, len(data)))]) if draw(st.integers(0, 3)) == 0 else bytes(data)


@settings(
    max_examples=400, deadline=2000, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(data=st.data())
def test_damage_never_escapes(write_gguf: Any, data: st.DataObject) -> None:
    """Whatever is overwritten, opening either works or raises our errors, quickly and without a large allocation."""
    path = write_gguf()
    content = path.read_bytes()
    head = content[: len(content) - sum(t.num_bytes for t in read_gguf(path).tensors.values())]
    path.write_bytes(data.draw(damaged(head)) + content[len(head) :])
    tracemalloc.start()
    try:
        checkpoint = open_checkpoint(path)
        assert checkpoint.num_bytes <= len(content)
    except (CheckpointError, UnsupportedModelError):
        pass
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < 4_000_000
