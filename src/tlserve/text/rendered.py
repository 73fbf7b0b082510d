"""A rendered chat prompt that still knows which text came from the messages.

Made by the prompt renderer, read by tokenizers; neither needs to know the other.
"""

from __future__ import annotations

from functools import cached_property

from attrs import frozen


@frozen(slots=False)
class Rendered:
    """A prompt as text, with an invisible mark wherever text of a message could pass for a control token.

    Attributes:
        marked: The prompt. A control token spelled without a mark inside is the template's own.
        mark: The mark, a noncharacter that no message holds; ``""`` if there are no marks.
    """

    marked: str
    mark: str = ""

    @cached_property
    def text(self) -> str:
        """The prompt without the marks: what the model reads."""
        return without_mark(self.marked, self.mark)


def without_mark(text: str, mark: str) -> str:
    """Removes the mark, also where a filter of the template has escaped it."""
    if not mark:
        return text
    for spelling in spellings(mark):
        text = text.replace(spelling, "")
    return text


def spellings(mark: str) -> tuple[str, ...]:
    """How a mark may look after rendering: as it is, in a Python or JSON string, in a URL."""
    return (mark, f"\\u{ord(mark):04x}", "".join(f"%{byte:02X}" for byte in mark.encode()))
