"""``tlserve`` as an operator runs it: a process of its own, with signals, exit codes and log lines."""

from __future__ import annotations

import queue
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import httpx

from support import wait_until


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

    def wait_ready(self) -> None:
        """Wait for /readyz."""
        wait_until(lambda: httpx.get(f"{self.health}/readyz").status_code == 200, seconds=30)


def command(*arguments: str | Path) -> list[str]:
    """The command line of this checkout's tlserve."""
    return [sys.executable, "-m", "tlserve", *map(str, arguments)]


Launch = Callable[..., Launched]
