"""The first thing a process does: make sure that a stop signal is heard.

Importing the server takes a moment, and as PID 1 of a container a SIGTERM without a handler is not even lost time: it is lost.
"""

from __future__ import annotations

import signal
import threading
from types import FrameType


def exit_on_signals() -> None:
    """End the process cleanly at SIGTERM or SIGINT until somebody else takes the signals over. Main thread only."""
    if threading.current_thread() is not threading.main_thread():
        return
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _exit)


def _exit(number: int, frame: FrameType | None) -> None:  # noqa: ARG001  (the signal module's signature)
    raise SystemExit(0)
