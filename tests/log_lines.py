"""What the servers of this process write into their log, read back."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tlserve.server.log import LOGGER, JsonFormatter


class LogLines:
    """A log that is being written."""

    def __init__(self) -> None:
        self.stream = io.StringIO()

    @property
    def text(self) -> str:
        """All of it so far."""
        return self.stream.getvalue()

    def of(self, event: str) -> list[dict[str, Any]]:
        """The lines with this event, in order."""
        lines = (json.loads(line) for line in self.text.splitlines())
        return [line for line in lines if line["event"] == event]

    def request(self, request_id: str) -> dict[str, Any]:
        """The line of one request; there must be exactly one."""
        (line,) = (line for line in self.of("request") if line["request_id"] == request_id)
        return line


@contextmanager
def captured_log(*loggers: str, level: int = logging.INFO) -> Iterator[LogLines]:
    """Collect what is logged from ``level`` on by tlserve, and by others that are named."""
    lines = LogLines()
    handler = logging.StreamHandler(lines.stream)
    handler.setFormatter(JsonFormatter())
    watched = [LOGGER, *map(logging.getLogger, loggers)]
    levels = [logger.level for logger in watched]
    for logger in watched:
        logger.addHandler(handler)
        logger.setLevel(level)
    try:
        yield lines
    finally:
        for logger, before in zip(watched, levels, strict=True):
            logger.removeHandler(handler)
            logger.setLevel(before)
