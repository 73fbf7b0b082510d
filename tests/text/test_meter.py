"""Limits of a rendering."""

from __future__ import annotations

import pytest

from tlserve.errors import TemplateRenderError
from tlserve.text.meter import Meter, RenderLimits


def test_a_value_up_to_the_limit_is_admitted() -> None:
    """The limit itself is allowed, one more is not, and the sum has its own limit."""
    meter = Meter(RenderLimits(value_size=10, total_size=25))
    meter.admit(10)
    meter.admit(10)
    with pytest.raises(TemplateRenderError, match="a value of more than 10 characters"):
        meter.admit(11)
    with pytest.raises(TemplateRenderError, match="values of more than 25 characters in all"):
        meter.admit(6)


def test_the_extent_of_a_value_counts_what_would_be_written() -> None:
    """What a list holds twice counts twice, and a tower of such lists is not climbed to its end."""
    meter = Meter(RenderLimits(value_size=1000))
    assert meter.extent("abc") == 3
    assert meter.extent(["abc", "abc"]) >= len(str(["abc", "abc"])) - 6
    assert meter.extent({"key": ["value"]}) >= len("keyvalue")
    tower: list[object] = ["x"]
    for _ in range(100):
        tower = [tower, tower]
    assert 1000 < meter.extent(tower) < 3000


def test_limits_are_positive() -> None:
    """A limit of nothing would refuse everything."""
    with pytest.raises(ValueError, match="seconds"):
        RenderLimits(seconds=0)
