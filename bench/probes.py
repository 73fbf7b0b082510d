"""How long health, readiness and metrics take to answer while the engine is busy."""

from __future__ import annotations

import time
from itertools import count

import httpx
import trio

from bench.client import Endpoint
from bench.prompts import words
from bench.workloads import fleet

PROBES = ("/healthz", "/readyz", "/metrics")
PAUSE_S = 0.01


async def probe_seconds(endpoint: Endpoint, health_url: str, seed: object) -> list[float]:
    """Seconds of every probe that was made, one after the other, while sixteen clients and long prompts were served; sorted."""
    seconds: list[float] = []

    async def probe() -> None:
        async with httpx.AsyncClient(base_url=health_url) as client:
            while True:
                for path in PROBES:
                    begin = time.perf_counter()
                    (await client.get(path)).raise_for_status()
                    seconds.append(time.perf_counter() - begin)
                    await trio.sleep(PAUSE_S)

    async def read_long_prompts() -> None:
        for number in count():
            await endpoint.ask(words(3700, (seed, "long", number)), 1)  # about 4000 tokens

    async with trio.open_nursery() as nursery:
        nursery.start_soon(probe)
        nursery.start_soon(read_long_prompts)
        await fleet(endpoint, seed)
        nursery.cancel_scope.cancel()
    return sorted(seconds)
