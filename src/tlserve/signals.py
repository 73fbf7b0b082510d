"""What a stop signal does, from the first moment of a process to its last.

The kernel drops a signal that PID 1 has not asked for, and in a container tlserve is PID 1. So at no time is SIGTERM left to its
default there: importing the server takes a moment in which one would be lost, and so would the second one, which kills.
"""

from __future__ import annotations

import os
import signal
import threading
from types import FrameType
from typing import NoReturn

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)


def exit_on_signals() -> None:
    """End the process cleanly at a stop signal until somebody else takes the signals over. Main thread only."""
    if threading.current_thread() is not threading.main_thread():
        return
    for number in STOP_SIGNALS:
        signal.signal(number, _exit)


def kill_on_signals() -> None:
    """From now on a stop signal ends the process at once, whatever it is doing. Main thread only.

    The kernel does that best, even where Python hangs; as PID 1 the process has to do it, and exits as a shell would say it: with
    128 and the signal's number.
    """
    for number in STOP_SIGNALS:
        signal.signal(number, _die if os.getpid() == 1 else signal.SIG_DFL)


def _exit(number: int, frame: FrameType | None) -> NoReturn:  # noqa: ARG001  (the signal module's signature)
    raise SystemExit(0)


def _die(number: int, frame: FrameType | None) -> NoReturn:  # noqa: ARG001  (the signal module's signature)
    os._exit(128 + number)
