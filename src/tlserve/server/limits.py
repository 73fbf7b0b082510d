"""What strangers may take of the server before they have said anything: connections, time, memory for bodies."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager

from attrs import define, frozen

from tlserve.openai.errors import too_many_bodies

RESERVED_FILES = 128
"""File descriptors that are not the API's connections: the probes' connections, listeners, the model's files, the loop's own."""

MAX_PROBE_CONNECTIONS = 64
"""Connections of the health port."""

BODIES_AT_ONCE = 64
"""How many bodies of the largest size may be on their way at the same time; many more of the usual size."""


@frozen(kw_only=True)
class ConnectionLimits:
    """How many connections one server holds, and how slow their peers may be (in seconds).

    Attributes:
        max_connections: one more closes the connection that has idled for longest, or is closed itself.
        read_timeout_s: from the first byte of a request's head to its last.
        send_timeout_s: for an HTTP/2 stream to be read by its peer.
    """

    max_connections: int
    read_timeout_s: float
    send_timeout_s: float


def connections_within(wanted: int) -> int:
    """``wanted``, or as many as the system's limit on open files leaves room for; at least one."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return wanted
    return max(1, min(wanted, soft - RESERVED_FILES))


@define(eq=False)
class BodyBudget:
    """Memory for bodies that are on their way, over all connections. Loop thread only.

    Without it the limits on one body and on connections would multiply: a few thousand slow writers could fill the memory.
    """

    capacity: int
    used: int = 0

    @contextmanager
    def hold(self, num_bytes: int) -> Iterator[None]:
        """Keep ``num_bytes`` for the length of the block; a body larger than all there is may come alone.

        Raises:
            ApiError: 429 when too many are on their way already.
        """
        if self.used and self.used + num_bytes > self.capacity:
            raise too_many_bodies(limit=self.capacity)
        self.used += num_bytes
        try:
            yield
        finally:
            self.used -= num_bytes
