"""The room of one request: the outermost ASGI layer, one per server.

Everything that must happen to every request whatever the routes do, and whatever becomes of the client, happens here: its id, the
release of what it holds, its line in the log. Quart runs inside.

A handler that returns a stream has ended before the stream begins, and a stream that never starts never runs its ``finally``.
So what a request holds is entered on the room's ExitStack, which is unwound in every case.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from typing import Any, cast

import trio
from attrs import define, field
from hypercorn.typing import ASGIFramework, ASGIReceiveCallable, ASGISendCallable, ASGISendEvent, Scope

from tlserve.openai.errors import DEADLINE_EXCEEDED
from tlserve.openai.headers import request_id
from tlserve.server.keys import ANYONE, Tenant
from tlserve.server.log import log_event
from tlserve.server.operation import Operation
from tlserve.server.shutdown import Shutdown
from tlserve.server.timing import Timing

ROOM_KEY = "tlserve.room"


@define(eq=False)
class Room:
    """What is known of one request, filled in as it goes along."""

    request_id: str
    method: str
    path: str
    headers: Sequence[tuple[bytes, bytes]] = field(default=(), repr=False)
    started_at: float = field(factory=time.perf_counter)
    stack: ExitStack = field(factory=ExitStack)
    status: int | None = None
    outcome: str | None = None
    reason: str = ""
    operation: Operation | None = None
    timing: Timing | None = None
    is_complete: bool = False
    tenant: Tenant = ANYONE
    facts: dict[str, object] = field(factory=dict)

    def elapsed_ms(self) -> float:
        """Milliseconds since the request's first byte was parsed."""
        return round((time.perf_counter() - self.started_at) * 1000, 2)

    def final_outcome(self) -> str:
        """One word for how the request ended: what its handler said, or what its status and its completeness say."""
        if not self.is_complete or self.reason == DEADLINE_EXCEEDED:
            return "aborted"
        if self.outcome is not None:
            return self.outcome
        if self.status is None or self.status >= 500:
            return "failed"
        return "rejected" if self.status >= 400 else "finished"

    def final_reason(self) -> str:
        """Why it was not answered; empty when it was.

        The code of its error; ``disconnect`` when the client left, ``deadline`` when the time that it gave was over.
        """
        match self.final_outcome():
            case "aborted":
                return "deadline" if self.reason == DEADLINE_EXCEEDED else "disconnect"
            case "rejected" | "failed":
                return self.reason or "unknown"
            case _:
                return ""


class RequestRooms:
    """An ASGI application around another one.

    Args:
        app: the routes.
        shutdown: while it drains, every response says ``Connection: close``.
        on_end: each is told every room when its request is over, in whatever way.
        is_logged: whether the requests of this server are worth a line each (those of probes are not).
    """

    def __init__(
        self, app: ASGIFramework, *, shutdown: Shutdown, on_end: Iterable[Callable[[Room], None]], is_logged: bool
    ) -> None:
        self._app = app
        self._shutdown = shutdown
        self._on_end = tuple(on_end)
        self._is_logged = is_logged

    async def __call__(self, scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        """Serve one request, or pass on what is none (Hypercorn's lifespan)."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given_id = dict(scope["headers"]).get(b"x-request-id", b"").decode("latin-1")
        room = Room(request_id(given_id or None), scope["method"], scope["path"], tuple(scope["headers"]))
        cast("dict[str, Any]", scope)[ROOM_KEY] = room
        try:
            with room.stack:
                await self._app(scope, receive, self._furnished(room, send))
        finally:
            for tell in self._on_end:
                tell(room)
            if self._is_logged:
                self._write_line(room)

    def _furnished(self, room: Room, send: ASGISendCallable) -> ASGISendCallable:
        async def send_in_room(message: ASGISendEvent) -> None:
            if message["type"] == "http.response.start":
                room.status = message["status"]
                message["headers"] = [*message["headers"], *self._headers(room)]
            if message["type"] != "http.response.body" or message.get("more_body", False):
                await send(message)
                return
            # Hypercorn reports a disconnect to the application while it sends the last body message. Quart-Trio answers by
            # cancelling the request, which would kill the task that closes the connection when it has been idle: no keep-alive
            # limit then, and a drain that waits for nothing. So the last message is sent to its end.
            with trio.CancelScope(shield=True):
                await send(message)
            room.is_complete = True

        return send_in_room

    def _headers(self, room: Room) -> list[tuple[bytes, bytes]]:
        headers = [(b"x-request-id", room.request_id.encode("ascii"))]
        if self._shutdown.is_draining:
            headers.append((b"connection", b"close"))
        return headers

    def _write_line(self, room: Room) -> None:
        log_event(
            "request",
            request_id=room.request_id,
            method=room.method,
            path=room.path[:200],
            status=room.status,
            outcome=room.final_outcome(),
            **({"reason": reason} if (reason := room.final_reason()) else {}),
            duration_ms=room.elapsed_ms(),
            **room.facts,
        )
