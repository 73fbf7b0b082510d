"""Request bytes to one JSON object, or 400.

Strict where Python's reader is lenient: UTF-8 only, no ``NaN`` or ``Infinity``, no number that overflows to
infinity, no duplicate key (two readers of one body must never disagree), nothing nested deeper than
:data:`MAX_DEPTH`. How large a body may be is the business of whoever reads it from the wire.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from typing import NoReturn

from tlserve.openai.errors import ApiError, invalid
from tlserve.openai.excerpt import excerpt

MAX_DEPTH = 64
"""Objects and lists inside each other; the deepest body we can use has five."""

_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)
_NOT_A_BRACKET = bytes(byte for byte in range(256) if byte not in b"[]{}")
_BRACES_TO_BRACKETS = bytes.maketrans(b"{}", b"[]")


def decode_object(body: bytes) -> dict[str, object]:
    """The JSON object in ``body``; a UTF-8 byte order mark before it is skipped.

    Raises:
        ApiError: 400 ``invalid_json``, saying where the text stops being JSON.
    """
    value = _decode(_decode_utf8(body.removeprefix(b"\xef\xbb\xbf")))
    if _deeper_than(body, MAX_DEPTH):
        raise _too_deep()
    if not isinstance(value, dict):
        raise invalid('the request body must be a JSON object, like {"model": "..."}', code="invalid_json")
    return value


def _decode_utf8(body: bytes) -> str:
    try:
        return body.decode("utf-8")
    except UnicodeDecodeError as error:
        message = f"the request body is not UTF-8: byte {error.start} cannot be decoded"
        raise invalid(message, code="invalid_json") from None


def _decode(text: str) -> object:
    try:
        return json.loads(text, object_pairs_hook=_unique_keys, parse_float=_finite, parse_constant=_refuse_constant)
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        raise invalid(f"the request body is not JSON: {error.msg} at {where}", code="invalid_json") from None
    except RecursionError:
        raise _too_deep() from None
    except ValueError:  # Python refuses to read integers of more than 4300 digits
        raise invalid("a number in the request body has too many digits", code="invalid_json") from None


def _unique_keys(pairs: list[tuple[str, object]]) -> dict[str, object]:
    unique = dict(pairs)
    if len(unique) < len(pairs):
        counts = Counter(key for key, _ in pairs)
        twice = next(key for key, count in counts.items() if count > 1)
        raise invalid(f"the key {excerpt(twice)} appears twice in one object", code="invalid_json")
    return unique


def _finite(digits: str) -> float:
    number = float(digits)
    if math.isinf(number):
        raise invalid(f"the number {excerpt(digits)} is too large", code="invalid_json")
    return number


def _refuse_constant(name: str) -> NoReturn:
    raise invalid(f"the request body is not JSON: {name} is not a JSON number", code="invalid_json")


def _too_deep() -> ApiError:
    return invalid(f"the request body is nested deeper than {MAX_DEPTH} levels", code="invalid_json")


def _deeper_than(body: bytes, limit: int) -> bool:
    """Whether valid JSON nests deeper than ``limit``: peel off the innermost pairs, one level a pass."""
    if body.count(b"[") + body.count(b"{") <= limit:
        return False
    brackets = _STRING.sub(b"", body).translate(_BRACES_TO_BRACKETS, _NOT_A_BRACKET)
    for _ in range(limit):
        brackets = brackets.replace(b"[]", b"")
    return bool(brackets)
