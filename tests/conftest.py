"""Fixtures that every room shares."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    """The real model's GGUF file, fetched by ``make model``; TLSERVE_TEST_MODEL names another place."""
    directory = Path(os.environ.get("TLSERVE_TEST_MODEL", ROOT / "models" / "smollm2-135m"))
    files = [directory] if directory.is_file() else sorted(directory.glob("*.gguf"))
    if not files:
        pytest.fail(f"no GGUF file in {directory}: run `make model` first, or set TLSERVE_TEST_MODEL")
    return files[0]
