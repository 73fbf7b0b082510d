"""Marks the text of messages so that none of it can pass for a control token once it is rendered.

Control tokens are spelled with brackets of some kind: ``<|im_end|>``, ``[INST]``. A mark goes behind every character of a
message that could begin a control string, and before every one that could end it. Whatever a template then does to
the text (cut, trim, join, delete from the middle), no control string comes out of it whole, nor out of it and the
template's own text together. Tokenizers look for control strings in the marked prompt and then drop the marks.

Markup that the template itself looks for, such as ``</think>``, stays as it is where that is harmless: a template that takes it
out of a message must find it. What lies between two brackets of the template is the template's affair: ``'<|' + role + '|>'``.
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
        bracketed = [string for string in control if _is_bracket(string[0]) and _is_bracket(string[-1])]
        self._first = frozenset(string[0] for string in bracketed)
        self._last = frozenset(string[-1] for string in bracketed)
        literals = frozenset(literals)
        self._names = frozenset(literal for literal in literals if not any(string in literal for string in control))
        kept = [literal for literal in literals if not any(_touch(literal, string) for string in control)]
        self._brackets = re.compile(f"{any_of(kept)}|({any_of(self._first | self._last)})")
        self._words = [_word_pattern(string) for string in control if string not in bracketed]

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
            bracket = found[1]
            if bracket is None:  # markup of the template's own
                return found[0]
            return (mark if bracket in self._last else "") + bracket + (mark if bracket in self._first else "")

        marked = self._brackets.sub(around, text)
        # A word that the template knows, such as a role or a key, is looked for and must not change.
        for pattern in () if text in self._names else self._words:
            marked = pattern.sub(mark, marked)
        return marked


def _is_bracket(char: str) -> bool:
    return not (char.isalnum() or char.isspace())


def _touch(literal: str, control: str) -> bool:
    """Whether the literal could be a part of the control string, or reach into it from either side."""
    overlaps = range(1, min(len(literal), len(control)) + 1)
    return (
        literal in control
        or control in literal
        or any(literal[-size:] == control[:size] or literal[:size] == control[-size:] for size in overlaps)
    )


def _word_pattern(control: str) -> re.Pattern[str]:
    """Where to break a control string without brackets: in it, in its beginning at the end of a text, in its end at the start.

    A mark behind every ``u`` of a text would be too many, so a filter that deletes from the middle is not provided for here.
    """
    first, last, size = re.escape(control[0]), re.escape(control[-1]), len(control)
    begins = "|".join([re.escape(control[1:]), *(re.escape(control[1:end]) + r"\Z" for end in range(1, size))])
    ends = "|".join(rf"(?<=\A{re.escape(control[start:-1])})" for start in range(1, size))
    return re.compile(rf"(?<={first})(?={begins})|(?:{ends})(?={last})")


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
