"""What the chat and the completions route have in common: prepare, submit, wait for the start, answer plainly or as a stream."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import Literal

import trio
from attrs import define, frozen
from quart import Response

from tlserve.config import ServeConfig
from tlserve.openai.chunks import ChatChunks, Chunks, CompletionChunks
from tlserve.openai.documents import Choice, Document, Head, Prefix, chat_completion, new_id, text_completion
from tlserve.openai.errors import ApiError, internal, invalid, no_capacity
from tlserve.openai.requests import GenSpec
from tlserve.openai.sse import CONTENT_TYPE, HEADERS
from tlserve.openai.values import Usage
from tlserve.server.answer import Answer, CollectedChoice, collect
from tlserve.server.api import Api
from tlserve.server.operation import generation
from tlserve.server.prompt import Prepared, prepare
from tlserve.server.responses import json_response, tell_ignored
from tlserve.server.room import Room
from tlserve.server.stream import EventStream
from tlserve.server.terms import Terms
from tlserve.server.timing import Timing


@frozen
class Shape:
    """How an endpoint writes its answers."""

    operation: Literal["chat", "text_completion"]
    prefix: Prefix
    chunks: Callable[[Head, int, int], Chunks]
    document: Callable[[Head, Iterable[Choice], Usage], Document]
    usage_event: Callable[[Head, Usage], str]


def _completion_chunks(head: Head, index: int, text_offset: int) -> Chunks:
    return CompletionChunks(head, index, text_offset=text_offset)


def _chat_chunks(head: Head, index: int, _: int) -> Chunks:
    return ChatChunks(head, index)


CHAT = Shape("chat", "chatcmpl", _chat_chunks, chat_completion, ChatChunks.usage_event)
COMPLETION = Shape("text_completion", "cmpl", _completion_chunks, text_completion, CompletionChunks.usage_event)


async def generate(api: Api, room: Room, spec: GenSpec, shape: Shape, *, body_bytes: int, terms: Terms) -> Response:
    """Answer one generation request.

    Raises:
        ApiError: it was refused, or failed before its first byte.
        TlserveError: as the engine or the template say.
    """
    model = api.model_for(spec.model)
    room.operation = generation(shape.operation, spec)
    prepared = await api.work(partial(prepare, spec, model, terms=terms), body_bytes=body_bytes)
    _check_count(spec, len(prepared.requests), limit=api.config.queue_capacity)
    room.facts.update(stream=spec.stream, prompt_tokens=prepared.prompt_tokens)
    room.timing = Timing(api.metrics, room.started_at, prepared.prompt_tokens)
    ticket = room.stack.enter_context(api.engine.submit(prepared.requests))
    room.stack.enter_context(api.deadlines.watch(ticket, terms.deadline))
    answer = Answer(
        ticket,
        model.tokenizer,
        spec.stop,
        wants_logprobs=spec.params.logprobs is not None,
        timing=room.timing,
        answers_per_prompt=spec.n,
    )
    room.stack.callback(_note_counts, room, answer)
    head = Head(new_id(shape.prefix), int(time.time()), model.id)
    room.facts["id"] = head.id
    response = await _Reply(api.config, room, spec, shape, prepared, answer, head).send()
    return tell_ignored(response, spec.ignored)


def _check_count(spec: GenSpec, num_choices: int, *, limit: int) -> None:
    """Raise ApiError 400 for more choices than the queue holds: a 429 would have the client try again for ever."""
    if num_choices > limit:
        message = f"{num_choices} choices are asked for at once; this server queues {limit} at most (queue_capacity)"
        raise invalid(message, param="n" if spec.n > 1 else "prompt")


@define(eq=False)
class _Reply:
    """An answer on its way into a response."""

    config: ServeConfig
    room: Room
    spec: GenSpec
    shape: Shape
    prepared: Prepared
    answer: Answer
    head: Head

    async def send(self) -> Response:
        """The response, as soon as its status is certain; a stream goes on from there."""
        start_deadline = trio.current_time() + self.config.queue_deadline_ms / 1000
        await self._wait_started(start_deadline)
        return self._streamed(start_deadline) if self.spec.stream else await self._whole()

    async def _wait_started(self, start_deadline: float) -> None:
        """Wait for the first step, while an error can still be answered with a status.

        A stream waits no longer than until its first ping is due; the deadline then holds inside of the stream.
        """
        deadline = start_deadline
        if self.spec.stream:
            deadline = min(deadline, trio.current_time() + self.config.ping_interval_s)
        with trio.move_on_at(deadline) as scope:
            await self.answer.wait_started()
        if scope.cancelled_caught and deadline == start_deadline:
            raise no_capacity(waited_ms=self.config.queue_deadline_ms)

    async def _whole(self) -> Response:
        choices = [self._choice(index, choice) for index, choice in enumerate(await collect(self.answer))]
        return json_response(self.shape.document(self.head, choices, self._usage()))

    def _choice(self, index: int, collected: CollectedChoice) -> Choice:
        if collected.finish is None:
            raise internal("the engine stopped in the middle of this answer; send the request again")
        return Choice(
            index=index,
            text=self.prepared.echoes[index] + "".join(collected.text),
            finish=collected.finish,
            logprobs=None if self.spec.params.logprobs is None else collected.logprobs,
            text_offset=self.prepared.text_offsets[index],
        )

    def _streamed(self, start_deadline: float) -> Response:
        offsets = enumerate(self.prepared.text_offsets)
        chunks = [self.shape.chunks(self.head, index, offset) for index, offset in offsets]
        response = Response(b"", content_type=CONTENT_TYPE, headers=dict(HEADERS))
        response.response = EventStream(
            self.answer,
            chunks,
            echoes=self.prepared.echoes,
            ending=self._ending,
            ping_interval_s=self.config.ping_interval_s,
            start_deadline=start_deadline,
            queue_deadline_ms=self.config.queue_deadline_ms,
            on_end=self._note_end,
        )
        response.timeout = None  # Quart would cut the stream after a minute, without a word.
        del response.headers["Content-Length"]
        return response

    def _ending(self) -> str:
        return self.shape.usage_event(self.head, self._usage()) if self.spec.include_usage else ""

    def _note_end(self, error: ApiError | None) -> None:
        self.room.outcome = "finished" if error is None else "failed"
        self.room.reason = "" if error is None else error.reason

    def _usage(self) -> Usage:
        return Usage(
            prompt_tokens=self.prepared.prompt_tokens,
            completion_tokens=self.answer.completion_tokens,
            cached_tokens=self.answer.cached_tokens,
        )


def _note_counts(room: Room, answer: Answer) -> None:
    """Put into the request's log line what is known at its end, however it ended."""
    room.facts.update(
        completion_tokens=answer.completion_tokens,
        cached_tokens=answer.cached_tokens,
        finish=answer.finishes,
        **answer.timing.milliseconds(),
    )
    if answer.was_cut and room.outcome in (None, "finished"):
        room.outcome = "length"
