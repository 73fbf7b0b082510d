"""Marks the text of messages so that none of it can pass for a control token once it is rendered.

A mark goes behind every character of a message that could begin a control string such as ``<|im_end|>``, and before
every one that could end it. Whatever a template then does to the text (cut, trim, join, delete from the middle), no
control string comes out of it whole, nor out of it and the template's own text together. Tokenizers look for control
strings in the marked prompt and then drop the marks.

Two things stay as they are, for a template to find them: markup that it looks for itself, such as ``</think>``, where
that is harmless, and strings that are but a word it knows, such as a role or a key. What a template puts around such a
word, as in ``'<|' + role + '|>'``, is its own affair.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping

from tlserve.errors import TemplateRenderError
from tlserve.text.control import any_of
from tlserve.text.rendered import spellings

# Unicode sets these aside for internal use: "noncharacters", which no text should hold.
_CANDIDATES = tuple(map(chr, range(0xFDD0, 0xFDF0)))


class Marker:
    """Marks messages for one vocabulary and one template.

    Args:
        control: The control strings of the vocabulary. (Of one character: those cannot be told from text.)
        literals: What the template may look for: its string constants, the names of attributes.
    """

    def __init__(self, control: Iterable[str], literals: Iterable[str]) -> None:
        control = [string for string in control if len(string) > 1]
        literals = frozenset(literals)
        self._first = frozenset(string[0] for string in control)
        self._last = frozenset(string[-1] for string in control)
        self._words = frozenset(word for word in literals if word.isidentifier() and not _holds(word, control))
        markup = [literal for literal in literals if not any(_touch(literal, string) for string in control)]
        self._pattern = re.compile(f"{any_of(markup)}|({any_of(self._first | self._last)})")

    def choose(self, *values: object) -> str:
        """A mark that occurs in none of these values, not even escaped.

        Raises:
            TemplateRenderError: They hold every character that could serve as one.
        """
        texts = [text.lower() for value in values for text in _texts(value)]
        for mark in _CANDIDATES:
            if not any(spelling.lower() in text for text in texts for spelling in spellings(mark)):
                return mark
        raise TemplateRenderError(f"the messages hold all {len(_CANDIDATES)} noncharacters of Unicode: leave one out")

    def marked(self, value: object, mark: str) -> object:
        """The same JSON value with every string in it marked, the keys of objects too."""
        if isinstance(value, str):
            return self._marked_text(value, mark)
        if isinstance(value, Mapping):
            return {self.marked(key, mark): self.marked(item, mark) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.marked(item, mark) for item in value]
        return value

    def _marked_text(self, text: str, mark: str) -> str:
        def around(found: re.Match[str]) -> str:
            char = found[1]
            if char is None:  # markup of the template's own
                return found[0]
            return (mark if char in self._last else "") + char + (mark if char in self._first else "")

        return text if text in self._words else self._pattern.sub(around, text)


def _holds(text: str, control: Iterable[str]) -> bool:
    return any(string in text for string in control)


def _touch(literal: str, control: str) -> bool:
    """Whether the literal could be a part of the control string, or reach into it from either side."""
    overlaps = range(1, min(len(literal), len(control)) + 1)
    return (
        literal in control
        or control in literal
        or any(literal[-size:] == control[:size] or literal[:size] == control[-size:] for size in overlaps)
    )


def _texts(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _texts(key)
            yield from _texts(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _texts(item)
