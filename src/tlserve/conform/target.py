"""The server under test, as a client sees it: requests out, whole answers and streams in.

Every wait and every size is bounded: a server that hangs, drips or never stops talking costs a `NoAnswer`.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any
from urllib.parse import quote

import attrs
import httpx
from attrs import define, frozen

JSON = Mapping[str, Any]
MOST_BYTES = 16 * 1024**2
"""No answer to any case comes near this."""


class NoAnswer(Exception):
    """The target closes, hangs, or sends what is not HTTP; the message says which."""


class Unreachable(NoAnswer):
    """Nobody listens at the address, or it is none."""


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
            return parsed(self.text)
        except ValueError:
            return None


def parsed(text: str) -> Any:
    """JSON as its standard has it: NaN is none.

    Raises:
        ValueError: it is not JSON, or nested beyond reason.
    """

    def refuse(name: str) -> Any:
        raise ValueError(f"{name} is not JSON")

    try:
        return json.loads(text, parse_constant=refuse)
    except RecursionError:
        raise ValueError("nested too deeply") from None


@define
class Target:
    """A server that claims to speak the API. Blocking; safe to use from several threads.

    Attributes:
        http: a client whose base address is that of the API, such as ``http://localhost:8000/v1``.
        model: which model to ask.
        limit_s: how long a whole answer may take, first byte to last.
        health: a client for health, readiness and metrics, where an address was given.

    """

    http: httpx.Client
    model: str
    limit_s: float
    health: httpx.Client | None = None

    @property
    def model_path(self) -> str:
        """Where the model's own document is."""
        return f"models/{quote(self.model)}"

    def get(self, path: str, **headers: str) -> Answer:
        """GET a path below the base address."""
        return self.send("GET", path, headers=headers)

    def post(self, path: str, body: JSON, **headers: str) -> Answer:
        """POST a JSON body; the model is filled in."""
        return self.send("POST", path, content=json.dumps({"model": self.model, **body}), headers=headers)

    def send(self, method: str, path: str, *, content: str = "", headers: Mapping[str, str] | None = None) -> Answer:
        """Send anything and read the whole answer.

        Raises:
            NoAnswer: there is none, or it does not end.
        """
        named = {"Content-Type": "application/json", **{k.replace("_", "-"): v for k, v in (headers or {}).items()}}
        with _named_failures(), self.http.stream(method, path, content=content, headers=named) as response:
            text = _read(response, self.limit_s).decode("utf-8", "replace")  # As JSON and SSE always are.
            return Answer(response.status_code, response.headers, text)

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
        with _named_failures(), self.http.stream("POST", "chat/completions", json=body) as response:
            response.raise_for_status()
            yield response.iter_lines()

    def all_at_once(self, asks: Sequence[Callable[[], Answer]]) -> list[Answer | NoAnswer]:
        """What each of several requests gets while all of them run.

        The threads are daemons, so that one which a server keeps waiting does not keep the process.
        """
        answers: dict[int, Answer | NoAnswer] = {}

        def run(number: int, ask: Callable[[], Answer]) -> None:
            try:
                answers[number] = ask()
            except NoAnswer as error:
                answers[number] = error

        threads = [threading.Thread(target=run, args=pair, daemon=True) for pair in enumerate(asks)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return [answers.get(number, NoAnswer("the answer makes no sense")) for number in range(len(asks))]

    def probe(self, path: str) -> Answer | None:
        """GET from the health address; None where none was given."""
        if self.health is None:
            return None
        return attrs.evolve(self, http=self.health).send("GET", path)

    def metric(self, name: str) -> float | None:
        """One series of ``/metrics``, None where there is no such thing."""
        scrape = self.probe("metrics")
        for line in scrape.text.splitlines() if scrape else ():
            if line.startswith(f"{name} "):
                return float(line.rpartition(" ")[2])
        return None


@contextmanager
def _named_failures() -> Iterator[None]:
    try:
        yield
    except (httpx.ConnectError, httpx.ConnectTimeout, httpx.UnsupportedProtocol, httpx.InvalidURL) as error:
        raise Unreachable(f"{type(error).__name__}: {error}") from error
    except httpx.HTTPError as error:
        raise NoAnswer(f"{type(error).__name__}: {error}") from error


def _read(response: httpx.Response, limit_s: float) -> bytes:
    deadline = time.monotonic() + limit_s
    data = bytearray()
    for piece in response.iter_bytes():
        data += piece
        if len(data) > MOST_BYTES:
            raise NoAnswer(f"the answer is longer than {MOST_BYTES} bytes")
        if time.monotonic() > deadline:
            raise NoAnswer(f"the answer does not end within {limit_s:g} s")
    return bytes(data)
