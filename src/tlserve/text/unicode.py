"""Strings that JSON can carry and UTF-8 cannot."""

from __future__ import annotations

import re

_SURROGATE = re.compile("[\ud800-\udfff]")


def without_surrogates(text: str) -> str:
    """Puts U+FFFD for every lone surrogate."""
    return _SURROGATE.sub("\ufffd", text)


def to_utf8(text: str) -> bytes:
    """The bytes of a text; a lone surrogate becomes U+FFFD."""
    return without_surrogates(text).encode()
