"""``tojson``, which templates use to show tools to a model."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tlserve.text.template import Template

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@cache
def template(arguments: str) -> Template:
    return Template.parse("{{ x | tojson" + arguments + " }}")


def tojson(arguments: str, value: object) -> str:
    return template(arguments).render({"x": value})


@pytest.mark.parametrize(
    ("arguments", "settings"),
    [
        ("", {}),
        ("(indent=2)", {"indent": 2}),
        ("(false, 4)", {"indent": 4}),
        ("(ensure_ascii=true)", {"ensure_ascii": True}),
        ("(separators=(',', ':'))", {"separators": (",", ":")}),
        ("(sort_keys=true)", {"sort_keys": True}),
        ("(indent=0)", {"indent": 0}),
    ],
)
@given(value=JSON)
def test_json_is_what_python_writes(arguments: str, settings: dict[str, Any], value: Any) -> None:
    """Nothing is escaped for HTML, other scripts stay, keys keep their order, and every argument is heard."""
    assert tojson(arguments, value) == json.dumps(value, **{"ensure_ascii": False, **settings})


def test_json_of_the_report() -> None:
    """The text that HTML-minded servers mangle."""
    assert tojson("", {"d": "温度 <b> & 'q' a/b 😀"}) == '{"d": "温度 <b> & \'q\' a/b 😀"}'


def test_filters_of_iterators_see_every_item() -> None:
    """Measuring a chain of filters does not use it up."""
    source = "{{ x | map('upper') | join('-') }} {{ x | map('upper') | batch(2, '.') | list }}"
    assert Template.parse(source).render({"x": ["a", "b", "c"]}) == "A-B-C [['A', 'B'], ['C', '.']]"
