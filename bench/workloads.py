"""The five things that users of a server feel, each measured over HTTP on one endpoint.

Every function drives an endpoint once and returns numbers by metric name; ``seed`` makes its prompts its own. Which number is
better, and how to print it, stands in `METRICS`.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Awaitable, Callable
from itertools import pairwise

import trio
from attrs import frozen

from bench.client import Arrivals, Endpoint, Reply
from bench.prompts import words

Numbers = dict[str, float]
Workload = Callable[[Endpoint, object], Awaitable[Numbers]]


@frozen(kw_only=True)
class Metric:
    """How one number is called and judged."""

    label: str
    unit: str
    higher_is_better: bool


METRICS = {
    "decode": Metric(label="one stream, output", unit="tok/s", higher_is_better=True),
    "prefill": Metric(label="prompt of 1000 tokens, input", unit="tok/s", higher_is_better=True),
    "fleet": Metric(label="16 clients, output", unit="tok/s", higher_is_better=True),
    "fleet_first": Metric(label="16 clients, median first token", unit="s", higher_is_better=False),
    "stall": Metric(label="4 streams, longest stall by a prompt of 2000", unit="s", higher_is_better=False),
    "cold": Metric(label="first token, 1000 tokens not seen before", unit="s", higher_is_better=False),
    "hit": Metric(label="first token, the same 1000 with a new end", unit="s", higher_is_better=False),
}


async def decode(endpoint: Endpoint, seed: object) -> Numbers:
    """One stream of 128 tokens after a short prompt."""
    reply = await endpoint.ask(f"Write a long story about {words(4, seed)}.", 128)
    return {"decode": reply.decode_rate}


async def prefill(endpoint: Endpoint, seed: object) -> Numbers:
    """A prompt of about 1000 tokens and one token of answer."""
    reply = await endpoint.ask(words(930, seed), 1)
    return {"prefill": reply.prompt_tokens / reply.first_s}


async def fleet(endpoint: Endpoint, seed: object, *, clients: int = 16, requests: int = 2) -> Numbers:
    """Clients that each make one request after the other: about 200 tokens in, 64 out."""
    replies: list[Reply] = []

    async def client(number: int) -> None:
        for turn in range(requests):
            prompt = f"Tell a story with these words: {words(160, (seed, number, turn))}"
            replies.append(await endpoint.ask(prompt, 64))

    begin = time.perf_counter()
    async with trio.open_nursery() as nursery:
        for number in range(clients):
            nursery.start_soon(client, number)
    seconds = time.perf_counter() - begin
    return {
        "fleet": sum(reply.completion_tokens for reply in replies) / seconds,
        "fleet_first": statistics.median(reply.first_s for reply in replies),
    }


async def stall(endpoint: Endpoint, seed: object, *, streams: int = 4) -> Numbers:
    """The longest time without text in any of the streams while a prompt of about 2000 tokens is read."""
    running = [Arrivals() for _ in range(streams)]
    async with trio.open_nursery() as nursery:
        for number, arrivals in enumerate(running):
            nursery.start_soon(_endless, endpoint, f"Tell a story of {words(5, (seed, number))}.", arrivals)
        for arrivals in running:
            while len(arrivals.times) < 8:
                await arrivals.next()
        begin = time.perf_counter()
        await endpoint.ask(words(1860, (seed, "long")), 1)
        end = time.perf_counter()
        await _one_more(running, end)
        nursery.cancel_scope.cancel()
    gaps = [
        after - before
        for arrivals in running
        for before, after in pairwise(arrivals.times)
        if after > begin and before < end
    ]
    return {"stall": max(gaps)}


async def _endless(endpoint: Endpoint, prompt: str, arrivals: Arrivals) -> None:
    """A stream that is still running when it is cancelled."""
    await endpoint.ask(prompt, 1000, arrivals=arrivals)
    raise SystemExit(f"{endpoint.name}: a stream of 1000 tokens was over before the long prompt was read")


async def _one_more(running: list[Arrivals], since: float) -> None:
    """Wait until each stream has had text after ``since``: a stall may outlast the prompt that caused it."""
    for arrivals in running:
        while arrivals.times[-1] < since:
            await arrivals.next()


async def prefix(endpoint: Endpoint, seed: object) -> Numbers:
    """First token of about 1000 tokens that are new, then with another end each."""
    head = words(920, seed)
    cold = await endpoint.ask(f"{head}\nWhat is this?", 1)
    hits = [await endpoint.ask(f"{head}\nWhich word is {words(2, end)}?", 1) for end in range(3)]
    return {"cold": cold.first_s, "hit": statistics.median(reply.first_s for reply in hits)}


WORKLOADS: dict[str, Workload] = {
    "decode": decode,
    "prefill": prefill,
    "fleet": fleet,
    "stall": stall,
    "prefix": prefix,
}
