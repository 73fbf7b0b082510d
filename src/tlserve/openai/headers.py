"""Request headers with a meaning of ours, and the response header that tells what was ignored."""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable, Sequence

from tlserve.openai.errors import invalid, kv_handle_not_found, unsupported_media_type
from tlserve.openai.excerpt import excerpt

PRIORITY = "X-TL-Priority"
KV_HANDLE = "X-TL-KV-Handle"
REQUEST_ID = "X-Request-Id"
TIMEOUT = "X-Request-Timeout-Ms"
CACHE_SALT = "X-TL-Cache-Salt"
IGNORED = "X-TL-Ignored"

LOWEST_PRIORITY, HIGHEST_PRIORITY = -100, 100
LONGEST_TIMEOUT_MS = 3_600_000
_INTEGER = re.compile(r"[+-]?[0-9]{1,4}")
_MILLISECONDS = re.compile(r"[0-9]{1,7}")
_BEARER = re.compile(r"bearer +(?P<key>[\x21-\x7e]+)", re.IGNORECASE)
_VISIBLE = re.compile(r"[\x21-\x7e]{1,128}")
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_MOST_IGNORED = 16
_JSON_TYPES = re.compile(r"application/(?:[a-z0-9.!#$&^_-]+\+)?json")
_CURL_DEFAULT = "application/x-www-form-urlencoded"


def parse_priority(value: str | None) -> int:
    """``X-TL-Priority``: an integer from -100 to 100, higher first; 0 where the header is missing.

    Raises:
        ApiError: 400 for anything else.
    """
    if value is None:
        return 0
    text = value.strip()
    if not _INTEGER.fullmatch(text) or not LOWEST_PRIORITY <= int(text) <= HIGHEST_PRIORITY:
        allowed = f"an integer from {LOWEST_PRIORITY} to {HIGHEST_PRIORITY}"
        raise invalid(f"{PRIORITY} must be {allowed}, not {excerpt(value)}", param=PRIORITY)
    return int(text)


def parse_timeout(value: str | None) -> int | None:
    """``X-Request-Timeout-Ms``: milliseconds from 1 to 3,600,000 that the client gives the request; None without the header.

    Raises:
        ApiError: 400 for anything else.
    """
    if value is None:
        return None
    text = value.strip()
    if not _MILLISECONDS.fullmatch(text) or not 1 <= int(text) <= LONGEST_TIMEOUT_MS:
        allowed = f"whole milliseconds from 1 to {LONGEST_TIMEOUT_MS}"
        raise invalid(f"{TIMEOUT} must be {allowed}, not {excerpt(value)}", param=TIMEOUT)
    return int(text)


def parse_cache_salt(value: str | None) -> str:
    """``X-TL-Cache-Salt``: 1 to 128 visible ASCII characters; only requests with the same one share cached KV.

    Raises:
        ApiError: 400 for anything else.
    """
    if value is None:
        return ""
    if not _VISIBLE.fullmatch(value):
        raise invalid(f"{CACHE_SALT} must be 1 to 128 visible ASCII characters", param=CACHE_SALT)
    return value


def parse_bearer(values: Sequence[str]) -> str | None:
    """The key of ``Authorization: Bearer <key>``; None when it is missing, given twice, or of another scheme."""
    match = _BEARER.fullmatch(values[0].strip()) if len(values) == 1 else None
    return None if match is None else match["key"]


def refuse_kv_handle(value: str | None) -> None:
    """Raise ApiError 404 when ``X-TL-KV-Handle`` was sent: no KV blocks are handed over to this server."""
    if value is not None:
        raise kv_handle_not_found(value)


def request_id(value: str | None) -> str:
    """The client's ``X-Request-Id`` if it is 1 to 128 visible ASCII characters, else a new one of 32 hex digits."""
    if value is not None and _VISIBLE.fullmatch(value):
        return value
    return secrets.token_hex(16)


def ignored_header(names: Iterable[str]) -> str | None:
    """The value of ``X-TL-Ignored``: names of body members without effect, or None when there are none.

    Names come from the client: those that are not plain words are counted, not repeated.
    """
    ignored = list(names)
    if not ignored:
        return None
    plain = [name for name in ignored if _NAME.fullmatch(name)][:_MOST_IGNORED]
    rest = len(ignored) - len(plain)
    return ", ".join([*plain, f"and {rest} more"] if rest else plain)


def check_content_type(value: str | None) -> None:
    """Take JSON in any spelling, no type at all, and what ``curl -d`` claims by default.

    Raises:
        ApiError: 415 for other types.
    """
    media_type = (value or "").partition(";")[0].strip().lower()
    if media_type and media_type != _CURL_DEFAULT and not _JSON_TYPES.fullmatch(media_type):
        raise unsupported_media_type(f"Content-Type is {excerpt(media_type)}; send application/json")


def check_content_encoding(value: str | None) -> None:
    """Take plain bodies only: a compressed one could be of any size.

    Raises:
        ApiError: 415 for any encoding but ``identity``.
    """
    if value is not None and value.strip().lower() not in ("", "identity"):
        raise unsupported_media_type(f"Content-Encoding is {excerpt(value)}; send the body uncompressed")
