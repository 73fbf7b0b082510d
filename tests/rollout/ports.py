"""Ports for processes that are told theirs before they start."""

from __future__ import annotations

import random
import socket
from contextlib import ExitStack
from pathlib import Path

_EPHEMERAL = Path("/proc/sys/net/ipv4/ip_local_port_range")


def free_ports(count: int) -> list[int]:
    """Different free ports of the loopback interface, from below those that outgoing connections take for themselves."""
    limit = int(_EPHEMERAL.read_text().split()[0]) if _EPHEMERAL.exists() else 32768
    ports: list[int] = []
    with ExitStack() as held:
        while len(ports) < count:
            port = random.randrange(10_000, limit)
            probe = held.enter_context(socket.socket())
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            ports.append(port)
    return ports
