"""What every route of the API may use, and the two questions that come before any of them: are we open, is it our model?"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import trio
from attrs import field, frozen
from quart import request

from tlserve.bridge.client import EngineClient
from tlserve.config import ServeConfig
from tlserve.engine.load import ServedModel
from tlserve.openai.errors import draining, internal, loading, model_not_found
from tlserve.server.deadline import Deadlines
from tlserve.server.keys import KeyRing
from tlserve.server.limits import BodyBudget
from tlserve.server.request_metrics import RequestMetrics
from tlserve.server.room import ROOM_KEY, Room
from tlserve.server.shutdown import Shutdown

T = TypeVar("T")

LONG_BODY_BYTES = 8192
"""Rendering and tokenizing a body of this size takes about a millisecond."""


@frozen
class Api:
    """The collaborators of the routes. Loop thread only."""

    config: ServeConfig
    engine: EngineClient
    shutdown: Shutdown
    keys: KeyRing
    deadlines: Deadlines
    bodies: BodyBudget
    metrics: RequestMetrics
    _limiter: trio.CapacityLimiter = field(factory=lambda: trio.CapacityLimiter(1), init=False)

    async def work(self, function: Callable[[], T], *, body_bytes: int) -> T:
        """Render and tokenize: here where it is quick, in a worker thread where the body is long.

        One thread at a time: what is left of the processor belongs to the engine.
        """
        if body_bytes <= LONG_BODY_BYTES:
            return function()
        return await trio.to_thread.run_sync(function, limiter=self._limiter)

    def open_model(self) -> ServedModel:
        """The served model.

        Raises:
            ApiError: 503 while the model loads and while the server drains, 500 when the engine has failed.
        """
        if self.engine.failure is not None:
            raise internal("the engine has failed and this process is about to exit; try another replica")
        if self.shutdown.is_refusing:
            raise draining()
        if self.engine.model is None:
            raise loading(self.engine.progress.phase.value)
        return self.engine.model

    def model_for(self, name: str) -> ServedModel:
        """The served model, if ``name`` is its id.

        Raises:
            ApiError: 404 for another name; and as ``open_model``.
        """
        model = self.open_model()
        if name != model.id:
            raise model_not_found(name, served=[model.id])
        return model


def current_room() -> Room:
    """The room of the request that Quart is handling."""
    scope: dict[str, Any] = request.scope  # type: ignore[assignment]  # A TypedDict that knows nothing of our key.
    room: Room = scope[ROOM_KEY]
    return room
