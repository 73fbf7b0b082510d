"""Finds the control tokens that a text spells.

Knows their strings only; which of them count is for the tokenizer to say.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TypeAlias

_Trie: TypeAlias = dict[str, "_Trie"]
_END = ""  # the key that says: a control string ends here


class ControlFinder:
    """The control strings of one vocabulary as a compiled pattern; where several begin, the longest counts.

    The pattern is a trie, so its cost does not grow with the number of strings (Gemma has thousands).
    """

    __slots__ = ("_everywhere", "_split")

    def __init__(self, strings: Iterable[str]) -> None:
        pattern = _pattern(_trie(strings)) or r"(?!)"
        self._split = re.compile(f"({pattern})")
        self._everywhere = re.compile(f"(?=({pattern}))")

    def split(self, text: str) -> list[str]:
        """Plain text and control strings in turn, beginning and ending with (maybe empty) plain text."""
        return self._split.split(text)

    def spelled(self, text: str) -> list[str]:
        """Every control string in the text, also those that overlap."""
        return self._everywhere.findall(text)


def _trie(strings: Iterable[str]) -> _Trie:
    root: _Trie = {}
    for string in filter(None, strings):
        node = root
        for char in string:
            node = node.setdefault(char, {})
        node[_END] = {}
    return root


def _pattern(trie: _Trie) -> str:
    branches = [re.escape(char) + _pattern(node) for char, node in trie.items() if char != _END]
    if not branches:
        return ""
    group = f"(?:{'|'.join(branches)})"
    return f"{group}?" if _END in trie else group
