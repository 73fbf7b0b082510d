"""One pod: a ``tlserve --config`` process in a slot with ports of its own, started and ended as a kubelet would."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import attrs
import httpx
import trio

from processes import command

READY_LIMIT_S = 30.0


class NeverReady(Exception):
    """A process ended, or let its time pass, before it was ready."""


@attrs.frozen
class Slot:
    """A place for a replica behind the balancer."""

    name: str
    api_port: int
    health_port: int


@attrs.frozen
class Exit:
    """How a replica ended: its exit code, and the seconds that it took from the signal on."""

    slot: Slot
    code: int
    seconds: float

    def summary(self) -> str:
        """The numbers for the log."""
        return f"{self.slot.name} left with {self.code} in {self.seconds:.2f} s"


@attrs.define(eq=False)
class Replica:
    """A running process."""

    slot: Slot
    process: trio.Process

    async def wait_ready(self, limit_s: float = READY_LIMIT_S) -> None:
        """Ask /readyz until it says 200.

        Raises:
            NeverReady: the process ended, or the limit passed.
        """
        url = f"http://127.0.0.1:{self.slot.health_port}/readyz"
        with trio.move_on_after(limit_s):
            async with httpx.AsyncClient() as client:
                while self.process.poll() is None:
                    if await _is_ok(client, url):
                        return
                    await trio.sleep(0.05)
        raise NeverReady(f"{self.slot.name}: exit code {self.process.returncode}")

    async def end(self, number: signal.Signals, grace_s: float) -> Exit:
        """Send a signal and wait for the end; after ``grace_s`` kill."""
        started = trio.current_time()
        self.process.send_signal(number)
        with trio.move_on_after(grace_s) as grace:
            await self.process.wait()
        if grace.cancelled_caught:
            self.process.kill()
        code = await self.process.wait()
        return Exit(self.slot, code, trio.current_time() - started)


async def start_replica(slot: Slot, directory: Path, keys: dict[str, object]) -> Replica:
    """Start tlserve with these keys of [engine] in the slot; its log goes into ``directory``."""
    listen = {
        "http_listen": f"127.0.0.1:{slot.api_port}",
        "health_listen": f"127.0.0.1:{slot.health_port}",
    }
    config = directory / f"{slot.name}.toml"
    lines = [f"{key} = {json.dumps(value)}\n" for key, value in {**keys, **listen}.items()]
    config.write_text("[engine]\n" + "".join(lines))
    with (directory / f"{slot.name}.log").open("ab") as log:
        process = await trio.lowlevel.open_process(command("--config", config), stdout=log, stderr=log)
    return Replica(slot, process)


async def _is_ok(client: httpx.AsyncClient, url: str) -> bool:
    try:
        return (await client.get(url)).status_code == 200
    except httpx.TransportError:
        return False
