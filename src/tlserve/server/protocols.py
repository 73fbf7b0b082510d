"""Hypercorn's HTTP/1.1 and HTTP/2, with what a hostile peer could do to them taken away.

Parsing and framing stay Hypercorn's (h11, h2). Here every refusal of the protocol itself gets a v1 error document, upgrades are not
followed (a WebSocket has no route, and an upgrade to HTTP/2 in the clear is a way past a proxy's rules: HTTP/2 is spoken from the first
byte or not at all), and on HTTP/2 neither late data nor a window that stays shut outlives its stream.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

import h2.errors
import h2.events
import h2.exceptions
import h11
import trio
from hypercorn.config import Config
from hypercorn.events import Closed, Event, RawData
from hypercorn.protocol.events import Event as StreamEvent
from hypercorn.protocol.events import Request, Response
from hypercorn.protocol.h2 import H2Protocol
from hypercorn.protocol.h11 import STREAM_ID, H2ProtocolAssumedError, H11Protocol
from hypercorn.protocol.http_stream import HTTPStream
from hypercorn.trio.task_group import TaskGroup
from hypercorn.trio.worker_context import WorkerContext
from hypercorn.typing import AppWrapper, ConnectionState, H11SendableEvent

from tlserve.openai.errors import refused_by_protocol
from tlserve.openai.headers import request_id
from tlserve.openai.jsontext import to_json

_LONGEST_FRAME = 2**14 + 9
"""A frame of the size that we allow, with its head."""

Send = Callable[[Event], Awaitable[None]]
Peer = tuple[str, int] | None


class _Conversation(h11.Connection):
    """h11, except that bytes behind a last request are dropped: it takes them for an error, told before that request's answer."""

    has_surplus = False

    def receive_data(self, data: bytes) -> None:
        """Take bytes in, ``b""`` at the peer's end."""
        if data and self.their_state in (h11.MUST_CLOSE, h11.CLOSED):
            self.has_surplus = True
        else:
            super().receive_data(data)

    def next_event(self) -> Any:
        """What the bytes say."""
        if self.their_state is h11.MUST_CLOSE and self.trailing_data[0]:
            self.has_surplus = True
            return h11.NEED_DATA
        return super().next_event()


class Http1(H11Protocol):
    """HTTP/1.1 (and 1.0) on one connection."""

    connection: _Conversation

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        self.connection = _Conversation(h11.SERVER, max_incomplete_event_size=self.config.h11_max_incomplete_size)
        self._held_head = b""

    @property
    def is_mid_request(self) -> bool:
        """Whether the peer is in the middle of a request, or sends what is none."""
        is_in_body = self.connection.their_state in (h11.SEND_BODY, h11.ERROR)
        return is_in_body or self.has_partial_head or self.connection.has_surplus

    @property
    def has_partial_head(self) -> bool:
        """Whether a request has begun whose head is not complete."""
        return self.connection.their_state is h11.IDLE and bool(self.connection.trailing_data[0])

    async def handle(self, event: Event) -> None:
        """Take in bytes or the end of the connection."""
        try:
            await super().handle(event)
        except _Refusal as refusal:
            await self.refuse(refusal.status)

    async def stream_send(self, event: StreamEvent) -> None:
        """Send for the request; an answer that comes before all of its body says that it is the last one here."""
        if isinstance(event, Response) and self.connection.their_state is h11.SEND_BODY:
            event = replace(event, headers=[*event.headers, (b"connection", b"close")])
        await super().stream_send(event)

    async def refuse(self, status: int) -> None:
        """Answer with ``status`` where an answer is still possible, and end the connection."""
        if self.connection.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            await self._send_error_response(status)
        await self.send(Closed())

    async def _send_h11_event(self, event: H11SendableEvent) -> None:
        """Send; but the head of an answer of known length in one piece with its body, and no pieces of nothing.

        Each send is a turn of the loop, and a turn may be long where many requests are served.
        """
        try:
            data = self.connection.send(event) or b""
        except h11.LocalProtocolError:
            if self.connection.their_state is not h11.ERROR:
                raise
            return
        self._held_head += data
        if isinstance(event, h11.Response) and any(name == b"content-length" for name, _ in event.headers):
            return  # Its body, or its end, follows at once.
        data, self._held_head = self._held_head, b""
        if data:
            await self.send(RawData(data=data))

    async def _send_error_response(self, status_code: int) -> None:
        body = to_json(refused_by_protocol(status_code, limit=self.config.h11_max_incomplete_size).document()).encode()
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(body)).encode()),
            (b"connection", b"close"),
            (b"x-request-id", request_id(None).encode()),
        ]
        headers = list(chain(headers, self.config.response_headers("h11")))
        await self._send_h11_event(h11.Response(status_code=status_code, headers=headers))
        await self._send_h11_event(h11.Data(data=body))
        await self._send_h11_event(h11.EndOfMessage())

    async def _check_protocol(self, event: h11.Request) -> None:
        """Let HTTP/2 begin at the first byte; refuse what a proxy may have understood in another way."""
        if event.method == b"PRI" and event.target == b"*" and event.http_version == b"2.0":
            raise H2ProtocolAssumedError(b"PRI * HTTP/2.0\r\n\r\n" + self.connection.trailing_data[0])
        if event.http_version not in (b"1.0", b"1.1"):
            raise _Refusal(505)
        names = {name for name, _ in event.headers}
        if {b"content-length", b"transfer-encoding"} <= names:
            raise _Refusal(400)  # Two lengths for one body: the rest could be read as another request.

    async def _create_stream(self, request: h11.Request) -> None:
        self.stream = HTTPStream(
            self.app,
            self.config,
            self.context,
            self.task_group,
            self.ssl,
            self.client,
            self.server,
            self.stream_send,
            STREAM_ID,
        )
        await self.stream.handle(
            Request(
                stream_id=STREAM_ID,
                headers=list(request.headers),
                http_version=request.http_version.decode(),
                method=request.method.decode("ascii").upper(),
                raw_path=request.target,
                state=self.connection_state,
            )
        )
        self.keep_alive_requests += 1
        await self.context.mark_request()


class Http2(H2Protocol):
    """HTTP/2 on one connection.

    Attributes:
        send_timeout_s: how long a stream may wait for its peer to take bytes; then it is reset.
    """

    send_timeout_s: float = 20.0

    async def handle(self, event: Event) -> None:
        """Take in bytes or the end of the connection."""
        await super().handle(event)
        # The length of a frame is looked at when all of it is there, and it may claim 16 MiB. No sum of whole frames stays here.
        if len(self.connection.incoming_buffer._data) > _LONGEST_FRAME and not self.closed:  # noqa: SLF001
            await self.send(Closed())

    async def stream_send(self, event: StreamEvent) -> None:
        """Send for one stream; a peer that keeps its window shut loses it."""
        with trio.move_on_after(self.send_timeout_s) as patience:
            await super().stream_send(event)
        if patience.cancelled_caught:
            await self._reset(event.stream_id, h2.errors.ErrorCodes.CANCEL)
            await self._close_stream(event.stream_id)

    async def _send_data(self, stream_id: int) -> None:
        """Send what the peer's window lets through; where it is shut, leave the writer waiting, so that nothing piles up."""
        buffer = self.stream_buffers.get(stream_id)
        if buffer is not None and buffer.buffer and self._is_shut(stream_id):
            self.priority.block(stream_id)
        else:
            await super()._send_data(stream_id)

    def _is_shut(self, stream_id: int) -> bool:
        try:
            return self.connection.local_flow_control_window(stream_id) <= 0
        except h2.exceptions.ProtocolError:
            return False  # The stream is gone; theirs cleans up.

    async def _handle_events(self, events: Sequence[h2.events.Event]) -> None:
        for event in events:
            if isinstance(event, h2.events.DataReceived) and event.stream_id not in self.streams:
                self._forget(event)
            elif isinstance(event, h2.events.RequestReceived) and not _is_servable(event):
                await self._reset(event.stream_id, h2.errors.ErrorCodes.REFUSED_STREAM)
            else:
                await super()._handle_events([event])
        await self._flush()

    def _forget(self, event: h2.events.DataReceived) -> None:
        """Body that arrives after its answer: give the connection its window back."""
        try:
            self.connection.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
        except h2.exceptions.ProtocolError:
            return  # The stream is gone already.

    async def _reset(self, stream_id: int, code: h2.errors.ErrorCodes) -> None:
        try:
            self.connection.reset_stream(stream_id, code)
        except h2.exceptions.ProtocolError:
            return
        if stream_id in self.stream_buffers:
            await self.stream_buffers[stream_id].close()
        await self._flush()


class Protocol:
    """What one connection speaks: HTTP/2 when TLS has agreed on it or the first bytes are its preface, else HTTP/1.1.

    Args:
        app: the application.
        config: Hypercorn's settings.
        context: says when the server stops.
        tasks: where the requests of the connection live.
        state: ASGI's state, copied into each request.
        is_secure: whether the bytes come through TLS.
        client: the peer's address.
        server: ours.
        send: takes bytes, changes between idle and busy, and the end.
        alpn: what TLS has agreed on.
        send_timeout_s: how long an HTTP/2 stream may wait for its peer.
    """

    def __init__(
        self,
        app: AppWrapper,
        config: Config,
        context: WorkerContext,
        tasks: TaskGroup,
        *,
        state: ConnectionState,
        is_secure: bool,
        client: Peer,
        server: Peer,
        send: Send,
        alpn: str | None,
        send_timeout_s: float,
    ) -> None:
        self._parts: tuple[Any, ...] = (app, config, context, tasks, state, is_secure, client, server, send)
        self._send_timeout_s = send_timeout_s
        self.current: Http1 | Http2 = self._http2() if alpn == "h2" else Http1(*self._parts)

    async def initiate(self) -> None:
        """Say what is said first."""
        await self.current.initiate()

    async def handle(self, event: Event) -> None:
        """Take in bytes or the end of the connection."""
        try:
            await self.current.handle(event)
        except H2ProtocolAssumedError as assumed:
            self.current = self._http2()
            await self.current.initiate()
            await self.current.handle(RawData(data=assumed.data))

    def _http2(self) -> Http2:
        protocol = Http2(*self._parts)
        protocol.send_timeout_s = self._send_timeout_s
        return protocol


class _Refusal(Exception):
    """A request whose head is well-formed and that is not served all the same."""

    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status


def _is_servable(request: h2.events.RequestReceived) -> bool:
    """Whether it asks for a path, as opposed to a tunnel, in bytes that a path may have."""
    headers = dict(request.headers)
    path = bytes(headers.get(b":path", b""))
    return headers.get(b":method") != b"CONNECT" and path.isascii() and path.startswith(b"/")
