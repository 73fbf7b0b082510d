"""Which files make a model, and copying one with its digest."""

from __future__ import annotations

import hashlib
import re
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path, PurePosixPath
from typing import IO, Final

from attrs import frozen

from tlserve.errors import PullError

CHUNK_BYTES: Final = 1 << 20

INDEX: Final = "model.safetensors.index.json"
SHARD: Final = re.compile(r"model-\d{5}-of-\d{5}\.safetensors")
COMPANIONS: Final = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
)
"""What tlserve reads of a Hugging Face folder besides the weights."""


@frozen
class PulledFile:
    """A file that has arrived; ``name`` is its name within the model's directory."""

    name: str
    size: int
    sha256: str


def choose_files(names: Iterable[str], origin: str) -> list[str]:
    """The names (with / between folders) that make the one model among them: a Hugging Face folder, else a GGUF file.

    Raises:
        PullError: there is no model, or more than one.
    """
    paths = [PurePosixPath(name) for name in names]
    models = _folders(paths) or [[path] for path in paths if path.suffix == ".gguf"]
    if len(models) == 1:
        return [str(path) for path in models[0]]
    if not models:
        raise PullError(f"{origin}: holds no model: neither a .gguf file nor config.json beside model.safetensors")
    found = ", ".join(sorted(str(model[0]) for model in models))
    raise PullError(f"{origin}: holds {len(models)} models, name the one you want: {found}")


def _folders(paths: list[PurePosixPath]) -> list[list[PurePosixPath]]:
    """Every folder with a configuration and weights, as the list of its files that are read; weights first."""
    models = []
    for parent in dict.fromkeys(path.parent for path in paths):
        names = {path.name for path in paths if path.parent == parent}
        weights = [n for n in sorted(names) if n == INDEX or SHARD.fullmatch(n)] if INDEX in names else []
        weights = weights or [n for n in ("model.safetensors",) if n in names]
        if weights and "config.json" in names:
            models.append([parent / name for name in [*weights, *(n for n in COMPANIONS if n in names)]])
    return models


def copy_stream(stream: IO[bytes], target: Path, beat: Callable[[int], None]) -> PulledFile:
    """Write a stream to a new file; ``beat`` hears of each chunk's size and may raise."""
    digest, size = hashlib.sha256(), 0
    with target.open("wb") as file:
        while chunk := stream.read(CHUNK_BYTES):
            file.write(chunk)
            digest.update(chunk)
            size += len(chunk)
            beat(len(chunk))
    return PulledFile(target.name, size, digest.hexdigest())


def hash_file(path: Path, beat: Callable[[int], None]) -> PulledFile:
    """Read a file again for its digest; ``beat`` as in `copy_stream`."""
    digest, size = hashlib.sha256(), 0
    with path.open("rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            digest.update(chunk)
            size += len(chunk)
            beat(len(chunk))
    return PulledFile(path.name, size, digest.hexdigest())


def check_pin(files: Iterable[PulledFile], sha256: str | None, origin: str) -> None:
    """Compare the digest that the operator (or this version of tlserve) gave with the weights file's.

    Raises:
        PullError: they differ, or it is not clear which file is meant.
    """
    if sha256 is None:
        return
    weights = [file for file in files if file.name.endswith((".gguf", ".safetensors"))]
    if len(weights) != 1:
        raise PullError(f"{origin}: a sha256 was given but there are {len(weights)} weights files; leave it out")
    if weights[0].sha256 != sha256:
        problem = f"{weights[0].name} has sha256 {weights[0].sha256}, expected {sha256}"
        raise PullError(f"{origin}: {problem}; the file is not the one you meant, or was damaged on its way")


def check_space(folder: Path, needed: int, origin: str) -> None:
    """Refuse to begin what the disk cannot hold. Raises PullError."""
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise PullError(
            f"{origin}: needs {needed:,} bytes, {folder} has {free:,} free; make room or choose another disk"
        )
