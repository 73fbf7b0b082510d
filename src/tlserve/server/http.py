"""Serving an ASGI application over one listening socket: Hypercorn's protocols, our own way of accepting and ending.

Hypercorn parses HTTP, keeps connections alive and speaks ASGI. Its accept loop is written anew here because these things must
hold that it leaves open: there is a limit to the connections, a connection that fails takes no other with it, a peer that no longer
reads can be cut off (see ``connection``), and an application without lifespan needs no lifespan.
"""

from __future__ import annotations

import ssl
from collections.abc import Awaitable, Callable
from functools import partial

import trio
from hypercorn.config import Config
from hypercorn.trio.worker_context import WorkerContext
from hypercorn.typing import AppWrapper, ASGIFramework
from hypercorn.utils import wrap_app

from tlserve.server.connection import Connection, Stream
from tlserve.server.connection_metrics import ConnectionMetrics
from tlserve.server.limits import ConnectionLimits
from tlserve.server.listen import Listener
from tlserve.server.log import log_failure


class HttpServer:
    """One application on one socket. Loop thread only.

    Args:
        app: the ASGI application.
        listener: a socket that listens; it is closed when the server stops accepting.
        config: Hypercorn's settings; ``graceful_timeout`` bounds the wait for open requests.
        limits: how many connections there may be, and how slow their peers.
        tls: with it connections are TLS.
        metrics: told of connections as they come and go; none where nobody looks.
    """

    def __init__(
        self,
        app: ASGIFramework,
        listener: Listener,
        config: Config,
        *,
        limits: ConnectionLimits,
        tls: ssl.SSLContext | None = None,
        metrics: ConnectionMetrics | None = None,
    ) -> None:
        self._app = app
        self._listener = listener
        self._config = config
        self._limits = limits
        self._tls = tls
        self._connections: set[Connection] = set()
        self._metrics = metrics or ConnectionMetrics()

    async def serve(self, until: Callable[[], Awaitable[None]]) -> None:
        """Accept until ``until`` returns; then close idle connections and return when the busy ones are done."""
        context = WorkerContext(None)
        handler = partial(self._handle, wrap_app(self._app, self._config.wsgi_max_body_size, "asgi"), context)
        async with trio.open_nursery() as connections:
            async with trio.open_nursery() as accepting:
                serve = partial(trio.serve_listeners, handler, [self._sockets()], handler_nursery=connections)
                accepting.start_soon(serve)
                await until()
                accepting.cancel_scope.cancel()
            await context.terminated.set()
            connections.cancel_scope.deadline = trio.current_time() + self._config.graceful_timeout

    def cut_connections(self) -> int:
        """End every connection that is still open, even one whose peer no longer reads; returns how many there were."""
        for connection in tuple(self._connections):
            connection.cut()
        return len(self._connections)

    def _sockets(self) -> trio.abc.Listener[Stream]:
        plain = trio.SocketListener(trio.socket.from_stdlib_socket(self._listener.socket))
        return plain if self._tls is None else trio.SSLListener(plain, self._tls, https_compatible=True)

    async def _handle(self, app: AppWrapper, context: WorkerContext, stream: Stream) -> None:
        """Serve one connection. Whatever goes wrong in it is logged and stays in it."""
        if not self._make_room():
            self._metrics.refused += 1
            return
        connection = Connection(app, self._config, context, stream, limits=self._limits)
        self._connections.add(connection)
        self._metrics.open += 1
        try:
            await connection.run()
        except Exception as error:  # noqa: BLE001  (one connection must not end all others)
            log_failure("connection_failed", error)
        finally:
            self._connections.discard(connection)
            self._metrics.open -= 1

    def _make_room(self) -> bool:
        """Whether one more connection may be; if they are too many the one that has idled for longest makes room."""
        if len(self._connections) < self._limits.max_connections:
            return True
        idle = [connection for connection in self._connections if connection.is_idle]
        if not idle:
            return False
        oldest = min(idle, key=lambda connection: connection.idle_since)
        oldest.cut()
        self._connections.discard(oldest)
        self._metrics.evicted += 1
        return True
