"""Server-sent events, the three frames the v1 streams are made of.

Framing only: what a payload says is decided in :mod:`tlserve.openai.chunks`.
A payload is one line, so an event is one ``data:`` line and the blank line that ends it.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

DONE = "data: [DONE]\n\n"
"""The last event of every stream, however it went."""

PING = ": ping\n\n"
"""A comment that keeps idle connections open; clients skip it."""

CONTENT_TYPE = "text/event-stream; charset=utf-8"

HEADERS: Mapping[str, str] = MappingProxyType({"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
"""Nobody between us and the client may hold events back."""


def event(payload: str) -> str:
    r"""``data: <payload>\n\n``. The payload has no line break; JSON escapes them all."""
    return f"data: {payload}\n\n"
