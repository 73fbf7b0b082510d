"""Marks the text of messages so that none of it can pass for a control token once it is rendered.

Control tokens are spelled with brackets of some kind: ``<|im_end|>``, ``[INST]``. A mark goes behind every character of a
message that could begin a control string, and before every one that could end it. Whatever a template then does to
the text (cut, trim, join, delete from the middle), a control string cannot come out of it whole, nor out of it and
the template's own text together. Tokenizers look for control strings in the marked prompt and drop the marks.

Markup that the template itself looks for, such as ``</think>``, stays as it is where that is harmless, so that a template
that takes it out of a message still finds it.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from tlserve.errors import TemplateRenderError
from tlserve.text.control import pattern_of
from tlserve.text.rendered import spellings

# Unicode keeps the first range for internal use, "noncharacters"; the second is private.
_CANDIDATES = (*range(0xFDD0, 0xFDF0), *range(0xE000, 0xF900))


class Marker:
    """Marks messages for one vocabulary and one template.

    Args:
        control: The control strings of the vocabulary.
        literals: The string constants of the template.
    """

    def __init__(self, control: Iterable[str], literals: Iterable[str]) -> None:
        control = [string for string in control if string]
        harmless = [literal for literal in literals if literal and not _touches(literal, control)]
        first = {string[0] for string in control}
        last = {string[-1] for string in control}
        kept, opening, closing = pattern_of(harmless), _one_of(first - last), _one_of(last - first)
        both = _one_of(first & last)
        self._pattern = re.compile(f"{kept}|({opening})|({closing})|({both})")

    def choose(self, *values: object) -> str:
        """A mark that occurs in none of these values, however it may be escaped.

        Raises:
            TemplateRenderError: They hold every character that could serve as one.
        """
        texts = [text.casefold() for value in values for text in _texts(value)]
        for code in _CANDIDATES:
            if not any(spelling.casefold() in text for text in texts for spelling in spellings(chr(code))):
                return chr(code)
        raise TemplateRenderError(f"the messages hold each of {len(_CANDIDATES)} characters that are not for text")
