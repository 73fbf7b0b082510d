"""Running ``tlserve`` to its end."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from processes import command


@pytest.fixture
def run() -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run ``tlserve`` with arguments to its end."""

    def run_to_end(*arguments: str | Path, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command(*arguments),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            env={**os.environ, **(env or {})},
        )

    return run_to_end
