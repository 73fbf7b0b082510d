"""The place beside the model's directory where a fetch builds it, and the step that puts it in place.

A directory that a fetch has made holds a record of its files; it appears in one rename, so one that is there is whole.
The staging directory has a fixed name: what a killed fetch left in it is found, and used or cleared, by the next one. A
lock on it, which ends with the process, lets only one fetch at a time work there.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from attrs import asdict

from tlserve.errors import PullError
from tlserve.weights.pull_attendant import POLL_SECONDS, Attendant
from tlserve.weights.pull_files import PulledFile

RECORD: Final = ".tlserve-pull.json"


def holds_model(directory: Path, source: str) -> bool:
    """Whether the directory was made from ``source`` by an earlier fetch and still has all its files.

    Sizes are compared, digests are not: this is asked at every start.

    Raises:
        PullError: the directory holds something else, which is not to be overwritten.
    """
    names = _names(directory)  # one look: another process may put the directory in place at any time
    if RECORD not in names:
        if names:
            problem = "exists and was not made by a pull; empty it, or leave out the model source to use what it holds"
            raise PullError(f"{directory}: {problem}")
        return False
    try:
        made_from, files = _read_record(directory / RECORD)
    except FileNotFoundError:  # another process has just set the directory aside
        return False
    if made_from != source:
        raise PullError(f"{directory}: holds {made_from}, asked for is {source}; remove it or name another directory")
    return all(_has_size(directory / file.name, file.size) for file in files)


def install(staging: Path, directory: Path, source: str, files: list[PulledFile]) -> None:
    """Record the files and move the staging directory to its place."""
    record = {"source": source, "files": [asdict(file) for file in files]}
    (staging / RECORD).write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    for name in [RECORD, *(file.name for file in files)]:
        _flush(staging / name)
    aside = directory.parent / f".{directory.name}.old"
    shutil.rmtree(aside, ignore_errors=True)
    if (directory / RECORD).is_file():  # an earlier model that has become incomplete
        directory.rename(aside)
    staging.rename(directory)  # in the place of an empty directory too
    _flush(directory.parent)
    shutil.rmtree(aside, ignore_errors=True)


@contextlib.contextmanager
def open_staging(directory: Path, attendant: Attendant) -> Iterator[Path]:
    """The staging directory, ours alone until the block ends; waits while another process has it.

    What is in it afterwards stays for the next fetch to go on from.
    """
    staging = directory.parent / f".{directory.name}.pull"
    descriptor = _lock(staging, attendant)
    try:
        yield staging
    finally:
        with contextlib.suppress(OSError):  # it is in place by now, or has content to go on from
            staging.rmdir()
        os.close(descriptor)


def clear(staging: Path) -> None:
    """Throw away what an earlier fetch left."""
    for entry in staging.iterdir():
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        else:
            entry.unlink()


def _lock(staging: Path, attendant: Attendant) -> int:
    """A descriptor of the staging directory that holds the lock, once it is to be had."""
    while True:
        descriptor = _make(staging)
        try:
            if _try_lock(descriptor) and _is_same(descriptor, staging):
                return descriptor
            attendant.tell("waiting", 0, None)
            time.sleep(POLL_SECONDS)
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)


def _make(staging: Path) -> int:
    """Open the directory, making it where it is not there; its last holder may take it away in between."""
    while True:
        with contextlib.suppress(FileExistsError):
            staging.mkdir(parents=True)
        with contextlib.suppress(FileNotFoundError):
            return os.open(staging, os.O_RDONLY | os.O_DIRECTORY)


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_same(descriptor: int, staging: Path) -> bool:
    """Whether the locked directory is still the staging one: its last holder may have moved it into place."""
    try:
        return os.path.samestat(os.fstat(descriptor), staging.stat())
    except FileNotFoundError:
        return False


def _names(directory: Path) -> list[str]:
    """What lies in the directory; a file in its place counts as foreign content."""
    try:
        return [path.name for path in directory.iterdir()]
    except FileNotFoundError:
        return []
    except NotADirectoryError:
        return [directory.name] if directory.exists() else []  # else a parent is a file, as making it will show


def _has_size(path: Path, size: int) -> bool:
    try:
        return path.stat().st_size == size
    except FileNotFoundError:
        return False


def _read_record(record: Path) -> tuple[str, list[PulledFile]]:
    try:
        content = json.loads(record.read_text(encoding="utf-8"))
        return str(content["source"]), [PulledFile(**entry) for entry in content["files"]]
    except (ValueError, TypeError, KeyError) as error:
        raise PullError(f"{record}: damaged ({error}); remove the directory to fetch the model again") from error


def _flush(path: Path) -> None:
    """Have the disk keep what was written before the rename says that it is whole."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
