"""A real balancer, haproxy, that hides nothing: it never repeats a request, so what a server refuses the client sees."""

from __future__ import annotations

import csv
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Literal

import attrs
import trio

from rollout.replica import Slot

_CONFIG = """\
global
    nbthread 1
    stats socket {socket} mode 600 level admin
defaults
    mode http
    retries 0
    timeout connect 2s
    timeout client 90s
    timeout server 90s
    timeout check 5s
frontend api
    bind 127.0.0.1:{port}
    default_backend pods
backend pods
    balance roundrobin
{probing}
{servers}
"""
_PROBING = """\
    option httpchk
    http-check send meth GET uri /readyz ver HTTP/1.1 hdr host readiness
    http-check expect status 200
"""


@attrs.frozen
class Balancer:
    """A running haproxy. Slots are out of rotation until they are entered."""

    port: int
    socket: Path

    async def enter(self, slot: Slot) -> None:
        """Take the slot into rotation, and return when it is."""
        await self._set_state(slot, "ready")
        while not (await self._status(slot)).startswith(("UP", "no check")):  # noqa: ASYNC110  haproxy tells nobody
            await trio.sleep(0.02)

    async def leave(self, slot: Slot) -> None:
        """Send nothing new to the slot; what runs there goes on."""
        await self._set_state(slot, "drain")

    async def forget(self, slot: Slot) -> None:
        """Free the slot for another process."""
        await self._set_state(slot, "maint")

    async def _set_state(self, slot: Slot, state: Literal["ready", "drain", "maint"]) -> None:
        answer = (await self._ask(f"set server pods/{slot.name} state {state}")).strip()
        assert not answer, answer

    async def _status(self, slot: Slot) -> str:
        table = (await self._ask("show stat")).removeprefix("# ").splitlines()
        return next(row["status"] for row in csv.DictReader(table) if row["svname"] == slot.name)

    async def _ask(self, line: str) -> str:
        async with await trio.open_unix_socket(self.socket) as stream:
            await stream.send_all(line.encode() + b"\n")
            return b"".join([part async for part in stream]).decode()


@asynccontextmanager
async def open_balancer(
    executable: str, directory: Path, port: int, slots: Sequence[Slot], probe_interval_s: float | None
) -> AsyncIterator[Balancer]:
    """Run haproxy in front of the slots.

    Args:
        executable: where haproxy is.
        directory: for its configuration, its socket and its log.
        port: where clients go.
        slots: its servers.
        probe_interval_s: how often it asks /readyz; one bad answer takes a server out. None: it never asks.
    """
    config = directory / "haproxy.cfg"
    balancer = Balancer(port, directory / "admin.sock")
    config.write_text(_config(balancer, slots, probe_interval_s))
    with (directory / "haproxy.log").open("wb") as log:
        process = await trio.lowlevel.open_process([executable, "-db", "-f", str(config)], stdout=log, stderr=log)
    try:
        while not await trio.Path(balancer.socket).exists():
            assert process.poll() is None, (directory / "haproxy.log").read_text()
            await trio.sleep(0.02)
        yield balancer
    finally:
        process.kill()
        with trio.CancelScope(shield=True):
            await process.wait()


def _config(balancer: Balancer, slots: Sequence[Slot], probe_interval_s: float | None) -> str:
    servers = []
    for slot in slots:
        check = ""
        if probe_interval_s is not None:
            check = f" check port {slot.health_port} inter {round(probe_interval_s * 1000)}ms fall 1 rise 1"
        servers.append(f"    server {slot.name} 127.0.0.1:{slot.api_port}{check} disabled")
    return _CONFIG.format(
        socket=balancer.socket,
        port=balancer.port,
        probing=_PROBING if probe_interval_s is not None else "",
        servers="\n".join(servers),
    )
