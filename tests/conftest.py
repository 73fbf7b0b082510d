"""Fixtures that every room shares: models, servers on real sockets, and clients to talk to them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest

from processes import Launch, launching
from support import Serve, shift_logits, start_server, write_bigram

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    """The real model's GGUF file, fetched by ``make model``; TLSERVE_TEST_MODEL names another place."""
    directory = Path(os.environ.get("TLSERVE_TEST_MODEL", ROOT / "models" / "smollm2-135m"))
    files = [directory] if directory.is_file() else sorted(directory.glob("*.gguf"))
    if not files:
        pytest.fail(f"no GGUF file in {directory}: run `make model` first, or set TLSERVE_TEST_MODEL")
    return files[0]


@pytest.fixture(scope="session")
def tiny_models() -> Path:
    """The folder of tiny random models, one per architecture, each with its reference."""
    return ROOT / "tests" / "data" / "models"


@pytest.fixture(scope="session")
def succ_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bigram that counts: after byte i comes byte i + 1, all but certainly. Its template is the bare content."""
    return write_bigram(tmp_path_factory.mktemp("models") / "succ", shift_logits(1))


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Start servers for one test, as `start_server` does; they are drained and joined after it."""
    with ExitStack() as stack:
        yield partial(start_server, stack)


@pytest.fixture
def launch(tmp_path: Path) -> Iterator[Launch]:
    """Start ``tlserve --config`` on free ports, in processes of their own; killed after the test if they are still there."""
    with launching(tmp_path) as start:
        yield start


@pytest.fixture(scope="session")
def serve_shared() -> Iterator[Serve]:
    """The same for servers that many tests use: they live to the end of the run."""
    with ExitStack() as stack:
        yield partial(start_server, stack)
