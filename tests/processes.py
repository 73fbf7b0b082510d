"""``tlserve`` as an operator runs it: a process of its own, with signals, exit codes and log lines."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import attrs
import httpx

from support import series, wait_until


@attrs.define
class Process:
    """A running ``tlserve`` and what it has written."""

    popen: subprocess.Popen[str]
    lines: queue.SimpleQueue[dict[str, Any]] = attrs.field(factory=queue.SimpleQueue)
    seen: list[dict[str, Any]] = attrs.field(factory=list)

    def wait_for(self, event: str, timeout: float = 30) -> dict[str, Any]:
        """The next log line with this event."""
        while True:
            line = self.lines.get(timeout=timeout)
            self.seen.append(line)
            if line["event"] == event:
                return line

    def stop(self, number: int = signal.SIGTERM) -> None:
        """Send a signal."""
        self.popen.send_signal(number)

    def exit_code(self, timeout: float = 10) -> int:
        """Wait for the end."""
        return self.popen.wait(timeout)


@attrs.frozen
class Launched:
    """A process that listens, with its two base addresses."""

    process: Process
    api: str
    health: str

    def metric(self, name: str) -> float:
        """The value of one series."""
        return series(httpx.get(f"{self.health}/metrics").text, name)

    def wait_ready(self) -> None:
        """Wait for /readyz."""
        wait_until(lambda: httpx.get(f"{self.health}/readyz").status_code == 200, seconds=30)


def command(*arguments: str | Path, module: str = "tlserve") -> list[str]:
    """The command line of this checkout's tlserve, or of another module that takes its arguments."""
    return [sys.executable, "-m", module, *map(str, arguments)]


Launch = Callable[..., Launched]


@contextmanager
def launching(directory: Path) -> Iterator[Launch]:
    """Start servers on free ports, with their configuration in ``directory``; those still there at the end are killed.

    A command as ``prefix`` runs the server in its own way.
    """
    started: list[subprocess.Popen[str]] = []

    def start(
        model_dir: Path,
        *,
        module: str = "tlserve",
        env: dict[str, str] | None = None,
        prefix: Sequence[str] = (),
        **keys: object,
    ) -> Launched:
        settings = {"model_dir": str(model_dir), "http_listen": "127.0.0.1:0", "health_listen": "127.0.0.1:0", **keys}
        config = directory / "runtime.toml"
        config.write_text("[engine]\n" + "".join(f"{key} = {json.dumps(value)}\n" for key, value in settings.items()))
        popen = subprocess.Popen(
            [*prefix, *command("--config", config, module=module)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": _python_path(), **(env or {})},
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


def _python_path() -> str:
    """What children import from: what this process was told to, and the tests' own modules."""
    tests = str(Path(__file__).parent)
    return os.pathsep.join([tests, *filter(None, [os.environ.get("PYTHONPATH")])])


def _read_lines(popen: subprocess.Popen[str], lines: queue.SimpleQueue[dict[str, Any]]) -> None:
    assert popen.stdout is not None
    for line in popen.stdout:
        lines.put(json.loads(line))
