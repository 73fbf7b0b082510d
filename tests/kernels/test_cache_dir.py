"""Compiled code is kept where it can be, and never outlives the sources it was made of."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

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
