"""The body of a streamed answer: pieces to server-sent events, with pings while there is nothing to say.

An iterator object and not an async generator: no cancel scope stays open across a yield, and nothing waits for a garbage
collector when the client leaves. The ticket belongs to the request's room, so a stream that never starts leaks nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Self

import trio
from quart.wrappers.response import ResponseBody

from tlserve.openai.chunks import Chunks, failure
from tlserve.openai.errors import ApiError, internal, no_capacity
from tlserve.openai.sse import DONE, PING
from tlserve.server.answer import Answer
from tlserve.server.log import log_failure


class EventStream(ResponseBody):
    """The events of one answer, as bytes.

    Args:
        answer: where the pieces come from.
        chunks: one writer per choice.
        echoes: for each choice, what comes before its first piece, maybe nothing.
        ending: renders what follows the last piece: the usage chunk, when it was asked for.
        ping_interval_s: after so long without an event a comment is sent.
        start_deadline: trio's clock; an answer that has not been started by then ends with ``no_capacity``.
        queue_deadline_ms: the same as the operator wrote it, for the error message.
        on_end: told how the stream ended: None, or the error that it ended with.
    """

    def __init__(
        self,
        answer: Answer,
        chunks: Sequence[Chunks],
        *,
        echoes: Sequence[str],
        ending: Callable[[], str],
        ping_interval_s: float,
        start_deadline: float,
        queue_deadline_ms: int,
        on_end: Callable[[ApiError | None], None],
    ) -> None:
        self._answer = answer
        self._chunks = chunks
        self._echoes = echoes
        self._ending = ending
        self._ping_interval_s = ping_interval_s
        self._start_deadline = start_deadline
        self._queue_deadline_ms = queue_deadline_ms
        self._on_end = on_end
        self._is_opened = False
        self._is_over = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_over = True

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        if self._is_over:
            raise StopAsyncIteration
        try:
            text = await self._next_text()
        except ApiError as error:
            text = self._fail(error)
        except Exception as error:  # noqa: BLE001  (the client must get an end that it can read)
            log_failure("unexpected_error", error)
            text = self._fail(internal())
        return text.encode()

    async def _next_text(self) -> str:
        if not self._is_opened:
            self._is_opened = True
            pairs = zip(self._chunks, self._echoes, strict=True)
            opening = "".join(chunks.opening() + chunks.piece(echo) for chunks, echo in pairs)
            if opening:
                return opening
        while True:
            text = await self._wait_for_text()
            if text:
                return text

    async def _wait_for_text(self) -> str:
        """The events of one piece, which may be none; or a ping, or the end."""
        with trio.move_on_after(self._ping_interval_s) as patience:
            if self._answer.timing.started_at is None:
                patience.deadline = min(patience.deadline, self._start_deadline)
            piece = await self._answer.next_piece()
        if patience.cancelled_caught:
            if self._answer.timing.started_at is None and trio.current_time() >= self._start_deadline:
                raise no_capacity(waited_ms=self._queue_deadline_ms)
            return PING
        if piece is not None:
            return self._chunks[piece.index].piece(piece.text, finish=piece.finish, logprob=piece.logprob)
        self._is_over = True
        self._on_end(None)
        return self._ending() + DONE

    def _fail(self, error: ApiError) -> str:
        self._is_over = True
        self._on_end(error)
        return failure(error)
