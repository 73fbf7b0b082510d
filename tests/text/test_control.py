"""Finding control strings."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from tlserve.text.control import ControlFinder, any_of

STRINGS = st.lists(st.text(alphabet="ab<|>.*", min_size=1, max_size=5), max_size=6)


@given(STRINGS, st.text(alphabet="ab<|>.*", max_size=12))
def test_the_longest_string_at_each_place_is_found(strings: list[str], text: str) -> None:
    """The branching pattern finds what a search place by place finds."""
    expected = [
        max((string for string in strings if text.startswith(string, place)), key=len)
        for place in range(len(text))
        if any(text.startswith(string, place) for string in strings)
    ]
    assert ControlFinder(strings).spelled(text) == expected


@given(STRINGS, st.text(alphabet="ab<|>.*", max_size=12))
def test_splitting_loses_nothing(strings: list[str], text: str) -> None:
    """Plain text and control strings alternate and join to the text."""
    parts = ControlFinder(strings).split(text)
    assert "".join(parts) == text
    assert set(parts[1::2]) <= set(strings)
    assert len(parts) % 2 == 1


def test_no_strings_match_nothing() -> None:
    """A vocabulary without control tokens leaves every text whole."""
    assert ControlFinder([]).split("a<b") == ["a<b"]
    assert re.search(any_of([""]), "") is None


def test_thousands_of_long_strings_compile() -> None:
    """The pattern nests only where strings branch, so their number and length are no obstacle."""
    strings = [f"<unused{number}>" for number in range(6000)] + ["<" + "x" * 2000 + ">"]
    assert ControlFinder(strings).spelled("a<unused5999>b<unused60>") == ["<unused5999>", "<unused60>"]
