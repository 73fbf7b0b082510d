"""From the engine's events to text: the choices of one request as they grow.

One code path for streamed and plain answers: the one sends each piece, the other collects them. Loop thread only.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import assert_never

import trio
from attrs import define, field, frozen

from tlserve.bridge.messages import Embedded, Event, Refused
from tlserve.bridge.ticket import Ticket
from tlserve.engine.messages import Failed, Started, TokenOut
from tlserve.names import RequestId
from tlserve.openai.errors import from_error
from tlserve.openai.values import Alternative, Finish, TokenLogprob
from tlserve.server.timing import Timing
from tlserve.text.stream import TextStream
from tlserve.text.tokenizer import Tokenizer


@frozen
class Piece:
    """What one token added to one choice: text that is safe to send, maybe none; the finish on its last piece."""

    index: int
    text: str
    finish: Finish | None
    logprob: TokenLogprob | None


@define(eq=False)
class _GrowingChoice:
    index: int
    stream: TextStream
    last_token_at: float | None = None
    finish: Finish | None = None


class Answer:
    """All choices of one request.

    Args:
        ticket: the claim on the engine; whoever opened it closes it.
        tokenizer: turns tokens into bytes.
        stops: the stop strings.
        wants_logprobs: whether pieces carry log probabilities.
        timing: filled in as the answer grows.
        answers_per_prompt: how many choices, one after the other, share a prompt; its cached tokens count once.
    """

    def __init__(
        self,
        ticket: Ticket,
        tokenizer: Tokenizer,
        stops: Sequence[str],
        *,
        wants_logprobs: bool,
        timing: Timing,
        answers_per_prompt: int = 1,
    ) -> None:
        self.cached_tokens = 0
        self.timing = timing
        self._ticket = ticket
        self._tokenizer = tokenizer
        self._wants_logprobs = wants_logprobs
        self._answers_per_prompt = answers_per_prompt
        self._choices: dict[RequestId, _GrowingChoice] = {
            request_id: _GrowingChoice(index, TextStream(stops)) for index, request_id in enumerate(ticket.ids)
        }

    @property
    def num_choices(self) -> int:
        """How many answers there will be."""
        return len(self._choices)

    @property
    def completion_tokens(self) -> int:
        """Tokens generated so far over all choices, the end tokens and those of stop strings included."""
        return self.timing.completion_tokens

    @property
    def finishes(self) -> list[Finish | None]:
        """How each choice has ended; None for one that has not."""
        return [choice.finish for choice in self._choices.values()]

    @property
    def was_cut(self) -> bool:
        """Whether every choice has ended at its token limit."""
        return set(self.finishes) == {"length"}

    async def wait_started(self) -> None:
        """Wait until the engine has begun with any choice. Cancelling the wait loses nothing.

        Raises:
            ApiError: the engine refused or failed the request.
        """
        while self.timing.started_at is None:
            self._take(await self._ticket.receive())

    async def next_piece(self) -> Piece | None:
        """The next piece of any choice, or None when all are finished. Cancelling the wait loses nothing.

        Raises:
            ApiError: the engine failed the request.
        """
        while True:
            try:
                event = await self._ticket.receive()
            except trio.EndOfChannel:
                return None
            piece = self._take(event)
            if piece is not None:
                return piece

    def _take(self, event: Event) -> Piece | None:
        if self._choices[event.id].stream.stopped():
            return None  # It was on its way before the engine heard of the stop string.
        match event:
            case Started():
                self.timing.note_start(event.at)
                if self._choices[event.id].index % self._answers_per_prompt == 0:
                    self.cached_tokens += event.cached_tokens
                return None
            case TokenOut():
                return self._grow(event)
            case Failed() | Refused():
                raise from_error(event.error)
            case Embedded():
                return None
            case _:
                assert_never(event)

    def _grow(self, token: TokenOut) -> Piece:
        choice = self._choices[token.id]
        choice.last_token_at = self.timing.note_token(choice.last_token_at)
        finish: Finish | None = None if token.finish is None else token.finish.value
        # An end token is no part of the answer, even where it has a text.
        text = "" if finish == "stop" else choice.stream.push(self._tokenizer.token_bytes(token.token))
        if finish is not None:
            text += choice.stream.finish()
        if choice.stream.stopped():
            self._ticket.end(token.id)
            finish = "stop"
        choice.finish = finish
        return Piece(choice.index, text, finish, self._logprob(token) if self._wants_logprobs else None)

    def _logprob(self, token: TokenOut) -> TokenLogprob:
        top = tuple(
            Alternative(self._tokenizer.token_text(other), logprob, self._tokenizer.token_bytes(other))
            for other, logprob in token.top
        )
        return TokenLogprob(
            self._tokenizer.token_text(token.token), token.logprob, self._tokenizer.token_bytes(token.token), top
        )


@define
class CollectedChoice:
    """A whole choice, for an answer that is not streamed."""

    text: list[str] = field(factory=list)
    logprobs: list[TokenLogprob] = field(factory=list)
    finish: Finish | None = None

    def add(self, piece: Piece) -> None:
        """Append a piece."""
        self.text.append(piece.text)
        self.finish = piece.finish or self.finish
        if piece.logprob is not None:
            self.logprobs.append(piece.logprob)


async def collect(answer: Answer) -> list[CollectedChoice]:
    """Wait for every choice to finish.

    Raises:
        ApiError: the engine failed the request.
    """
    choices = [CollectedChoice() for _ in range(answer.num_choices)]
    while (piece := await answer.next_piece()) is not None:
        choices[piece.index].add(piece)
    return choices
