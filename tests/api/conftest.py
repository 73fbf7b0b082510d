"""The real model, served once for all who only ask it."""

from __future__ import annotations

from pathlib import Path

import pytest

from support import Serve, Server


@pytest.fixture(scope="session")
def smollm2_server(serve_shared: Serve, smollm2_path: Path) -> Server:
    """SmolLM2 with the defaults."""
    return serve_shared(smollm2_path)
