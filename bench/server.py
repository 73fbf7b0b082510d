"""A tlserve process of our own to measure: start it on free ports, watch its memory, stop it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

from attrs import frozen

ROOT = Path(__file__).resolve().parents[1]

FREE_PORTS = {"TL_ENGINE__HTTP_LISTEN": "127.0.0.1:0", "TL_ENGINE__HEALTH_LISTEN": "127.0.0.1:0"}


@frozen
class Process:
    """A server that is ready.

    Attributes:
        base_url, health_url: where its two ports are.
        ready_s: seconds from the start of the process to readiness.
        facts: what its log says of the model.

    """

    pid: int
    base_url: str
    health_url: str
    ready_s: float
    facts: dict[str, Any]

    def memory_mib(self, kind: str = "VmRSS") -> float:
        """A line of /proc/PID/status in MiB: VmRSS resident now, VmHWM its peak, RssAnon what belongs to no file."""
        lines = Path(f"/proc/{self.pid}/status").read_text().splitlines()
        return int(next(line.split()[1] for line in lines if line.startswith(f"{kind}:"))) / 1024


@contextmanager
def running(config: Path, variables: Mapping[str, str] | None = None) -> Iterator[Process]:
    """Start ``python -m tlserve``, yield when it is ready, stop it afterwards.

    Raises:
        SystemExit: it ended before it was ready.

    """
    started = time.perf_counter()
    with tempfile.NamedTemporaryFile("w", suffix=".log") as out, Path(out.name).open() as log:
        process = subprocess.Popen(  # noqa: S603  (our own command)
            [sys.executable, "-m", "tlserve", "--config", str(config)],
            stdout=out,
            env={**os.environ, **FREE_PORTS, **(variables or {})},
        )
        try:
            listening, ready = (_next_event(process, log, event) for event in ("listening", "ready"))
            seconds = time.perf_counter() - started
            yield Process(process.pid, f"http://{listening['api']}", f"http://{listening['health']}", seconds, ready)
        finally:
            process.terminate()
            process.wait(60)


def _next_event(process: subprocess.Popen[bytes], log: TextIO, event: str) -> dict[str, Any]:
    """Follow the log; it goes to a file because a pipe that nobody empties would stop the server one day."""
    while process.poll() is None:
        text = log.readline()
        if not text.endswith("\n"):
            time.sleep(0.005)
        elif (line := json.loads(text))["event"] == event:
            return dict(line)
    raise SystemExit(f"tlserve ended before it was {event}: {log.read()}")
