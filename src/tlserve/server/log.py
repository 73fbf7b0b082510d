"""One JSON object a line: what an operator greps for, and never a word of a prompt.

Event names are fixed words, everything that varies is a field of its own.
"""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime
from typing import TextIO

LOGGER = logging.getLogger("tlserve")
HTTP_LOGGER = logging.getLogger("tlserve.http")
"""Hypercorn's; it has little to say that is not said here already."""
TRACING_LOGGER = logging.getLogger("opentelemetry")
"""OpenTelemetry's: a collector that does not answer."""


class JsonFormatter(logging.Formatter):
    """A record to one line: ``ts`` (UTC, milliseconds), ``level``, ``event``, then the fields in the order given."""

    def format(self, record: logging.LogRecord) -> str:
        """Render ``record``; an exception becomes the fields ``error`` and ``traceback``."""
        stamp = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        line: dict[str, object] = {
            "ts": stamp.replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            **_event(record),
        }
        if record.exc_info and record.exc_info[1] is not None:
            error = record.exc_info[1]
            # Not its repr: that of a UnicodeError holds all of the text that it stumbled over.
            line["error"] = f"{type(error).__name__}: {error}"
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False, default=str)


def _event(record: logging.LogRecord) -> dict[str, object]:
    if record.name.startswith(TRACING_LOGGER.name):
        return {"event": "tracing", "message": record.getMessage()}
    return {"event": record.getMessage(), **getattr(record, "fields", {})}


def configure_logging(stream: TextIO) -> None:
    """Send every record of tlserve, of Hypercorn and of OpenTelemetry to ``stream`` as JSON lines."""
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonFormatter())
    for logger in (LOGGER, TRACING_LOGGER):
        logger.handlers = [handler]
        logger.propagate = False
    LOGGER.setLevel(logging.INFO)
    TRACING_LOGGER.setLevel(logging.WARNING)
    HTTP_LOGGER.setLevel(logging.WARNING)


def log_event(event: str, /, **fields: object) -> None:
    """Write one line. ``event`` is a constant; values go into ``fields``."""
    LOGGER.info(event, extra={"fields": fields})


def log_failure(event: str, error: BaseException, /, **fields: object) -> None:
    """Write one line about something that should not have happened, with its traceback."""
    LOGGER.error(event, extra={"fields": fields}, exc_info=error)
