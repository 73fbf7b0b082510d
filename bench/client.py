"""A server under measurement: streamed chats with it, and the moments at which their text arrived.

Knows the OpenAI protocol and nothing of any server's make: tokens are counted by the server's own ``usage``, because one
event may carry several tokens or half of one.
"""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import trio
from attrs import define, field, frozen

WAYS_TO_GO_ON: tuple[dict[str, Any], ...] = ({"ignore_eos": True}, {"min_tokens": 1}, {})
"""Fields that make answers long enough to be measured, best first; servers know one of them or none."""

PATIENCE_S = 600


@frozen(kw_only=True)
class Reply:
    """One streamed answer; times in seconds of `time.perf_counter`.

    Attributes:
        sent: when the request went out.
        arrivals: when each event with text came in.
        ended: when the stream was over.

    """

    sent: float
    arrivals: tuple[float, ...]
    ended: float
    prompt_tokens: int
    completion_tokens: int

    @property
    def first_s(self) -> float:
        """Seconds to the first text; to the end where there was none."""
        return (self.arrivals[0] if self.arrivals else self.ended) - self.sent

    @property
    def decode_rate(self) -> float:
        """Tokens per second after the first."""
        return (self.completion_tokens - 1) / (self.ended - self.sent - self.first_s)


@define
class Arrivals:
    """The times of a stream that is still running; `event` is renewed with every text."""

    times: list[float] = field(factory=list)
    news: trio.Event = field(factory=trio.Event)

    def add(self) -> None:
        """Text came in just now."""
        self.times.append(time.perf_counter())
        self.news.set()
        self.news = trio.Event()

    async def next(self) -> None:
        """Wait for the next text."""
        await self.news.wait()


@frozen(kw_only=True)
class Endpoint:
    """A base URL, the model it serves, and which field makes it go on past the end of its answer."""

    name: str
    model: str
    client: httpx.AsyncClient
    go_on: dict[str, Any]

    async def ask(self, prompt: str, max_tokens: int, *, arrivals: Arrivals | None = None) -> Reply:
        """One greedy chat of one user message; ``arrivals`` is told as text comes in.

        Raises:
            SystemExit: the server answered with an error.

        """
        arrivals = arrivals or Arrivals()
        usage = {"prompt_tokens": 0, "completion_tokens": 0}
        go_on = {key: max_tokens if key == "min_tokens" else value for key, value in self.go_on.items()}
        sent = time.perf_counter()
        async with self.client.stream(
            "POST", "/v1/chat/completions", json=self.body(prompt, max_tokens) | go_on
        ) as got:
            if got.status_code != 200:
                raise SystemExit(f"{self.name}: {got.status_code}: {(await got.aread())[:300]!r}")
            async for line in got.aiter_lines():
                if line.startswith("data: {"):
                    event = json.loads(line.removeprefix("data: "))
                    usage = event.get("usage") or usage
                    if has_text(event):
                        arrivals.add()
        return Reply(
            sent=sent,
            arrivals=tuple(arrivals.times),
            ended=time.perf_counter(),
            prompt_tokens=usage["prompt_tokens"],
            completion_tokens=usage["completion_tokens"],
        )

    def body(self, prompt: str, max_tokens: int) -> dict[str, Any]:
        """The request document, without the field that makes the answer go on."""
        return {
            "model": self.model,
            "messages": [{"role": "user", "content": prompt}],
            "max_tokens": max_tokens,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }


def has_text(event: dict[str, Any]) -> bool:
    """Whether an event brings text: not the role alone, not the usage, not the bare end."""
    return any(choice.get("delta", {}).get("content") for choice in event.get("choices", ()))


@asynccontextmanager
async def connected(name: str, base_url: str) -> AsyncIterator[Endpoint]:
    """An endpoint whose model and habits were found out by asking.

    Raises:
        SystemExit: nobody listens there, or it is not an OpenAI-compatible server.

    """
    base_url = base_url.rstrip("/").removesuffix("/v1")
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
    async with httpx.AsyncClient(base_url=base_url, timeout=PATIENCE_S, limits=limits) as client:
        try:
            models = (await client.get("/v1/models")).raise_for_status().json()["data"]
        except (httpx.HTTPError, ValueError, LookupError) as error:
            raise SystemExit(f"{name}: {base_url}/v1/models does not answer as it should: {error!r}") from None
        endpoint = Endpoint(name=name, model=models[0]["id"], client=client, go_on={})
        for go_on in WAYS_TO_GO_ON:
            body = endpoint.body("Hello", 2) | go_on
            if (await client.post("/v1/chat/completions", json=body)).status_code == 200:
                break
        yield Endpoint(name=name, model=endpoint.model, client=client, go_on=go_on)
