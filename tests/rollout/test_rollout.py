"""Rolling deploys under streaming load, with real processes behind a real balancer: nobody notices, or the rehearsal says who.

The negative controls show that the rehearsal can fail: each leaves out one thing that the manifests or the server do.
"""

from __future__ import annotations

import signal

import pytest

from rollout.deployment import Deploy, Deployment, Setting, under_load
from rollout.load import Load
from rollout.replica import NeverReady

pytestmark = pytest.mark.ops

NUM_REQUESTS = 500

TOLD = Setting(propagation_s=1.0, pre_stop_s=1.5)
"""The Service's way: the endpoint is gone a second after the deletion, the signal comes after that."""

PROBING = Setting(probe_interval_s=0.25, keys={"quiesce_s": 2.0})
"""A probing balancer's way: /readyz says 503 for longer than the interval before anything is refused."""


def assert_unnoticed(load: Load, deployment: Deployment, *, num_exits: int) -> None:
    """Every request was answered in full, and every process that was stopped went by itself, in time, with 0."""
    assert load.failures == []
    assert load.num_requests >= NUM_REQUESTS
    assert load.num_answered["stream"] >= NUM_REQUESTS // 5
    limit_s = 10.0 + float(str(deployment.setting.keys.get("quiesce_s", 0.0)))
    assert [exit_.code for exit_ in deployment.exits] == [0] * num_exits
    assert all(exit_.seconds < limit_s for exit_ in deployment.exits), deployment.exits


@pytest.mark.parametrize("setting", [TOLD, PROBING], ids=["endpoints", "probes"])
async def test_rolling_deploy_goes_unnoticed(deploy: Deploy, setting: Setting) -> None:
    """Two replicas are replaced one after the other; no request fails."""
    async with deploy(setting) as deployment:
        old = {replica.process.pid for replica in deployment.replicas}
        async with under_load(deployment, "succ", num_requests=NUM_REQUESTS) as load:
            await deployment.roll(queue_capacity=128)
        assert old.isdisjoint(replica.process.pid for replica in deployment.replicas)
        assert_unnoticed(load, deployment, num_exits=2)


async def test_scale_down_goes_unnoticed(deploy: Deploy) -> None:
    """One of three replicas goes; no request fails, not even those that it was answering."""
    async with deploy(TOLD, num_replicas=3) as deployment:
        async with under_load(deployment, "succ", num_requests=NUM_REQUESTS) as load:
            await deployment.delete(deployment.replicas[0])
        assert_unnoticed(load, deployment, num_exits=1)


async def test_bad_revision_changes_nothing(deploy: Deploy) -> None:
    """A revision that never becomes ready gets no request and pushes nobody out; the old one serves on."""
    async with deploy(TOLD) as deployment:
        old = list(deployment.replicas)
        async with under_load(deployment, "succ", num_requests=NUM_REQUESTS) as load:
            with pytest.raises(NeverReady, match="exit code 1"):
                await deployment.roll(model_dir="/nowhere")
        assert deployment.replicas == old
        assert_unnoticed(load, deployment, num_exits=0)


@pytest.mark.parametrize(
    "setting",
    [
        Setting(propagation_s=1.0),
        Setting(probe_interval_s=60.0),
        Setting(propagation_s=1.0, pre_stop_s=1.5, stop_signal=signal.SIGKILL),
    ],
    ids=["no preStop", "slow probes without quiesce_s", "killed without a drain"],
)
async def test_rehearsal_notices(deploy: Deploy, setting: Setting) -> None:
    """Without the wait before the signal, without the time that slow probes need, or without a drain, requests fail."""
    async with deploy(setting) as deployment:
        async with under_load(deployment, "succ", num_requests=NUM_REQUESTS // 5) as load:
            await deployment.delete(deployment.replicas[0])
        assert load.failures
