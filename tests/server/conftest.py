"""Starting ``tlserve`` in a process of its own."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from processes import Launch, Launched, Process, command


@pytest.fixture
def launch(tmp_path: Path) -> Iterator[Launch]:
    """Start ``tlserve --config`` on free ports; killed after the test if it is still there."""
    started: list[subprocess.Popen[str]] = []

    def start(model_dir: Path, *, env: dict[str, str] | None = None, **keys: object) -> Launched:
        settings = {"model_dir": str(model_dir), "http_listen": "127.0.0.1:0", "health_listen": "127.0.0.1:0", **keys}
        config = tmp_path / "runtime.toml"
        config.write_text("[engine]\n" + "".join(f"{key} = {json.dumps(value)}\n" for key, value in settings.items()))
        popen = subprocess.Popen(
            command("--config", config),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **(env or {})},
        )
        started.append(popen)
        process = Process(popen)
        threading.Thread(target=_read_lines, args=(popen, process.lines), daemon=True).start()
        line = process.wait_for("listening")
        return Launched(process, f"http://{line['api']}", f"http://{line['health']}")

    yield start
    for popen in started:
        popen.kill()
        popen.communicate()


def _read_lines(popen: subprocess.Popen[str], lines: queue.SimpleQueue[dict[str, Any]]) -> None:
    assert popen.stdout is not None
    for line in popen.stdout:
        lines.put(json.loads(line))


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
