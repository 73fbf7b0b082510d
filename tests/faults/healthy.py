"""Well-behaved clients: they stream one answer after another and hold each against what it must be."""

from __future__ import annotations

import json
from collections import Counter

import attrs
import httpx
import trio

from .poison import expected_text
from .storm import MODEL

STREAM_TOKENS = 300


@attrs.define
class Healthy:
    """What the well-behaved clients have seen."""

    finished: Counter[int] = attrs.field(factory=Counter)
    refused: Counter[int] = attrs.field(factory=Counter)
    wrong: list[str] = attrs.field(factory=list)

    async def stream_on(self, api: str, number: int, is_over: trio.Event) -> None:
        """Stream one answer after another until the storm is over."""
        last = chr(0x30 + number)
        body = {"model": MODEL, "messages": [{"role": "user", "content": f"client {last}"}], "temperature": 0}
        body |= {"stream": True, "max_tokens": STREAM_TOKENS}
        async with httpx.AsyncClient(base_url=api, timeout=30) as client:
            while not is_over.is_set() or not self.finished[number]:
                await self._one(client, body, number, expected_text(last, STREAM_TOKENS))

    async def _one(self, client: httpx.AsyncClient, body: dict[str, object], number: int, expected: str) -> None:
        headers = {"X-TL-Priority": "50"}
        async with client.stream("POST", "/v1/chat/completions", json=body, headers=headers) as response:
            text = (await response.aread()).decode()
        if response.status_code in (429, 503):  # A full house is no fault: they come again, as they are told to.
            self.refused[response.status_code] += 1
            await trio.sleep(0.05)
            return
        got = streamed_text(text)
        if response.status_code != 200 or got != expected:
            self.wrong.append(f"{response.status_code}: {text[-300:]}")
        self.finished[number] += 1


def streamed_text(body: str) -> str:
    """The text of a chat stream that ends as it should; else what is wrong with it."""
    *events, done = [event.removeprefix("data: ") for event in body.split("\n\n") if event.startswith("data: ")]
    chunks = [json.loads(event) for event in events]
    if done != "[DONE]" or any("error" in chunk for chunk in chunks):
        return f"a stream that ends with {events[-1:]} {done}"
    return "".join(choice["delta"].get("content") or "" for chunk in chunks for choice in chunk["choices"])
