"""``tlserve`` as a process whose model can be poisoned by prompts, and which says at SIGUSR1 what only it can count.

Run as ``python -m faults.poisoned --config FILE``. Beyond that it is the server that an operator runs.
"""

from __future__ import annotations

import signal
import sys
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Any

import trio
from hypercorn.trio.task_group import TaskGroup

from tlserve.config import ServeConfig
from tlserve.server.handle import run
from tlserve.server.log import configure_logging, log_event

from . import prober
from .poison import load_poisonable


def main(config: Path) -> None:
    """Serve until SIGTERM."""
    configure_logging(sys.stdout)
    parsed = _count_requests()

    def tell() -> None:
        num_requests = sum(count for path, count in parsed.items() if path not in prober.PATHS)
        log_event("census", tasks=trio.lowlevel.current_statistics().tasks_living, requests=num_requests)

    def tell_soon(_number: int, _frame: FrameType | None) -> None:
        """Leave it to the loop: a handler may have come in the middle of another line."""
        trio.lowlevel.current_trio_token().run_sync_soon(tell)

    signal.signal(signal.SIGUSR1, tell_soon)
    run(ServeConfig.load(config), load=load_poisonable)


def _count_requests() -> Counter[str]:
    """By path, the requests that Hypercorn hands to an application from now on."""
    parsed: Counter[str] = Counter()
    spawn_app = TaskGroup.spawn_app

    async def counting(self: TaskGroup, app: Any, config: Any, scope: Any, send: Any) -> Any:
        parsed[scope["path"]] += 1
        return await spawn_app(self, app, config, scope, send)

    TaskGroup.spawn_app = counting  # type: ignore[method-assign]
    return parsed


if __name__ == "__main__":
    main(Path(sys.argv[-1]))
