"""What may be quoted back: a short, cleaned excerpt of anything a client sent.

Error messages and log lines show the value that was wrong. They never grow with it, never break a line and never
carry a control character, whatever was sent.
"""

from __future__ import annotations

_LONGEST = 60


def excerpt(text: str) -> str:
    """``text`` in quotes, printable characters only, cut after 60 characters."""
    clean = "".join(char if char.isprintable() else " " for char in text[:_LONGEST])
    ellipsis = "..." if len(text) > _LONGEST else ""
    return f"'{clean}{ellipsis}'"


def describe(value: object) -> str:
    """A JSON value as an error message names it: ``5``, ``a list of 3``, ``'wizard'``."""
    match value:
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case str():
            return excerpt(value)
        case int() | float():
            return _number(value)
        case list() | tuple():
            return f"a list of {len(value)}"
        case _:
            return "an object"


def _number(value: float) -> str:
    """Digits while they are few; an integer of thousands of digits is told by its size alone."""
    if isinstance(value, int) and value.bit_length() > 128:
        return f"an integer of {value.bit_length()} bits"
    return str(value)
