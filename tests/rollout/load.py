"""Clients that stream, and clients that ask short questions over pooled connections, all at once; every failure is kept.

A stream counts as answered when it is whole: status 200, exactly the text that the model must say, ``[DONE]``.
"""

from __future__ import annotations

import random
from collections import Counter
from typing import Literal

import attrs
import httpx
import trio

from support import text_of

STREAMING_CLIENTS = 24
ASKING_CLIENTS = 9
PAUSE_S = 0.05

Kind = Literal["stream", "short"]


@attrs.frozen
class Failure:
    """A request that a client did not get its answer to."""

    kind: Kind
    seconds: float
    what: str


@attrs.define(eq=False)
class Load:
    """Requests of many clients to one address, counted.

    Attributes:
        model: the name that requests carry; it must count (after byte i comes byte i + 1).
        num_answered: whole answers, by kind.
        failures: everything else.
    """

    port: int
    model: str
    num_answered: Counter[Kind] = attrs.field(factory=Counter)
    failures: list[Failure] = attrs.field(factory=list)
    _answered: trio.Condition = attrs.field(factory=trio.Condition)

    @property
    def num_requests(self) -> int:
        """Requests that have ended, in whatever way."""
        return self.num_answered.total() + len(self.failures)

    def summary(self) -> str:
        """Numbers for the log, and the first failure."""
        line = (
            f"{self.num_requests} requests ({self.num_answered['stream']} whole streams), {len(self.failures)} failed"
        )
        return line + (f", first {self.failures[0]}" if self.failures else "")

    async def wait_for(self, num_requests: int) -> None:
        """Return when so many requests have ended."""
        async with self._answered:
            while self.num_requests < num_requests:
                await self._answered.wait()

    async def run(self, until: trio.Event) -> None:
        """Keep all clients busy; after ``until`` let each finish what it does, and return."""
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
        base_url = f"http://127.0.0.1:{self.port}/v1"
        async with (
            httpx.AsyncClient(base_url=base_url, limits=limits, timeout=30) as client,
            trio.open_nursery() as all_,
        ):
            for number in range(STREAMING_CLIENTS):
                all_.start_soon(self._client, client, "stream", random.Random(number), until)
            for number in range(ASKING_CLIENTS):
                all_.start_soon(self._client, client, "short", random.Random(1000 + number), until)

    async def _client(self, client: httpx.AsyncClient, kind: Kind, draw: random.Random, until: trio.Event) -> None:
        ask = self._stream if kind == "stream" else self._ask
        while not until.is_set():
            await trio.sleep(draw.uniform(0, 2 * PAUSE_S))
            started = trio.current_time()
            try:
                await ask(client, draw)
            except (httpx.HTTPError, AssertionError) as error:
                self.failures.append(Failure(kind, trio.current_time() - started, repr(error)))
            else:
                self.num_answered[kind] += 1
            async with self._answered:
                self._answered.notify_all()

    async def _stream(self, client: httpx.AsyncClient, draw: random.Random) -> None:
        first, length = draw.randrange(0x20, 0x40), draw.randrange(4, 40)
        body = {
            "model": self.model,
            "messages": [{"role": "user", "content": chr(first)}],
            "max_tokens": length,
            "temperature": 0,
            "stream": True,
        }
        async with client.stream("POST", "/chat/completions", json=body) as response:
            text = (await response.aread()).decode()
        assert response.status_code == 200, (response.status_code, text[:200])
        assert text_of(text) == counted(first, length)

    async def _ask(self, client: httpx.AsyncClient, draw: random.Random) -> None:
        first = draw.randrange(0x20, 0x40)
        body = {"model": self.model, "prompt": chr(first), "max_tokens": 2, "temperature": 0}
        response = await client.post("/completions", json=body)
        assert response.status_code == 200, (response.status_code, response.text[:200])
        assert response.json()["choices"][0]["text"] == counted(first, 2)


def counted(first: int, length: int) -> str:
    """What the counting model says after the byte ``first``."""
    return "".join(chr(first + 1 + i) for i in range(length))
