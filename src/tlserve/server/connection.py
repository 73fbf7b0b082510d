"""One accepted connection, from its handshake to its end.

Hypercorn's own is the base. It is changed where a peer could otherwise keep it for ever: a request's head must arrive within a
time (however many bytes come meanwhile), a send that fails ends the connection even while its reader waits behind pipelined
bytes, and a connection can be cut in the middle of a send. One thing is friendlier: a peer that is refused while it still sends gets
to read the answer before its connection is reset.
"""

from __future__ import annotations

import os
from math import inf

import trio
from hypercorn.config import Config
from hypercorn.events import Closed, Event, RawData, Updated
from hypercorn.trio.task_group import TaskGroup
from hypercorn.trio.tcp_server import MAX_RECV, TCPServer
from hypercorn.trio.worker_context import WorkerContext
from hypercorn.typing import AppWrapper, ConnectionState, LifespanState
from hypercorn.utils import parse_socket_addr

from tlserve.server.limits import ConnectionLimits
from tlserve.server.protocols import Http1, Protocol

_LINGER_S = 2.0
"""How long the bytes of a refused request are thrown away before the connection is closed. Closing at once would reset it, and the
peer might never see why."""

Stream = trio.SocketStream | trio.SSLStream[trio.SocketStream]


class Connection(TCPServer):
    """A connection in service. Loop thread only.

    Args:
        app: the application.
        config: Hypercorn's settings; ``keep_alive_timeout`` bounds idling, ``ssl_handshake_timeout`` the handshake.
        context: says when the server stops.
        stream: the accepted stream, plain or TLS.
        limits: how slow the peer may be.
    """

    protocol: Protocol  # type: ignore[assignment]  # Ours has the two methods that are used of theirs.

    def __init__(
        self,
        app: AppWrapper,
        config: Config,
        context: WorkerContext,
        stream: Stream,
        *,
        limits: ConnectionLimits,
    ) -> None:
        super().__init__(app, config, context, LifespanState(), stream)  # type: ignore[arg-type]  # It takes plain ones too.
        self._wire = stream
        self.is_idle = True
        self.idle_since = trio.current_time()
        self._limits = limits
        self._life = trio.CancelScope()
        self._sending: set[trio.CancelScope] = set()
        self._read_deadline = inf
        self._reading = trio.CancelScope()
        self._is_ending = False
        self._is_read = False

    async def run(self) -> None:
        """Serve the connection to its end."""
        with self._life:
            if not isinstance(self._wire, trio.SSLStream):
                await self._serve(self._wire.socket)
            elif await self._shake_hands(self._wire):
                await self._serve(self._wire.transport_stream.socket, alpn=self._wire.selected_alpn_protocol())

    def cut(self) -> None:
        """End it now, in the middle of a send if need be."""
        self._life.cancel()
        for scope in self._sending:
            scope.cancel()

    async def protocol_send(self, event: Event) -> None:
        """Do what the protocol says: send, note whether a request is going on, or end."""
        match event:
            case RawData():
                await self._send(event.data)
            case Closed():
                await self._end()
            case Updated() if not self._is_read:
                self.is_idle, self.idle_since = event.idle, trio.current_time()
                self._read_deadline = inf
                await super().protocol_send(event)

    async def _shake_hands(self, stream: trio.SSLStream[trio.SocketStream]) -> bool:
        with trio.move_on_after(self.config.ssl_handshake_timeout):
            try:
                await stream.do_handshake()
            except trio.BrokenResourceError:
                return False
            return True
        return False

    async def _serve(self, socket: trio.socket.SocketType, *, alpn: str | None = None) -> None:
        try:
            peer, own = socket.getpeername(), socket.getsockname()
        except OSError:
            return  # It was gone before we came to it.
        try:
            async with TaskGroup() as self._task_group:
                self.protocol = Protocol(
                    self.app,
                    self.config,
                    self.context,
                    self._task_group,
                    state=ConnectionState(self.state),
                    is_secure=isinstance(self._wire, trio.SSLStream),
                    client=parse_socket_addr(socket.family, peer),
                    server=parse_socket_addr(socket.family, own),
                    send=self.protocol_send,
                    alpn=alpn,
                    send_timeout_s=self._limits.send_timeout_s,
                )
                await self.protocol.initiate()
                await self.idle_task.restart(self._task_group, self._idle_timeout)
                await self._read_data()
        finally:
            await self._close()

    async def _read_data(self) -> None:
        """Feed the protocol until the peer has said its last word, has taken too long for it, or is no longer listened to."""
        while not self._is_ending and (data := await self._receive()) is not None:
            await self.protocol.handle(RawData(data))
            if not data:
                break
            self._note_partial_head()
        if self._is_ending:
            await self._linger()
        self._is_read = True
        await self.protocol.handle(Closed())
        await self.idle_task.stop()  # It would hold the socket until its time is up.

    async def _receive(self) -> bytes | None:
        """The next bytes, ``b""`` at the peer's end; None when there will be none: broken, closed, ended or too slow."""
        try:
            with trio.CancelScope(deadline=self._read_deadline) as self._reading:
                return bytes(await self.stream.receive_some(MAX_RECV))
        except (trio.ClosedResourceError, trio.BrokenResourceError):
            return None
        if not self._is_ending and isinstance(self.protocol.current, Http1):
            await self.protocol.current.refuse(408)
        return None

    def _note_partial_head(self) -> None:
        """From the first byte of a head on, its last one is due in a while, whatever comes in between."""
        current = self.protocol.current
        if self._read_deadline == inf and isinstance(current, Http1) and current.has_partial_head:
            self._read_deadline = trio.current_time() + self._limits.read_timeout_s

    async def _send(self, data: bytes) -> None:
        """Send a message whole, or end the connection."""
        rest = self._left_of(data)
        if not rest:
            return
        async with self.send_lock:
            is_sent = await self._send_whole(rest)
        if not is_sent:
            await self.protocol.handle(Closed())
            self._life.cancel()

    def _left_of(self, data: bytes) -> bytes:
        """What the system does not take at once: of a token's event, nothing. Getting ready to wait takes longer than to write it."""
        if not isinstance(self._wire, trio.SocketStream) or self.send_lock.locked():
            return data
        try:
            return data[os.write(self._wire.socket.fileno(), data) :]
        except OSError:
            return data  # It is full, closed or broken; sending tells which.

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

    async def _end(self) -> None:
        """End the connection after the last answer; who is in the middle of a request is listened to for a little longer."""
        current = self.protocol.current
        self._is_ending = isinstance(current, Http1) and current.is_mid_request and not self.context.terminated.is_set()
        if self._is_ending:
            await self._say_end()
            self._reading.cancel()
        else:
            await self._close()
        await self.protocol.handle(Closed())

    async def _say_end(self) -> None:
        """Tell the peer that nothing more comes, while still reading; TLS has no half of an end."""
        if isinstance(self._wire, trio.SocketStream):
            try:
                await self._wire.send_eof()
            except (trio.BrokenResourceError, trio.BusyResourceError, trio.ClosedResourceError):
                self._life.cancel()

    async def _linger(self) -> None:
        """Throw away what still comes, for a while."""
        with trio.move_on_after(_LINGER_S):
            try:
                while await self.stream.receive_some(MAX_RECV):
                    pass
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                return
