"""POST /v1/embeddings: one vector per input, computed between the steps of the others' answers."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import trio
from quart import Response

from tlserve.bridge.messages import Embedded, Event, Refused
from tlserve.bridge.ticket import Ticket
from tlserve.engine.load import ServedModel
from tlserve.engine.messages import Failed
from tlserve.names import RequestId
from tlserve.openai.documents import embedding_list
from tlserve.openai.errors import context_length_exceeded, from_error
from tlserve.openai.requests import EmbeddingSpec
from tlserve.server.api import Api
from tlserve.server.deadline import Deadline
from tlserve.server.operation import embedding
from tlserve.server.prompt import text_tokens
from tlserve.server.responses import json_response, tell_ignored
from tlserve.server.room import Room


async def embed(api: Api, room: Room, spec: EmbeddingSpec, *, body_bytes: int, deadline: Deadline) -> Response:
    """Answer an embeddings request.

    The inputs are submitted a queue's length at a time, so that a list may be longer than the queue.

    Raises:
        ApiError: it was refused or failed.
    """
    model = api.model_for(spec.model)
    room.operation = embedding(spec)
    inputs = await api.work(partial(_tokenize, spec, model), body_bytes=body_bytes)
    num_tokens = sum(map(len, inputs))
    room.facts.update(prompt_tokens=num_tokens)
    vectors: list[Sequence[float]] = []
    for first in range(0, len(inputs), api.config.queue_capacity):
        batch = inputs[first : first + api.config.queue_capacity]
        with api.engine.embed(batch) as ticket, api.deadlines.watch(ticket, deadline):
            vectors += await _collect(ticket)
    api.metrics.embedded(num_tokens)
    document = embedding_list(model.id, vectors, prompt_tokens=num_tokens, encoding=spec.encoding_format)
    return tell_ignored(json_response(document), spec.ignored)


def _tokenize(spec: EmbeddingSpec, model: ServedModel) -> list[tuple[int, ...]]:
    spec.check_vocabulary(model.vocab_size)
    inputs = [text_tokens(text, model, param="input") for text in spec.inputs]
    longest = max(map(len, inputs))
    if longest > model.max_model_len:
        raise context_length_exceeded(prompt_tokens=longest, max_tokens=None, limit=model.max_model_len, param="input")
    return inputs


async def _collect(ticket: Ticket) -> list[Sequence[float]]:
    """The vectors in the order of the inputs."""
    vectors: dict[RequestId, Sequence[float]] = {}
    while True:
        try:
            event = await ticket.receive()
        except trio.EndOfChannel:
            return [vectors[request_id] for request_id in ticket.ids]
        vectors[event.id] = _vector_of(event)


def _vector_of(event: Event) -> Sequence[float]:
    match event:
        case Embedded():
            return event.vector
        case Failed() | Refused():
            raise from_error(event.error)
        case _:
            raise TypeError(f"an embedding cannot answer with {type(event).__name__}")
