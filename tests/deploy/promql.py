"""What PromQL expressions name: as much of the language as the project's own rules and panels use."""

from __future__ import annotations

import re
from collections.abc import Iterator

import attrs

_STRING = r'"(?:[^"\\]|\\.)*"'
_SELECTOR = re.compile(rf"([a-zA-Z_:][a-zA-Z0-9_:]*)\s*(?:\{{((?:[^{{}}\"]|{_STRING})*)\}})?")
_MATCHER = re.compile(rf"([a-zA-Z_][a-zA-Z0-9_]*)\s*(=~|!~|!=|=)\s*({_STRING})")
_GROUPING = re.compile(r"\b(by|without|on|ignoring|group_left|group_right)\s*\([^)]*\)")
_RANGE = re.compile(r"\[[^\]]*\]")
_WORDS = {"and", "or", "unless", "bool", "offset", "inf", "nan"}


@attrs.frozen
class Selector:
    """A metric's name and what is asked of its labels: (label, operator, value)."""

    metric: str
    matchers: tuple[tuple[str, str, str], ...]

    def value_of(self, label: str) -> str | None:
        """The value that a label must equal, if one is given."""
        return next((value for name, operator, value in self.matchers if name == label and operator == "="), None)


def selectors_in(expression: str) -> Iterator[Selector]:
    """Every selector of an expression; names of functions and operators are none."""
    text = _RANGE.sub("", _GROUPING.sub("", expression))
    for match in _SELECTOR.finditer(text):
        name, inner = match.group(1), match.group(2)
        is_call = text[match.end() :].lstrip().startswith("(")
        is_in_number = match.start() > 0 and text[match.start() - 1].isalnum()
        if is_call or is_in_number or name in _WORDS or (inner is None and _is_in_string(text, match.start())):
            continue
        matchers = tuple((label, operator, value[1:-1]) for label, operator, value in _MATCHER.findall(inner or ""))
        yield Selector(name, matchers)


def _is_in_string(text: str, position: int) -> bool:
    return any(match.start() < position < match.end() for match in re.finditer(_STRING, text))
