"""Listening sockets, and Hypercorn's configuration.

Sockets are bound here, before anything slow begins, so that a port in use is said at once and probes get an answer while the model
loads. A client that stops reading is cut off by the kernel (``TCP_USER_TIMEOUT``, inherited by accepted connections).
"""

from __future__ import annotations

import socket

from attrs import frozen
from hypercorn.config import Config

from tlserve.address import ListenAddress
from tlserve.errors import ListenError
from tlserve.server.log import HTTP_LOGGER

BACKLOG = 1024
MAX_HEADER_BYTES = 32 * 1024
HANDSHAKE_TIMEOUT_S = 10.0


@frozen
class Listener:
    """A listening TCP socket, and where it listens, with the port that the system chose; known beyond its closing."""

    socket: socket.socket
    bound: ListenAddress

    @property
    def reachable(self) -> str:
        """``host:port`` for a client on this machine: the loopback address where every interface listens."""
        bound = self.bound
        host = "127.0.0.1" if bound.host in ("::", "0.0.0.0") else bound.host  # noqa: S104  (compared, not bound)
        return str(ListenAddress(host, bound.port))

    def close(self) -> None:
        """Stop listening; what was accepted lives on."""
        self.socket.close()


def bind(text: str, *, what: str, send_timeout_s: float) -> Listener:
    """Bind and listen at an address of the configuration; an empty host means every interface, IPv4 and IPv6.

    Args:
        text: ``:8000``, ``127.0.0.1:0``, ``[::1]:8000``.
        what: the key that the address comes from, for the error message.
        send_timeout_s: how long the kernel waits for a peer that acknowledges nothing or keeps its window shut.

    Raises:
        ListenError: the address is in use, not ours, or not permitted.
    """
    address = ListenAddress.parse(text)
    try:
        listener = socket.socket(*_family_of(address))
    except OSError as error:
        raise _listen_error(text, what, error) from None
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if not address.host and listener.family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        if hasattr(socket, "TCP_USER_TIMEOUT"):
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(send_timeout_s * 1000))
        listener.bind((address.host, address.port))
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise _listen_error(text, what, error) from None
    listener.settimeout(0)
    return Listener(listener, ListenAddress(*listener.getsockname()[:2]))


class HttpConfig(Config):
    """Hypercorn's configuration.

    Every default of Hypercorn that would cut a long answer or a pooled connection is set here, on one page.
    """

    def __init__(self, *, keep_alive_s: float, graceful_timeout_s: float) -> None:
        self.keep_alive_timeout = keep_alive_s
        self.keep_alive_max_requests = 1_000_000  # Pooled connections end by idling or draining, not by count.
        self.graceful_timeout = graceful_timeout_s
        self.h11_max_incomplete_size = MAX_HEADER_BYTES
        self.include_server_header = False
        self.ssl_handshake_timeout = HANDSHAKE_TIMEOUT_S
        self.accesslog = None  # The request room writes the one line per request.
        self.errorlog = HTTP_LOGGER
        self.loglevel = "WARNING"


def _family_of(address: ListenAddress) -> tuple[int, int]:
    """Family and type of the socket; an empty host takes both families where the system can."""
    if not address.host:
        return (socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET), socket.SOCK_STREAM
    return socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)[0][0], socket.SOCK_STREAM


def _listen_error(text: str, what: str, error: OSError) -> ListenError:
    reason = error.strerror or str(error)
    return ListenError(
        f"cannot listen on {text} ({what}): {reason}; free the port, or set another address in {what} (:0 picks a free one)"
    )
