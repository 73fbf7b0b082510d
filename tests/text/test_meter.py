"""Limits of a rendering."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tlserve.errors import TemplateRenderError
from tlserve.text.meter import Meter, RenderLimits

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**300), 2**300) | st.floats() | st.text(alphabet="ab ", max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(alphabet="ab", max_size=5), inner, max_size=3),
    max_leaves=8,
)


def test_a_value_up_to_the_limit_is_admitted() -> None:
    """The limit itself is allowed, one more is not, and the sum has its own limit."""
    meter = Meter(RenderLimits(value_size=10, total_size=25))
    meter.admit(10)
    meter.admit(10)
    with pytest.raises(TemplateRenderError, match="a value of more than 10 characters"):
        meter.admit(11)
    with pytest.raises(TemplateRenderError, match="values of more than 25 characters in all"):
        meter.admit(6)


@given(VALUES)
def test_the_extent_is_never_less_than_what_is_written(value: object) -> None:
    """As Python writes it and, but for the quotes of a lone text, as JSON does."""
    extent = Meter(RenderLimits()).extent(value)
    assert len(str(value)) <= extent
    assert len(json.dumps(value)) <= extent + 2


def test_the_extent_of_a_value_counts_what_would_be_written() -> None:
    """What a list holds twice counts twice, and a tower of such lists is not climbed to its end."""
    meter = Meter(RenderLimits(value_size=1000))
    tower: list[object] = ["x"]
    for _ in range(100):
        tower = [tower, tower]
    assert 1000 < meter.extent(tower) < 3000


def test_limits_are_positive() -> None:
    """A limit of nothing would refuse everything."""
    with pytest.raises(ValueError, match="seconds"):
        RenderLimits(seconds=0)
