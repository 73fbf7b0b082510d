"""Turns the bytes of generated tokens into text that is safe to send.

Knows bytes, characters and stop strings; tokens, server-sent events and how a request ends belong to others.

Invariant: the concatenation of everything returned is the decoded text up to the first stop string, and no stop
string, nor a beginning of one that was later completed, was ever part of it.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterable


class TextStream:
    """The text of one choice, as it grows.

    Bytes are decoded as UTF-8; an invalid sequence becomes U+FFFD just as in ``bytes.decode("utf-8", "replace")``, an
    incomplete one waits. Stop strings are compared by code points, without normalisation, and only with
    generated text. Used by one task at a time.

    Args:
        stops: The stop strings of the request. An empty one can never be seen to end and is ignored.
    """

    __slots__ = ("_decoder", "_held", "_matchers", "_stopped")

    def __init__(self, stops: Iterable[str] = ()) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._matchers = [_StopMatcher(stop) for stop in stops if stop]
        self._held = ""
        self._stopped = False

    def push(self, data: bytes) -> str:
        """Takes the bytes of a token (or of several) and returns the text that may be sent now.

        Where stop strings overlap within one push, the one that begins first counts. After a stop, always ``""``.
        """
        return "" if self._stopped else self._release(self._decoder.decode(data))

    def finish(self) -> str:
        """Ends the stream and returns what was held back; bytes of a character that never ended become U+FFFD."""
        if self._stopped:
            return ""
        sent = self._release(self._decoder.decode(b"", final=True))
        held, self._held = self._held, ""
        return sent + held

    def stopped(self) -> bool:
        """Whether a stop string has occurred."""
        return self._stopped

    def _release(self, new: str) -> str:
        text = self._held + new
        found = [start for matcher in self._matchers if (start := matcher.feed(new)) is not None]
        if found:
            self._stopped, self._held = True, ""
            return text[: len(text) - len(new) + min(found)]
        cut = len(text) - max((matcher.matched for matcher in self._matchers), default=0)
        self._held = text[cut:]
        return text[:cut]


class _StopMatcher:
    """How much of one stop string the end of the text spells, kept up to date one character at a time.

    Knuth, Morris, Pratt, "Fast pattern matching in strings" (1977): each character costs amortised constant time,
    however long the stop string and the text are.
    """

    __slots__ = ("_borders", "_stop", "matched")

    def __init__(self, stop: str) -> None:
        self._stop = stop
        self._borders = _borders(stop)
        self.matched = 0  # characters of the stop that the text ends with

    def feed(self, text: str) -> int | None:
        """Reads on; returns where the first occurrence begins, counted from the start of ``text``, so maybe below 0."""
        for end, char in enumerate(text, start=1):
            self.matched = _advance(self._stop, self._borders, self.matched, char)
            if self.matched == len(self._stop):
                return end - self.matched
        return None


def _borders(pattern: str) -> list[int]:
    """For each prefix, the length of its longest proper prefix that is also its suffix. (len(pattern),)."""
    borders = [0]
    for char in pattern[1:]:
        borders.append(_advance(pattern, borders, borders[-1], char))
    return borders


def _advance(pattern: str, borders: list[int], matched: int, char: str) -> int:
    while matched and pattern[matched] != char:
        matched = borders[matched - 1]
    return matched + 1 if pattern[matched] == char else 0
