"""HTTP as a download needs it: bytes into a file that may have begun already, and patience with a bad line.

Uses urllib, so that proxies and certificates are those of the environment. Knows nothing of any hub.
"""

from __future__ import annotations

import http.client
import json
import ssl
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, TypeVar

from attrs import field, frozen

from tlserve.errors import PullError
from tlserve.weights.pull_attendant import POLL_SECONDS, Attendant

TIMEOUT_SECONDS: Final = 30.0
CHUNK_BYTES: Final = 1 << 18
MAX_DOCUMENT_BYTES: Final = 32 * 2**20
RETRY_WAITS: Final = (0.5, 2.0)
"""Seconds before trying again after an attempt that brought nothing; there is one attempt more than waits."""

WORTH_RETRYING: Final = frozenset({408, 429, 500, 502, 503, 504})
NETWORK_ERRORS: Final = (urllib.error.URLError, http.client.HTTPException, TimeoutError, ConnectionError, ssl.SSLError)

T = TypeVar("T")


@frozen
class HttpClient:
    """Fetches over HTTP. ``secrets`` are headers for the named host only: they do not follow redirects."""

    attendant: Attendant
    secrets: Mapping[str, str] = field(repr=False)

    def document(self, url: str) -> object:
        """A JSON document.

        Raises:
            PullError: it cannot be had, or is not JSON.
        """

        def read(_stop: threading.Event) -> bytes:
            with self._open(url, {}) as response:
                return response.read(MAX_DOCUMENT_BYTES)

        def beat() -> None:
            self.attendant.tell("downloading", 0, None)

        data = self._persist(url, lambda: self.attendant.attend(read, beat), progressed=lambda: False, beat=beat)
        try:
            return json.loads(data)
        except (ValueError, RecursionError) as error:
            raise PullError(f"{url}: the answer is not JSON: {error}") from error

    def download(self, url: str, part: Path, size: int, beat: Callable[[], None]) -> None:
        """Bring ``part`` to ``size`` bytes, from where it stands.

        Raises:
            PullError: the server refuses, or cannot be reached several times in a row.
        """
        part.touch()
        have = part.stat().st_size

        def attempt() -> None:
            nonlocal have
            have = part.stat().st_size
            if have < size:
                self.attendant.attend(lambda stop: self._receive(url, part, have, size, stop), beat)
            if part.stat().st_size < size:
                raise ConnectionError(f"the connection ended at {part.stat().st_size:,} of {size:,} bytes")

        self._persist(url, attempt, progressed=lambda: part.stat().st_size > have, beat=beat)

    def _receive(self, url: str, part: Path, have: int, size: int, stop: threading.Event) -> None:
        """One request's worth of bytes. Once ``stop`` is set nothing is written: another fetch may own the file."""
        with self._open(url, {"Range": f"bytes={have}-"} if have else {}) as response:
            resumed = response.status == http.HTTPStatus.PARTIAL_CONTENT
            if resumed and not response.headers.get("Content-Range", "").startswith(f"bytes {have}-"):
                raise http.client.HTTPException("the server sent another part of the file than was asked for")
            if stop.is_set():
                return
            with part.open("ab" if resumed else "wb", buffering=0) as file:
                while file.tell() < size and (chunk := response.read1(CHUNK_BYTES)) and not stop.is_set():
                    file.write(chunk)

    def _open(self, url: str, headers: Mapping[str, str]) -> http.client.HTTPResponse:
        # Callers give http and https only; urllib itself refuses to be redirected to anything like file:.
        request = urllib.request.Request(url, headers={"User-Agent": "tlserve", **headers})  # noqa: S310
        for name, value in self.secrets.items():
            request.add_unredirected_header(name, value)
        try:
            response: http.client.HTTPResponse = urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS)  # noqa: S310
        except urllib.error.HTTPError as error:
            error.close()
            raise
        return response

    def _persist(
        self, url: str, attempt: Callable[[], T], *, progressed: Callable[[], bool], beat: Callable[[], None]
    ) -> T:
        """Try until it works; attempts that brought something cost no patience."""
        waits = list(RETRY_WAITS)
        while True:
            try:
                return attempt()
            except NETWORK_ERRORS as error:
                if isinstance(error, urllib.error.HTTPError) and error.code not in WORTH_RETRYING:
                    raise PullError(f"{url}: {_explain(error)}") from error
                if not progressed():
                    if not waits:
                        raise PullError(f"{url}: {_explain(error)}") from error
                    _pause(waits.pop(0), beat)


def _pause(seconds: float, beat: Callable[[], None]) -> None:
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        beat()
        time.sleep(min(left, POLL_SECONDS))


def _explain(error: Exception) -> str:
    if isinstance(error, urllib.error.HTTPError):
        advice = {
            401: "; it is private, or does not exist: set HF_TOKEN",
            403: "; access was not granted to this token",
            404: "; check the repository, revision and file names",
        }
        return f"HTTP {error.code} {error.reason}{advice.get(error.code, '')}"
    if isinstance(error, urllib.error.URLError):
        return f"cannot be reached: {error.reason}"
    return str(error) or type(error).__name__
