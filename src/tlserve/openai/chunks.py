"""Streams: pieces of text in, server-sent events out, well formed by construction.

One :class:`ChatChunks` or :class:`CompletionChunks` for each choice. However its methods are called, a choice's
stream is: the role (chat), pieces, and at most one chunk with a ``finish_reason``, which is its last. A request that
fails ends with :func:`failure`, which has no ``finish_reason`` to mistake it for an answer.

Rendering runs once a token on the event loop, so what never changes in an event is written once a stream.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

from tlserve.openai.documents import Head
from tlserve.openai.errors import ApiError
from tlserve.openai.jsontext import to_json
from tlserve.openai.logprobs import CompletionLogprobs, chat_logprobs
from tlserve.openai.sse import DONE, event
from tlserve.openai.values import Finish, TokenLogprob, Usage


class Chunks(ABC):
    """The events of one choice."""

    object: ClassVar[str]

    def __init__(self, head: Head, index: int) -> None:
        head_of_chunk = to_json({**head.members(self.object), "choices": []}).removesuffix("]}")
        self._before = f'data: {head_of_chunk}{{"index":{index},'
        self._waiting: list[TokenLogprob] = []
        self._opened = False
        self._finished = False

    def opening(self) -> str:
        """The event that goes out before any token; empty when it has gone out, or where there is none."""
        if self._opened:
            return ""
        self._opened = True
        return self._first()

    def piece(self, text: str, *, finish: Finish | None = None, logprob: TokenLogprob | None = None) -> str:
        """The events for one token: its text, which may be held back and so empty, and the finish if it is the last.

        Nothing is sent for an empty piece; its log probabilities wait for the next chunk. The finish is always sent.
        """
        if logprob is not None:
            self._waiting.append(logprob)
        if self._finished or not (text or finish):
            return ""
        self._finished = finish is not None
        return self.opening() + self._chunk(self._body(to_json(text)), finish)

    @classmethod
    def usage_event(cls, head: Head, usage: Usage) -> str:
        """The event after the last chunk of the last choice, for those who asked: no choices, the token counts."""
        return event(to_json({**head.members(cls.object), "choices": [], "usage": usage.document()}))

    def _chunk(self, body: str, finish: Finish | None = None) -> str:
        reason = f'"{finish}"' if finish else "null"
        return f'{self._before}{body},"finish_reason":{reason}}}]}}\n\n'

    def _take_waiting(self) -> list[TokenLogprob]:
        waiting, self._waiting = self._waiting, []
        return waiting

    @abstractmethod
    def _first(self) -> str:
        """The opening event, if this kind of stream has one."""

    @abstractmethod
    def _body(self, text: str) -> str:
        """The members of the choice around ``text``, which is JSON already; takes the waiting log probabilities."""


class ChatChunks(Chunks):
    """The events of one choice of a chat completion: the role in the first, exactly once."""

    object = "chat.completion.chunk"

    def _first(self) -> str:
        return self._chunk('"delta":{"role":"assistant","content":""}')

    def _body(self, text: str) -> str:
        delta = f'"delta":{{"content":{text}}}'
        waiting = self._take_waiting()
        return f'{delta},"logprobs":{to_json(chat_logprobs(waiting))}' if waiting else delta


class CompletionChunks(Chunks):
    """The events of one choice of a text completion; ``text_offset`` is the length of the prompt's text."""

    object = "text_completion"

    def __init__(self, head: Head, index: int, *, text_offset: int = 0) -> None:
        super().__init__(head, index)
        self._logprobs = CompletionLogprobs(text_offset)

    def _first(self) -> str:
        return ""

    def _body(self, text: str) -> str:
        waiting = self._take_waiting()
        logprobs = to_json(self._logprobs.document(waiting)) if waiting else "null"
        return f'"text":{text},"logprobs":{logprobs}'


def failure(error: ApiError) -> str:
    """The end of a stream that cannot be finished: the error document as an event, then ``[DONE]``."""
    return event(to_json(error.document())) + DONE
