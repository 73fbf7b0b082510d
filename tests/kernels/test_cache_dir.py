"""Compiled code is kept where it can be, and never outlives the sources it was made of."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import tlserve
from tlserve.kernels.cache_dir import compile_cache_directory, source_digest


def test_every_state_of_the_sources_has_a_directory(tmp_path: Path) -> None:
    """Changing, renaming or adding a file leads to another digest."""
    (tmp_path / "a.py").write_text("x = 1")
    digests = {source_digest(tmp_path)}
    (tmp_path / "a.py").write_text("x = 2")
    digests.add(source_digest(tmp_path))
    (tmp_path / "a.py").rename(tmp_path / "b.py")
    digests.add(source_digest(tmp_path))
    (tmp_path / "c.py").touch()
    digests.add(source_digest(tmp_path))
    assert len(digests) == 4


def test_the_operators_choice_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """NUMBA_CACHE_DIR, which need not exist yet."""
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "volume"))
    directory = compile_cache_directory()
    assert directory.parent == tmp_path / "volume"
    assert directory.is_dir()


def test_a_place_that_cannot_be_written_to_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file where a directory should be, then a writable home."""
    (tmp_path / "taken").touch()
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "taken"))
    monkeypatch.setattr("tlserve.kernels.cache_dir.ROOM", tmp_path / "taken")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    assert compile_cache_directory().parent == tmp_path / "home" / "tlserve"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "taken"))
    assert os.access(compile_cache_directory(), os.W_OK)


COMPILE_ONE = """
from tlserve.kernels.activation import GATE_ROWS
from tlserve.kernels.jit import cache_directory

GATE_ROWS.compile()
print(cache_directory())
"""

WITHOUT_PRIVILEGES = """
import ctypes, os, sys

PR_CAPBSET_DROP, CAP_DAC_OVERRIDE = 24, 1
ctypes.CDLL(None).prctl(PR_CAPBSET_DROP, CAP_DAC_OVERRIDE, 0, 0, 0)  # root obeys permissions, too
os.execv(sys.executable, [sys.executable, "-B", "-c", sys.argv[1]])
"""


@pytest.fixture
def read_only_package(tmp_path: Path) -> Path:
    """A folder with a copy of the package that nobody may write to."""
    site = tmp_path / "site"
    shutil.copytree(Path(tlserve.__file__).parent, site / "tlserve", ignore=shutil.ignore_patterns("__pycache__"))
    for path in [*site.rglob("*"), site]:
        path.chmod(0o555 if path.is_dir() else 0o444)
    return site


def compile_from(site: Path, **variables: str) -> Path:
    """Compile a kernel of the package in ``site``, without a home; returns the directory of compiled code."""
    kept = {name: value for name, value in os.environ.items() if name not in {"HOME", "XDG_CACHE_HOME"}}
    done = subprocess.run(
        [sys.executable, "-B", "-c", WITHOUT_PRIVILEGES, COMPILE_ONE],
        env=kept | {"PYTHONPATH": str(site)} | variables,
        capture_output=True,
        text=True,
        check=True,
    )
    return Path(done.stdout.strip())


def compiled_files(directory: Path) -> dict[str, int]:
    """Names and times of change of what lies in the cache."""
    return {str(path): path.stat().st_mtime_ns for path in directory.rglob("*.nbc")}


def test_a_read_only_installation_uses_the_directory_it_is_given(read_only_package: Path, tmp_path: Path) -> None:
    """As in a container with a read-only root and a volume: compiled once, found at the next start."""
    volume = tmp_path / "volume"
    directory = compile_from(read_only_package, NUMBA_CACHE_DIR=str(volume))
    first = compiled_files(volume)
    assert directory.parent == volume
    assert first
    compile_from(read_only_package, NUMBA_CACHE_DIR=str(volume))
    assert compiled_files(volume) == first
    assert not list(read_only_package.rglob("__pycache__"))


def test_a_read_only_installation_needs_no_directory(read_only_package: Path, tmp_path: Path) -> None:
    """Without a volume the code is compiled into the temporary directory."""
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    assert compile_from(read_only_package, NUMBA_CACHE_DIR="", TMPDIR=str(scratch)).parent == scratch
