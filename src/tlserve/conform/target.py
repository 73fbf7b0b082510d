"""The server under test, as a client sees it: requests out, whole answers and streams in, every wait bounded."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import httpx
from attrs import define, frozen

JSON = Mapping[str, Any]


@frozen
class Answer:
    """A whole response."""

    status: int
    headers: Mapping[str, str]
    text: str

    @property
    def document(self) -> Any:
        """The body as JSON, None where it is none."""
        try:
            return json.loads(self.text)
        except ValueError:
            return None


@define
class Target:
    """A server that claims to speak the API. Blocking; safe to use from several threads.

    Attributes:
        http: a client whose base address is that of the API, such as ``http://localhost:8000/v1``.
        model: which model to ask.
        health: a client for health, readiness and metrics, where an address was given.

    """

    http: httpx.Client
    model: str
    health: httpx.Client | None = None

    def get(self, path: str, **headers: str) -> Answer:
        """GET a path below the base address."""
        return self.send("GET", path, headers=headers)

    def post(self, path: str, body: JSON, **headers: str) -> Answer:
        """POST a JSON body; the model is filled in."""
        return self.send("POST", path, content=json.dumps({"model": self.model, **body}), headers=headers)

    def send(self, method: str, path: str, *, content: str = "", headers: Mapping[str, str] | None = None) -> Answer:
        """Send anything and read the whole answer."""
        named = {"Content-Type": "application/json", **{k.replace("_", "-"): v for k, v in (headers or {}).items()}}
        response = self.http.request(method, path, content=content, headers=named)
        return Answer(response.status_code, response.headers, response.text)

    def chat(self, content: str, **fields: object) -> Answer:
        """Ask one question."""
        return self.post("chat/completions", {"messages": [{"role": "user", "content": content}], **fields})

    def stream_chat(self, content: str, **fields: object) -> Answer:
        """Ask one question and read its stream to the end."""
        return self.chat(content, stream=True, **fields)

    @contextmanager
    def opened(self, content: str, **fields: object) -> Iterator[Iterator[str]]:
        """A stream that is left when the block ends, whether it is over or not; gives its lines."""
        body = {"model": self.model, "messages": [{"role": "user", "content": content}], "stream": True, **fields}
        with self.http.stream("POST", "chat/completions", json=body) as response:
            response.raise_for_status()
            yield response.iter_lines()

    def all_at_once(self, asks: Sequence[Callable[[], Answer]]) -> list[Answer | Exception]:
        """What each of several requests gets while all of them run."""

        def safely(ask: Callable[[], Answer]) -> Answer | Exception:
            try:
                return ask()
            except httpx.HTTPError as error:
                return error

        with ThreadPoolExecutor(len(asks)) as pool:
            return list(pool.map(safely, asks))

    def metric(self, name: str) -> float | None:
        """One series of ``/metrics``, None where there is no such thing."""
        if self.health is None:
            return None
        for line in self.health.get("/metrics").text.splitlines():
            if line.startswith(f"{name} "):
                return float(line.rpartition(" ")[2])
        return None
