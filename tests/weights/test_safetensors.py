"""Safetensors are read in place, in one file or several, and a damaged file is refused."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.numpy import save, save_file

from tlserve.errors import CheckpointError, UnsupportedModelError
from tlserve.weights.safetensors import read_safetensors

A = np.arange(6, dtype=np.float32).reshape(2, 3)
B = np.arange(4, dtype=np.float16)


def write_raw(path: Path, header: dict[str, Any], data: bytes) -> None:
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def write_sharded(folder: Path, weight_map: dict[str, Any]) -> None:
    save_file({"a": A}, folder / "model-00001-of-00002.safetensors")
    save_file({"b": B}, folder / "model-00002-of-00002.safetensors")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))


def test_one_file(tmp_path: Path) -> None:
    """Names, shapes, types and values are the file's; float values are mapped, not copied."""
    save_file({"a": A, "b": B}, tmp_path / "model.safetensors", metadata={"format": "pt"})
    tensors = read_safetensors(tmp_path)
    assert {name: (t.shape, t.type_name) for name, t in tensors.items()} == {"a": ((2, 3), "F32"), "b": ((4,), "F16")}
    np.testing.assert_array_equal(tensors["a"].dequantize(), A)
    np.testing.assert_array_equal(tensors["b"].dequantize(), B.astype(np.float32))
    assert not tensors["a"].raw.flags.owndata


def test_bfloat16(tmp_path: Path) -> None:
    """A type that numpy does not have."""
    header = {"x": {"dtype": "BF16", "shape": [2], "data_offsets": [0, 4]}}
    write_raw(tmp_path / "model.safetensors", header, np.array([0x3F80, 0xC000], "<u2").tobytes())
    np.testing.assert_array_equal(read_safetensors(tmp_path)["x"].dequantize(), [1.0, -2.0])


def test_shards(tmp_path: Path) -> None:
    """The index says which files hold the tensors."""
    write_sharded(tmp_path, {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"})
    tensors = read_safetensors(tmp_path)
    np.testing.assert_array_equal(tensors["a"].dequantize(), A)
    np.testing.assert_array_equal(tensors["b"].dequantize(), B.astype(np.float32))


@pytest.mark.parametrize(
    ("weight_map", "problem"),
    [
        (
            {"a": "model-00001-of-00002.safetensors", "c": "model-00001-of-00002.safetensors"},
            "1 tensors .* such as 'c'",
        ),
        ({"a": "model-00003-of-00002.safetensors"}, "model-00003-of-00002.safetensors: cannot be read: No such file"),
        ({"a": "../model.safetensors"}, "'../model.safetensors' is not a file name"),
        ([], "weight_map is .*, expected an object"),
    ],
)
def test_bad_index(tmp_path: Path, weight_map: Any, problem: str) -> None:
    """A shard or tensor that the index promises must be there, in this folder."""
    write_sharded(tmp_path, weight_map)
    with pytest.raises(CheckpointError, match=problem):
        read_safetensors(tmp_path)


@pytest.mark.parametrize("cut", [0, 5, 8, 20, -1])
def test_cut_short(tmp_path: Path, cut: int) -> None:
    """A file cut anywhere is refused by name."""
    path = tmp_path / "model.safetensors"
    path.write_bytes(save({"a": A})[:cut])
    with pytest.raises(CheckpointError, match=r"model.safetensors: (damaged or cut short|the file is empty)"):
        read_safetensors(tmp_path)


@pytest.mark.parametrize(
    ("shape", "offsets", "problem"),
    [
        ([2], [0, 4], "damaged"),
        ([1], [0, 400], "damaged"),
        ([2**40, 2**40], [0, 8], "damaged"),
        ([0], [0, 0], r"'x' \(0,\) is empty"),
    ],
)
def test_bad_entry(tmp_path: Path, shape: list[int], offsets: list[int], problem: str) -> None:
    """Shape, type and offsets must agree with each other and the file's size."""
    header = {"x": {"dtype": "F32", "shape": shape, "data_offsets": offsets}}
    write_raw(tmp_path / "model.safetensors", header, bytes(offsets[1]) if offsets[1] < 100 else bytes(4))
    with pytest.raises(CheckpointError, match=problem):
        read_safetensors(tmp_path)


def test_other_types_are_refused(tmp_path: Path) -> None:
    """Integer weights are another model's way of quantising."""
    save_file({"q": np.zeros(4, np.int8)}, tmp_path / "model.safetensors")
    with pytest.raises(UnsupportedModelError, match="'q' has type I8; served are F32, F16, BF16"):
        read_safetensors(tmp_path)


@settings(max_examples=200, deadline=2000, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(at=st.integers(0, 140), value=st.integers(0, 255), second=st.integers(0, 140))
def test_damage_never_escapes(tmp_path: Path, at: int, value: int, second: int) -> None:
    """Whatever bytes of the head are overwritten, reading either works or raises our errors."""
    data = bytearray(save({"a": A, "b": B}))
    data[at] = value
    data[second] ^= 1
    (tmp_path / "model.safetensors").write_bytes(data)
    try:
        tensors = read_safetensors(tmp_path)
    except (CheckpointError, UnsupportedModelError):
        return
    for tensor in tensors.values():
        assert tensor.dequantize().shape == tensor.shape
