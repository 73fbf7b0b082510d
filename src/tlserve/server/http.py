"""Serving an ASGI application over one listening socket: Hypercorn's protocols, our own way of accepting and ending.

Hypercorn parses HTTP, keeps connections alive and speaks ASGI. Its accept loop is written anew here because three things
must hold that it leaves open: a send that fails ends its connection even while the reader waits behind pipelined bytes (there
it would wait for ever), a peer that no longer reads can be cut off (the sends are shielded from cancellation), and an application
without lifespan needs no lifespan.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial

import trio
from hypercorn.config import Config
from hypercorn.events import Closed, Event, RawData
from hypercorn.trio.tcp_server import TCPServer
from hypercorn.trio.worker_context import WorkerContext
from hypercorn.typing import AppWrapper, ASGIFramework, ConnectionState, LifespanState
from hypercorn.utils import wrap_app

from tlserve.server.listen import Listener


class HttpServer:
    """One application on one socket. Loop thread only.

    Args:
        app: the ASGI application.
        listener: a socket that listens; it is closed when the server stops accepting.
        config: Hypercorn's settings; ``graceful_timeout`` bounds the wait for open requests.
    """

    def __init__(self, app: ASGIFramework, listener: Listener, config: Config) -> None:
        self._app = app
        self._listener = listener
        self._config = config
        self._connections: set[Connection] = set()

    async def serve(self, until: Callable[[], Awaitable[None]]) -> None:
        """Accept until ``until`` returns; then close idle connections and return when the busy ones are done."""
        context = WorkerContext(None)
        handler = partial(self._handle, wrap_app(self._app, self._config.wsgi_max_body_size, "asgi"), context)
        sockets = [trio.SocketListener(trio.socket.from_stdlib_socket(self._listener.socket))]
        async with trio.open_nursery() as connections:
            async with trio.open_nursery() as accepting:
                accepting.start_soon(partial(trio.serve_listeners, handler, sockets, handler_nursery=connections))
                await until()
                accepting.cancel_scope.cancel()
            await context.terminated.set()
            connections.cancel_scope.deadline = trio.current_time() + self._config.graceful_timeout

    def cut_connections(self) -> int:
        """End every connection that is still open, even one whose peer no longer reads; returns how many there were."""
        for connection in tuple(self._connections):
            connection.cut()
        return len(self._connections)

    async def _handle(self, app: AppWrapper, context: WorkerContext, stream: trio.SocketStream) -> None:
        connection = Connection(app, self._config, context, ConnectionState(LifespanState()), stream)
        self._connections.add(connection)
        try:
            await connection.run()
        finally:
            self._connections.discard(connection)


class Connection(TCPServer):
    """A connection that ends when it can no longer send, and can be cut."""

    def __init__(
        self,
        app: AppWrapper,
        config: Config,
        context: WorkerContext,
        state: ConnectionState,
        stream: trio.SocketStream,
    ) -> None:
        super().__init__(app, config, context, state, stream)  # type: ignore[arg-type]  # It takes plain streams too.
        self._life = trio.CancelScope()
        self._sending: set[trio.CancelScope] = set()

    async def run(self) -> None:
        """Serve the connection to its end."""
        with self._life:
            await super().run()

    def cut(self) -> None:
        """End it now, in the middle of a send if need be."""
        self._life.cancel()
        for scope in self._sending:
            scope.cancel()

    async def protocol_send(self, event: Event) -> None:
        """Send what the protocol has written; a message is sent whole or the connection ends."""
        if not isinstance(event, RawData):
            await super().protocol_send(event)
            return
        async with self.send_lock:
            is_sent = await self._send_whole(event.data)
        if not is_sent:
            await self.protocol.handle(Closed())
            self._life.cancel()

    async def _send_whole(self, data: bytes) -> bool:
        """Send all of ``data`` whatever is cancelled around it; False if the peer is gone or the connection was cut."""
        scope = trio.CancelScope(shield=True)
        self._sending.add(scope)
        try:
            with scope:
                await self.stream.send_all(data)
                return True
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            return False
        finally:
            self._sending.discard(scope)
        return False
