"""Fixtures that every room shares: models, servers on real sockets, and clients to talk to them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import attrs
import httpx
import pytest

from support import Serve, Server, shift_logits, write_bigram
from tlserve.bridge.client import Loader
from tlserve.config import EngineConfig, ServeConfig
from tlserve.engine.load import load_engine
from tlserve.server.handle import spawn

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
    """Start a server on free ports of the loopback interface; it is drained and joined after the test.

    A test of a server that fails joins it itself, with ``is_joined=False``.
    """
    with ExitStack() as stack:

        def start(
            directory: Path,
            *,
            engine: dict[str, Any] | None = None,
            wait: bool = True,
            load: Loader = load_engine,
            is_joined: bool = True,
            **fields: Any,
        ) -> Server:
            config = attrs.evolve(
                ServeConfig.for_model(directory), engine=EngineConfig(**(engine or {})), drain_timeout_s=5.0
            )
            handle = spawn(attrs.evolve(config, **fields), wait=wait, load=load)
            if is_joined:
                stack.callback(handle.join)
            stack.callback(handle.drain)
            api = stack.enter_context(httpx.Client(base_url=f"http://{handle.http_addr}", timeout=60))
            health = stack.enter_context(httpx.Client(base_url=f"http://{handle.health_addr}", timeout=60))
            return Server(handle, api, health)

        yield start
