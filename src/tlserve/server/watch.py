"""Notices that files have changed, and has them read again.

By looking now and then: that works on every file system and for the way Kubernetes swaps a mounted secret, and costs one ``stat``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import trio

from tlserve.errors import ConfigError
from tlserve.server.log import log_event

INTERVAL_S = 1.0
"""How often files are looked at, in seconds."""

Stamp = tuple[int, int, int] | None


async def watch_files(paths: Sequence[Path], reload: Callable[[], None], *, what: str) -> None:
    """Call ``reload`` in this task whenever one of ``paths`` has changed, until cancelled.

    A ConfigError that it raises is logged, and the next change waited for: what was in use stays in use.

    Args:
        paths: what to look at; a file that is missing for a while is a change when it is back.
        reload: reads the files, quickly, and puts them to use.
        what: names them in the log.
    """
    stamps = _stamps(paths)
    while True:
        await trio.sleep(INTERVAL_S)
        latest = await trio.to_thread.run_sync(_stamps, paths)
        if latest == stamps:
            continue
        stamps = latest
        try:
            reload()
        except ConfigError as error:
            log_event("reload_refused", what=what, error=str(error))
        else:
            log_event("reloaded", what=what)


def _stamps(paths: Sequence[Path]) -> list[Stamp]:
    return [_stamp(path) for path in paths]


def _stamp(path: Path) -> Stamp:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino
