"""Reads a folder's safetensors, one file or sharded, over memory maps.

The ``safetensors`` package checks a file (header, sizes, overlaps); the values are then viewed in place rather than
copied, which also serves bfloat16, a type that numpy does not have.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError, safe_open

from tlserve.errors import CheckpointError, UnsupportedModelError
from tlserve.weights.fields import read_object
from tlserve.weights.mapping import map_file
from tlserve.weights.tensor import Tensor

SINGLE: Final = "model.safetensors"
INDEX: Final = "model.safetensors.index.json"
TYPES: Final = ("F32", "F16", "BF16")


def read_safetensors(folder: Path) -> dict[str, Tensor]:
    """All tensors of a folder, by name.

    Raises:
        CheckpointError: no weights, a missing shard, a damaged file, a tensor that the index misplaces.
        UnsupportedModelError: a tensor type other than F32, F16 and BF16.
    """
    if (folder / INDEX).is_file():
        return _read_sharded(folder)
    if (folder / SINGLE).is_file():
        return {tensor.name: tensor for tensor in _read_file(folder / SINGLE)}
    raise CheckpointError(f"{folder}: no weights: looked for {SINGLE} and {INDEX}")


def _read_sharded(folder: Path) -> dict[str, Tensor]:
    """The index decides which shards there are and which tensors must be in them."""
    index = read_object(folder / INDEX)
    shard_of = index.section("weight_map").values
    tensors: dict[str, Tensor] = {}
    for shard in sorted({str(name) for name in shard_of.values()}):
        if Path(shard).name != shard:
            raise CheckpointError(f"{folder / INDEX}: shard {shard!r} is not a file name in this folder")
        tensors.update({tensor.name: tensor for tensor in _read_file(folder / shard)})
    missing = sorted(shard_of.keys() - tensors.keys())
    if missing:
        problem = f"lists {len(missing)} tensors that no shard holds, such as {missing[0]!r}"
        raise CheckpointError(f"{folder / INDEX}: {problem}")
    return tensors


def _read_file(path: Path) -> Iterator[Tensor]:
    data = map_file(path)
    try:
        with safe_open(path, framework="numpy"):  # opening checks the whole header against the file's size
            pass
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{path}: damaged or cut short: {error}") from error
    header_size = int.from_bytes(data[:8], "little")
    content = np.frombuffer(data, dtype=np.uint8, offset=8 + header_size)
    header: dict[str, dict[str, Any]] = json.loads(data[8 : 8 + header_size])
    for name, entry in header.items():
        if name != "__metadata__":
            yield _tensor(path, name, entry, content)


def _tensor(path: Path, name: str, entry: Mapping[str, Any], content: npt.NDArray[np.uint8]) -> Tensor:
    type_name, shape, (start, end) = entry["dtype"], tuple(entry["shape"]), entry["data_offsets"]
    if type_name not in TYPES:
        raise UnsupportedModelError(f"{path}: tensor {name!r} has type {type_name}; served are {', '.join(TYPES)}")
    if start == end:
        raise CheckpointError(f"{path}: tensor {name!r} {shape} is empty")
    return Tensor(name=name, shape=shape, type_name=type_name, blocks=content[start:end].reshape(*shape[:-1], -1))
