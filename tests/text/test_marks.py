"""Marks in the text of messages."""

from __future__ import annotations

import json
from urllib.parse import quote

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tlserve.errors import TemplateRenderError
from tlserve.text.control import ControlFinder
from tlserve.text.marks import Marker
from tlserve.text.rendered import Rendered

CONTROL = (
    "<|im_start|>",
    "<|im_end|>",
    "</s>",
    "[INST]",
    "<a>",
    ">>TITLE<<",
    "|eot|",
    "PAD",
    "end of text",
    "<unk",
    "aba",
)
WORDS = ("user", "text", "role", "content")
FINDER = ControlFinder(CONTROL)
MARKER = Marker(CONTROL, ["</think>", "<|im_end|>\n", "<", "PAD", *WORDS])
MARK = "\ufdd0"
# Bits of control strings, so that chance spells whole ones often.
BITS = st.sampled_from(
    [
        "<|im_",
        "end|>",
        "start|>",
        "<",
        ">",
        "</s",
        "</think>",
        "[IN",
        "ST]",
        ">>TITLE",
        "<<",
        "|",
        "PA",
        "D",
        "ab",
        "a",
        "end of ",
        "text",
        " ",
        "user",
    ]
)
TEXTS = st.lists(BITS, max_size=6).map("".join)


def marked(text: str) -> str:
    result = MARKER.marked(text, MARK)
    assert isinstance(result, str)
    return result


@given(TEXTS)
@example("<|im_end|>")
@example("PAD")
@example("PADPAD")
@example("ababa")
def test_no_control_string_survives_in_a_message(text: str) -> None:
    """Marked, no text spells one; without the marks it is the same text."""
    assert FINDER.spelled(marked(text)) == []
    assert Rendered(marked(text), MARK).text == text


@given(TEXTS, TEXTS)
def test_two_messages_together_spell_no_control_string(left: str, right: str) -> None:
    """The seam between two adjacent texts is as safe as their inside."""
    assert FINDER.spelled(marked(left) + marked(right)) == []


@given(TEXTS, TEXTS.filter(lambda text: text and text not in WORDS), TEXTS)
def test_a_message_completes_nothing_that_the_template_began(before: str, text: str, after: str) -> None:
    """Next to the template's own text, before or behind, only the template's own control strings are found."""
    assert FINDER.spelled(before + marked(text) + after) == FINDER.spelled(before) + FINDER.spelled(after)


@given(TEXTS, st.data())
def test_no_deletion_spells_a_control_string(text: str, data: st.DataObject) -> None:
    """Whatever a filter takes out of the middle, markup of the template aside, the ends keep their marks."""
    guarded = marked(text.replace("</think>", ""))
    kept = iter(data.draw(st.lists(st.booleans(), min_size=len(text), max_size=len(text))))
    shorter = "".join(char for char in guarded if char == MARK or next(kept))
    assert FINDER.spelled(shorter) == []


def test_trimming_and_replacing_find_what_they_look_for() -> None:
    """Spaces at the ends, and markup that the template names, are as they were."""
    assert marked("  <b> ").strip() == marked("<b>")
    marker = Marker(["<|im_end|>", "</s>", "end"], ["</think>", "user", "role"])
    assert str(marker.marked("<think>x</think>y", MARK)).split("</think>")[1] == "y"
    assert marker.marked({"role": "user"}, MARK) == {"role": "user"}


def test_markup_of_the_template_that_could_be_abused_is_marked() -> None:
    """A literal that is part of a control string, or reaches into one, is no exception."""
    assert MARK in marked("<|im_end|>\n")
    assert MARK in marked("<")
    assert FINDER.spelled(marked("<|im_</think>end|>").replace("</think>", "")) == []


def test_every_string_of_a_value_is_marked() -> None:
    """Nested lists, objects and their keys too; numbers and null are left alone."""
    value = {"role": "user", "content": [{"text": "<a>"}, None, 1.5, True], "<a>": ("<a>",)}
    assert MARKER.marked(value, MARK) == {
        "role": "user",
        "content": [{"text": marked("<a>")}, None, 1.5, True],
        marked("<a>"): [marked("<a>")],
    }
    assert MARK in marked("<a>")


def test_the_mark_is_a_character_that_no_message_holds() -> None:
    """Not even escaped, as JSON or a URL would write it."""
    assert MARKER.choose(["plain"]) == "\ufdd0"
    assert MARKER.choose([{"a\ufdd0": "\\UFDD1"}, ["%ef%b7%92", 1]]) == "\ufdd3"


def test_messages_with_every_noncharacter_are_refused() -> None:
    """There is nothing left to mark with; nobody writes such a text in earnest."""
    with pytest.raises(TemplateRenderError, match="all 32 noncharacters"):
        MARKER.choose("".join(map(chr, range(0xFDD0, 0xFDF0))))


@pytest.mark.parametrize("escape", [str, repr, json.dumps, quote])
def test_marks_vanish_however_a_filter_has_escaped_them(escape: object) -> None:
    """A template may write a message as JSON, as Python, or into a URL."""
    assert callable(escape)
    assert Rendered(escape(f"a<{MARK}b"), MARK).text == escape("a<b")
