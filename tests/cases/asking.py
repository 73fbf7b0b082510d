"""The four ways to ask for text, told alike: two endpoints, each plainly and as a stream.

One contract, several code paths: a test that takes a `Way` holds for all of them.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any, Literal

import attrs
import httpx

from support import Server, chunks_of


@attrs.define
class Told:
    """What a client was told of one choice. ``pieces`` are its non-empty texts as they came: one, unless it was streamed."""

    pieces: list[str] = attrs.field(factory=list)
    finishes: list[str] = attrs.field(factory=list)
    logprobs: list[dict[str, Any]] = attrs.field(factory=list)

    @property
    def text(self) -> str:
        """All of it."""
        return "".join(self.pieces)

    @property
    def finish(self) -> str:
        """Why it ended, which is said once."""
        (finish,) = self.finishes
        return finish

    def add(self, choice: dict[str, Any], text: str | None) -> None:
        """Take a choice of a document or of a chunk."""
        self.pieces += [text] if text else []
        self.finishes += [choice["finish_reason"]] if choice["finish_reason"] else []
        self.logprobs += [choice["logprobs"]] if choice.get("logprobs") else []


@attrs.frozen
class Answer:
    """What a client was told: of each choice, and of the tokens."""

    choices: list[Told]
    usage: dict[str, Any]

    @property
    def only(self) -> Told:
        """The one choice."""
        (choice,) = self.choices
        return choice

    @property
    def told(self) -> tuple[str, str]:
        """Text and finish of the one choice."""
        return self.only.text, self.only.finish


@attrs.frozen
class Way:
    """One way to ask."""

    kind: Literal["chat", "completions"]
    stream: bool

    def __str__(self) -> str:
        return f"{self.kind}-{'stream' if self.stream else 'plain'}"

    @property
    def path(self) -> str:
        """The route."""
        return "/v1/chat/completions" if self.kind == "chat" else "/v1/completions"

    def post(self, server: Server, prompt: object, **fields: object) -> httpx.Response:
        """Ask for the continuation of ``prompt``, as the only message or as it is."""
        asked: dict[str, object] = {"prompt": prompt}
        if self.kind == "chat":
            asked = {"messages": [{"role": "user", "content": prompt}]}
        if self.stream:
            asked |= {"stream": True, "stream_options": {"include_usage": True}}
        return server.api.post(self.path, json={"model": server.model, **asked, **fields})

    def ask(self, server: Server, prompt: object, **fields: object) -> Answer:
        """The same, answered."""
        response = self.post(server, prompt, **fields)
        assert response.status_code == 200, response.text
        return self._streamed(response.text) if self.stream else self._plain(response.json())

    def logprobs(self, **fields: int) -> dict[str, object]:
        """The members that ask for ``top`` alternatives at each position."""
        top = fields["top"]
        return {"logprobs": True, "top_logprobs": top} if self.kind == "chat" else {"logprobs": top}

    def _plain(self, document: dict[str, Any]) -> Answer:
        told = []
        for index, choice in enumerate(document["choices"]):
            assert choice["index"] == index
            told.append(Told())
            told[-1].add(choice, choice["message"]["content"] if self.kind == "chat" else choice["text"])
        return Answer(told, document["usage"])

    def _streamed(self, body: str) -> Answer:
        told: dict[int, Told] = defaultdict(Told)
        *chunks, last = chunks_of(body)
        for chunk in chunks:
            for choice in chunk["choices"]:
                told[choice["index"]].add(
                    choice, choice["delta"].get("content") if self.kind == "chat" else choice["text"]
                )
        return Answer([told[index] for index in sorted(told)], last["usage"])


WAYS = [Way(kind, stream) for kind in ("chat", "completions") for stream in (False, True)]
STREAMS = [way for way in WAYS if way.stream]
CHATS = [way for way in WAYS if way.kind == "chat"]
COMPLETIONS = [way for way in WAYS if way.kind == "completions"]


def entries_of(way: Way, told: Told) -> list[dict[str, Any]]:
    """The log probabilities of a choice, one entry a token, in whichever form they came: ``token``, ``logprob``, ``top``."""
    if way.kind == "chat":
        return [
            {**entry, "top": {one["token"]: one["logprob"] for one in entry["top_logprobs"]}}
            for logprobs in told.logprobs
            for entry in logprobs["content"]
        ]
    return [
        {"token": token, "logprob": logprob, "top": top, "offset": offset}
        for logprobs in told.logprobs
        for token, logprob, top, offset in zip(
            *(logprobs[name] for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset")), strict=True
        )
    ]
