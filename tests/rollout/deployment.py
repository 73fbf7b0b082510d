"""A Deployment in small: what its controller, the kubelets and the endpoint controller do, on one machine, with real processes.

Two ways for the balancer to learn that a pod leaves:

``endpoints``   the controller tells it, a while after the pod was deleted, as an EndpointSlice reaches a proxy
``probes``      it asks /readyz itself, every so often, as a cloud balancer does
"""

from __future__ import annotations

import logging
import signal
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import attrs
import trio

from rollout.balancer import Balancer, open_balancer
from rollout.load import Load
from rollout.ports import free_ports
from rollout.replica import Exit, Replica, Slot, start_replica

_log = logging.getLogger(__name__)

LIMIT_S = 60.0
"""No scenario lasts longer."""


@attrs.frozen(kw_only=True)
class Setting:
    """How pods leave.

    Attributes:
        propagation_s: seconds from a pod's deletion until the balancer is told; None: it is not told, it probes.
        probe_interval_s: seconds between two probes of the balancer; None: it does not probe.
        pre_stop_s: seconds between deletion and the stop signal.
        stop_signal: what the kubelet sends then.
        grace_s: seconds between deletion and SIGKILL.
        keys: further keys of the pods' [engine].

    """

    propagation_s: float | None = None
    probe_interval_s: float | None = None
    pre_stop_s: float = 0.0
    stop_signal: signal.Signals = signal.SIGTERM
    grace_s: float = 30.0
    keys: dict[str, object] = attrs.field(factory=dict)


@attrs.define(eq=False)
class Deployment:
    """Replicas behind a balancer, and how each of them ended."""

    setting: Setting
    balancer: Balancer
    directory: Path
    keys: dict[str, object]
    free: list[Slot]
    replicas: list[Replica] = attrs.field(factory=list)
    exits: list[Exit] = attrs.field(factory=list)

    async def scale_up(self, **keys: object) -> None:
        """Start one more, and send it requests once it is ready; one that never is does not stay.

        Raises:
            NeverReady: it was not.
        """
        slot = self.free.pop(0)
        replica = await start_replica(slot, self.directory, {**self.keys, **self.setting.keys, **keys})
        self.replicas.append(replica)
        try:
            await replica.wait_ready()
        except BaseException:
            await self._bury(replica)
            raise
        await self.balancer.enter(slot)

    async def delete(self, replica: Replica) -> None:
        """Take one away: the balancer and the process hear of it independently, as in a cluster."""
        async with trio.open_nursery() as tracks:
            if self.setting.propagation_s is not None:
                tracks.start_soon(self._propagate, replica.slot, self.setting.propagation_s)
            await trio.sleep(self.setting.pre_stop_s)
            grace_s = self.setting.grace_s - self.setting.pre_stop_s
            self.exits.append(await replica.end(self.setting.stop_signal, grace_s))
        self.replicas.remove(replica)
        await self.balancer.forget(replica.slot)
        self.free.append(replica.slot)

    async def roll(self, **keys: object) -> None:
        """Replace all, one at a time: maxSurge 1, maxUnavailable 0."""
        for old in tuple(self.replicas):
            await self.scale_up(**keys)
            await self.delete(old)

    async def kill_all(self) -> None:
        """Leave no process behind."""
        for replica in tuple(self.replicas):
            await self._bury(replica)

    async def _propagate(self, slot: Slot, delay_s: float) -> None:
        await trio.sleep(delay_s)
        await self.balancer.leave(slot)

    async def _bury(self, replica: Replica) -> None:
        with trio.CancelScope(shield=True):
            await replica.end(signal.SIGKILL, 5)
        self.replicas.remove(replica)
        self.free.append(replica.slot)


Deploy = Callable[..., AbstractAsyncContextManager[Deployment]]


@asynccontextmanager
async def open_deployment(
    executable: str, directory: Path, setting: Setting, keys: dict[str, object], *, num_replicas: int
) -> AsyncIterator[Deployment]:
    """A balancer with ``num_replicas`` ready replicas behind it, and room for one more.

    Args:
        executable: where haproxy is.
        directory: for configurations and logs.
        setting: how pods leave.
        keys: keys of the pods' [engine], the model among them.
        num_replicas: how many replicas.

    Raises:
        trio.TooSlowError: the block took longer than `LIMIT_S`.
    """
    port, *ports = free_ports(1 + 2 * (num_replicas + 1))
    slots = [Slot(f"pod{i}", *pair) for i, pair in enumerate(_pairs(ports))]
    async with open_balancer(executable, directory, port, slots, setting.probe_interval_s) as balancer:
        deployment = Deployment(setting, balancer, directory, keys, list(slots))
        try:
            with trio.fail_after(LIMIT_S):
                async with trio.open_nursery() as starting:
                    for _ in range(num_replicas):
                        starting.start_soon(deployment.scale_up)
                yield deployment
        finally:
            await deployment.kill_all()


@asynccontextmanager
async def under_load(deployment: Deployment, model: str, *, num_requests: int) -> AsyncIterator[Load]:
    """Keep clients busy while the block runs, and until ``num_requests`` have been made in all."""
    load = Load(deployment.balancer.port, model)
    enough = trio.Event()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(load.run, enough)
        await load.wait_for(num_requests // 10)
        yield load
        await load.wait_for(num_requests)
        enough.set()
    _log.info("%s; %s", load.summary(), ", ".join(exit_.summary() for exit_ in deployment.exits) or "nobody left")


def _pairs(ports: list[int]) -> Iterable[tuple[int, int]]:
    return zip(ports[::2], ports[1::2], strict=True)
