"""Traces, where they are asked for: one call at the end of each request, nothing before it.

Decides whether there are any and how long the last of them may take on their way out; what is in them is written in ``spans``, which is
imported only then, because what it needs is an extra that a server does without.
"""

from __future__ import annotations

import importlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from types import ModuleType

import trio

from tlserve.config import ServeConfig
from tlserve.errors import ConfigError
from tlserve.server.log import log_event
from tlserve.server.room import Room

_LAST_SPANS_S = 1.5
"""How long a stopping process waits for a collector that does not answer, in seconds; less than what the last resort leaves."""

Trace = Callable[[Room], None]
"""Told of a request when it is over; notes the id of its trace among the room's facts."""


@asynccontextmanager
async def open_tracing(config: ServeConfig) -> AsyncIterator[Trace | None]:
    """What traces requests for the length of the block, None where ``tracing`` is off.

    Spans are sent in batches by a thread of their own; a collector that is slow or away costs spans and never a request.

    Raises:
        ConfigError: traces are asked for and the extra is not installed, or an ``OTEL_*`` variable cannot be used.
    """
    if config.tracing == "off":
        yield None
        return
    exporter = _load().otlp(config.model_id)
    try:
        yield exporter.trace
    finally:
        with trio.move_on_after(_LAST_SPANS_S, shield=True) as patience:
            await trio.to_thread.run_sync(exporter.close, abandon_on_cancel=True)
        if patience.cancelled_caught:
            log_event("spans_lost", waited_s=_LAST_SPANS_S)


def check_tracing(config: ServeConfig) -> None:
    """Raise ConfigError when ``config`` asks for traces that this installation cannot write."""
    if config.tracing != "off":
        _load()


def _load() -> ModuleType:
    try:
        return importlib.import_module("tlserve.server.spans")
    except ModuleNotFoundError as missing:
        raise ConfigError(
            f"engine.tracing = 'otlp' needs {missing.name}, which is not installed; run: pip install 'tlserve[otel]'"
        ) from None
