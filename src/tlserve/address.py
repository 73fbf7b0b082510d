"""Where a socket listens: ``:8000``, ``127.0.0.1:0``, ``[::1]:8000`` as a value.

Parsing only; binding is the server's business.
"""

from __future__ import annotations

import re

from attrs import frozen

_ADDRESS = re.compile(r"(?:\[(?P<ipv6>[^\[\]]+)\]|(?P<host>[^\[\]:]*)):(?P<port>\d{1,5})")


@frozen
class ListenAddress:
    """A host and a port. An empty host means every interface; port 0 lets the system choose."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> ListenAddress:
        """Read ``HOST:PORT``, ``:PORT`` or ``[IPV6]:PORT``.

        Raises:
            ValueError: the text has another form, or the port is above 65535.
        """
        match = _ADDRESS.fullmatch(text.strip())
        if match is None:
            raise ValueError("expected HOST:PORT, :PORT or [IPV6]:PORT")
        port = int(match["port"])
        if port > 65535:
            raise ValueError(f"port {port} is above 65535")
        return cls(match["ipv6"] or match["host"], port)

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"
