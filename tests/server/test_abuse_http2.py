"""HTTP/2 from the first byte: served, and no more of a way to harm others than HTTP/1.1 is."""

from __future__ import annotations

import json
import socket
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import attrs
import h2.config
import h2.connection
import h2.events
import h2.settings
import pytest

from support import Serve, Server, is_quiet, wait_until


@attrs.define
class Client:
    """One HTTP/2 connection, and what has come back on it by stream."""

    wire: socket.socket
    http2: h2.connection.H2Connection
    status: dict[int, str] = attrs.field(factory=dict)
    body: defaultdict[int, bytes] = attrs.field(factory=lambda: defaultdict(bytes))
    ended: set[int] = attrs.field(factory=set)
    reset: dict[int, int] = attrs.field(factory=dict)
    is_closed: bool = False
    reads_bodies: bool = True

    @classmethod
    def to(cls, server: Server, *, window: int | None = None) -> Client:
        """Connect; ``window`` is how many bytes of a body are taken before the server must wait."""
        host, port = server.handle.http_addr.split(":")
        wire = socket.create_connection((host, int(port)), timeout=10)
        connection = h2.connection.H2Connection(h2.config.H2Configuration(client_side=True))
        client = cls(wire, connection)
        if window is not None:
            connection.local_settings = h2.settings.Settings(
                client=True, initial_values={h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: window}
            )
            client.reads_bodies = False
        connection.initiate_connection()
        client.flush()
        return client

    def flush(self) -> None:
        """Send what there is to send."""
        self.wire.sendall(self.http2.data_to_send())

    def ask(self, path: str, body: bytes | None = None, *, method: str = "POST", ends: bool = True) -> int:
        """Begin a request; its stream."""
        stream = self.http2.get_next_available_stream_id()
        headers = [(":method", method), (":path", path), (":scheme", "http"), (":authority", "x")]
        self.http2.send_headers(stream, headers, end_stream=body is None and ends)
        if body is not None:
            self.http2.send_data(stream, body, end_stream=ends)
        self.flush()
        return stream

    def chat(self, **fields: object) -> int:
        """Begin a chat; its stream."""
        body = {"model": "succ", "messages": [{"role": "user", "content": "a"}], "temperature": 0, **fields}
        return self.ask("/v1/chat/completions", json.dumps(body).encode())

    def read_until(self, is_enough: Callable[[], bool]) -> None:
        """Take in what comes until ``is_enough`` or the end of the connection."""
        while not is_enough():
            data = self.wire.recv(65536)
            if not data:
                self.is_closed = True
                return
            for event in self.http2.receive_data(data):
                self._take(event)
            self.flush()

    def _take(self, event: h2.events.Event) -> None:
        match event:
            case h2.events.ResponseReceived():
                self.status[event.stream_id] = dict(event.headers)[b":status"].decode()
            case h2.events.DataReceived():
                self.body[event.stream_id] += event.data
                if self.reads_bodies:
                    self.http2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
            case h2.events.StreamEnded():
                self.ended.add(event.stream_id)
            case h2.events.StreamReset():
                self.reset[event.stream_id] = event.error_code
            case h2.events.ConnectionTerminated():
                self.is_closed = True

    def wait(self, stream: int) -> str:
        """The status of an answer that has come to its end."""
        self.read_until(lambda: stream in self.ended or stream in self.reset)
        return self.status.get(stream, "none")


@pytest.fixture
def server(serve: Serve, succ_dir: Path) -> Server:
    """A server with short patience."""
    return serve(succ_dir, send_timeout_s=1.0, read_timeout_s=1.0)


@pytest.fixture
def client(server: Server) -> Iterator[Client]:
    """One connection to it."""
    client = Client.to(server)
    yield client
    client.wire.close()


def test_many_streams_share_a_connection(server: Server, client: Client) -> None:
    """Each gets its answer and its end; those that the client resets are given up, and the connection lives on."""
    streams = [client.chat(max_tokens=20, stream=True) for _ in range(30)]
    given_up = set(streams[::3])
    for stream in given_up:
        client.http2.reset_stream(stream)
    client.flush()

    for stream in set(streams) - given_up:
        assert client.wait(stream) == "200"
        assert client.body[stream].endswith(b"data: [DONE]\n\n")
    assert client.wait(client.ask("/v1/models", method="GET")) == "200"
    wait_until(lambda: is_quiet(server))


def test_a_body_that_goes_on_after_its_answer_harms_nobody(server: Server, client: Client) -> None:
    """A refused upload goes on for a while before its client has noticed; the connection and the server live on."""
    stream = client.ask("/v1/nothing", b"{" * 1000, ends=False)
    client.read_until(lambda: stream in client.status)
    for _ in range(20):
        client.http2.send_data(stream, b"x" * 1000)
    client.http2.end_stream(stream)
    client.flush()

    assert client.status[stream] == "404"
    assert client.wait(client.ask("/v1/models", method="GET")) == "200"
    assert server.chat("a", max_tokens=1).status_code == 200


def test_a_window_that_stays_shut_costs_its_stream(server: Server) -> None:
    """TCP is well while HTTP/2 stands still: the stream is reset when its patience is over, and what it held is free."""
    client = Client.to(server, window=100)
    try:
        stuck = client.chat(max_tokens=2000, stream=True)
        client.read_until(lambda: stuck in client.reset)

        assert len(client.body[stuck]) <= 100
        assert client.wait(client.ask("/healthz", method="GET")) == "200"
    finally:
        client.wire.close()
    wait_until(lambda: is_quiet(server))
    aborted = 'tlserve_requests_total{outcome="aborted",reason="disconnect",route="/v1/chat/completions"} 1.0'
    wait_until(lambda: aborted in server.health.get("/metrics").text)


def test_tunnels_and_strange_paths_are_refused(server: Server, client: Client) -> None:
    """A WebSocket over HTTP/2 and a path that is not ASCII are reset one by one."""
    tunnel = client.http2.get_next_available_stream_id()
    protocol = [(":protocol", "websocket"), (":scheme", "http"), (":path", "/v1/models"), (":authority", "x")]
    client.http2.send_headers(tunnel, [(":method", "CONNECT"), *protocol])
    client.flush()
    strange = client.ask("/v1/models/caf\u00e9", method="GET")

    assert client.wait(tunnel) == client.wait(strange) == "none"
    assert client.wait(client.ask("/v1/models", method="GET")) == "200"
    assert server.chat("a", max_tokens=1).status_code == 200


@pytest.mark.parametrize(
    "garbage",
    [
        b"\xff" * 20_000,
        b"\x00\x40\x01\x00\x00\x00\x00\x00\x01" + b"a" * 0x4001,
        b"\x00\x00\x04\x01\x00\x00\x00\x00\x01junk" * 50,
        b"\x00\x00\x04\x09\x00\x00\x00\x00\x01junk",
        b"\x00\x00\x05\x08\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00",
        b"\x00\x00\x00\x04\x00\x00\x00\x00\x05",
    ],
    ids=[
        "no frame",
        "frame too large",
        "bad header block",
        "continuation of nothing",
        "short update",
        "settings of a stream",
    ],
)
def test_bytes_that_are_no_http2_end_their_connection(server: Server, client: Client, garbage: bytes) -> None:
    """And no other."""
    client.wire.sendall(garbage)
    with suppress(ConnectionError):
        client.read_until(lambda: client.is_closed)

    assert server.chat("a", max_tokens=1).status_code == 200


def test_header_blocks_without_an_end_are_not_collected(server: Server, client: Client) -> None:
    """Continuation after continuation is a way to fill the memory of a server that waits for the last one."""
    client.wire.sendall(b"\x00\x00\x01\x01\x00\x00\x00\x00\x01\x82")
    with pytest.raises(OSError, match=r"reset|Broken pipe|timed out"):
        client.wire.sendall((b"\x00\x40\x00\x09\x00\x00\x00\x00\x01" + b"\x82" * 0x4000) * 5000)

    assert server.chat("a", max_tokens=1).status_code == 200


def test_a_body_that_does_not_come_is_answered_408(client: Client) -> None:
    """The limit on slow writers holds here as well."""
    stream = client.ask("/v1/completions", b"{", ends=False)
    client.read_until(lambda: stream in client.status)

    assert client.status[stream] == "408"
