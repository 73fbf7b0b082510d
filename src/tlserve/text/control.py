"""Finds the control tokens that a text spells.

Knows their strings only; which of them count is for the tokenizer to say.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import groupby
from os.path import commonprefix

_NEVER = r"(?!)"


class ControlFinder:
    """The control strings of one vocabulary as a pattern; where several begin, the longest counts."""

    __slots__ = ("_everywhere", "_split")

    def __init__(self, strings: Iterable[str]) -> None:
        pattern = any_of(strings)
        self._split = re.compile(f"({pattern})")
        self._everywhere = re.compile(f"(?=({pattern}))")

    def split(self, text: str) -> list[str]:
        """Plain text and control strings in turn, beginning and ending with (maybe empty) plain text."""
        return self._split.split(text)

    def spelled(self, text: str) -> list[str]:
        """Every control string in the text, also those that overlap."""
        return self._everywhere.findall(text)


def any_of(strings: Iterable[str]) -> str:
    """A regular expression for any of the strings, the longest first; for none if there are none.

    It branches like a trie, so that matching does not slow down with their number: Gemma has thousands of them.
    """
    return _branches(sorted(set(filter(None, strings)))) or _NEVER


def _branches(strings: list[str]) -> str:
    branches = []
    for _, group in groupby(strings, key=lambda string: string[0]):
        members = list(group)
        prefix = commonprefix(members)  # noqa: RUF071 - characters are meant
        rests = [member[len(prefix) :] for member in members if member != prefix]
        rest = f"(?:{_branches(rests)})" if rests else ""
        branches.append(re.escape(prefix) + rest + ("?" if rest and prefix in members else ""))
    return "|".join(branches)
