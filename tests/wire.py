"""The API without a client library: bare connections, and what goes over them."""

from __future__ import annotations

import json
import socket

from support import Server


def connect(server: Server, *, timeout: float = 10) -> socket.socket:
    """A bare TCP connection to the API."""
    host, _, port = server.handle.http_addr.rpartition(":")
    return socket.create_connection((host.strip("[]"), int(port)), timeout=timeout)


def read_all(connection: socket.socket) -> bytes:
    """Everything until the server closes."""
    return b"".join(iter(lambda: connection.recv(65536), b""))


def request_bytes(*, headers: str = "", **fields: object) -> bytes:
    """A chat request as it goes over the wire."""
    body = json.dumps({"model": "succ", "messages": [{"role": "user", "content": "a"}], "temperature": 0, **fields})
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\n{headers}Content-Length: {len(body)}\r\n\r\n"
    return (head + body).encode()
