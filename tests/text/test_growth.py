"""Estimates of how large a result will be."""

from __future__ import annotations

import time

import jinja2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tlserve.text import growth
from tlserve.text.meter import Meter, RenderLimits

EXTENT = Meter(RenderLimits()).extent
PLAIN = jinja2.Environment()
TEXTS = st.text(alphabet="ab \n%", max_size=8)
NUMBERS = st.integers(-3, 30)


def filtered(name: str, value: object, *args: object) -> str | list[object]:
    result = PLAIN.call_filter(name, value, list(args))
    return result if isinstance(result, str) else list(result)


@given(TEXTS, TEXTS, TEXTS, NUMBERS)
def test_estimates_of_filters_are_not_too_small(text: str, old: str, new: str, number: int) -> None:
    """Whatever a filter builds, it was told before."""
    calls: list[tuple[str, tuple[object, ...]]] = [
        ("center", (text, number)),
        ("replace", (text, old, new)),
        ("indent", (text, max(number, 0), True)),
        ("indent", (text, new, True)),
        ("join", (list(text), new)),
        ("batch", (list(text), max(number, 1), "x")),
        ("slice", (list(text), max(number, 1))),
        ("upper", (text,)),
    ]
    for name, arguments in calls:
        assert len(filtered(name, *arguments)) <= growth.FILTERS[name](EXTENT, *arguments)


@given(TEXTS, TEXTS, NUMBERS)
def test_estimates_of_methods_are_not_too_small(text: str, other: str, number: int) -> None:
    """The same for the methods of a text."""
    calls: list[tuple[str, tuple[object, ...]]] = [
        ("center", (number,)),
        ("ljust", (number, "x")),
        ("rjust", (number,)),
        ("zfill", (number,)),
        ("replace", ("a", other)),
        ("join", (list(other),)),
    ]
    for name, arguments in calls:
        assert len(getattr(text, name)(*arguments)) <= growth.METHODS[name](EXTENT, text, *arguments)


@given(TEXTS, st.integers(0, 40), st.integers(0, 40))
def test_estimates_of_formats_are_not_too_small(text: str, width: int, precision: int) -> None:
    """Widths count wherever they are written, or taken from a value."""
    for form, values in [
        (f"%{width}s|%s", (text, text)),
        ("%*s", (width, text)),
        (f"%.{precision}f%%", (1.5,)),
        (f"%(a)0{width + 1}d", {"a": 5}),
        (f"%(a(%)b){width + 1}.{precision}f|%(a(%)b)-{width + 1}s", {"a(%)b": 5}),
    ]:
        assert len(form % values) <= growth.of_operator(EXTENT, "%", form, values)
    for form in (f"{{:{width + 1}}}{{}}", "{:{}}"):
        arguments = (text, width + 1)
        assert len(form.format(*arguments)) <= growth.METHODS["format"](EXTENT, form, *arguments)


def test_measuring_a_long_format_takes_no_longer_than_reading_it() -> None:
    """Not even one that is all parentheses or digits."""
    began_at = time.process_time()
    for form in ("%(" * 500_000, "1" * 1_000_000, "{" * 1_000_000):
        growth.of_operator(EXTENT, "%", form, ())
    assert time.process_time() - began_at < 2


@given(st.one_of(TEXTS, st.lists(NUMBERS, max_size=5)), NUMBERS)
def test_estimates_of_operators_are_exact_or_above(value: str | list[int], number: int) -> None:
    """Repetition from either side, and joining."""
    assert len(value * number) <= max(0, growth.of_operator(EXTENT, "*", value, number))
    assert len(number * value) <= max(0, growth.of_operator(EXTENT, "*", number, value))
    assert len(value + value) == growth.of_operator(EXTENT, "+", value, value)  # type: ignore[operator]


@given(st.integers(-(2**64), 2**64), st.integers(0, 63))
def test_numbers_that_pass_are_small_enough_to_write(base: int, exponent: int) -> None:
    """What a power may be, Python can write out."""
    assert growth.of_operator(EXTENT, "**", base, exponent) == 0
    assert str(base**exponent)


def test_numbers_beyond_are_refused() -> None:
    """Their digits would cost time that grows with the square."""
    with pytest.raises(OverflowError, match="4096 bits"):
        growth.of_operator(EXTENT, "**", 10, 10**9)
    with pytest.raises(OverflowError, match="4096 bits"):
        growth.of_operator(EXTENT, "*", 2**4000, 2**200)
    assert growth.of_operator(EXTENT, "*", 2.0, 10**9) == 0
