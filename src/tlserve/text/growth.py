"""How large the result of an operation will be, told before it runs.

Covers what can turn little into much: repetition, padding, formatting, joining and replacing. An estimate is too
small by no more than a constant factor. Sizes are characters or elements; an ``Extent`` measures a value written out.
"""

from __future__ import annotations

import re
import string
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TypeAlias

Extent: TypeAlias = Callable[[object], int]
Growth: TypeAlias = Callable[..., int]

_MAX_BITS = 4096  # of an integer; Python itself refuses to write one of more than about 14,000
_MAX_DIGITS = 300  # after the point; a float has no more
# Whatever could be the width or the precision of a %-field, wherever it stands: keys may hold anything.
_PERCENT_WIDTH = re.compile(r"(?<!\d)\d++(?=\.[\d*a-zA-Z]|[a-zA-Z%])|\*")


def size(value: object) -> int:
    """The characters of a text, the elements of a list or dict, 0 for anything else."""
    return len(value) if isinstance(value, (str, Sequence, Mapping)) else 0


def of_operator(extent: Extent, operator: str, left: object, right: object) -> int:
    """The size of ``left operator right``.

    Raises:
        OverflowError: It is an integer of more than 4096 bits.
    """
    if operator == "+":
        return size(left) + size(right)
    if operator == "%":
        return _percent(extent, left, right) if isinstance(left, str) else 0
    if isinstance(left, int) and isinstance(right, int):
        _check_bits(operator, left, right)
        return 0
    times = left if isinstance(left, int) else right
    return (size(left) + size(right)) * max(times, 0) if isinstance(times, int) else 0


def _check_bits(operator: str, left: int, right: int) -> None:
    bits = left.bit_length() * abs(right) if operator == "**" else left.bit_length() + right.bit_length()
    if bits > _MAX_BITS:
        raise OverflowError(f"a number of more than {_MAX_BITS} bits")


def _percent(extent: Extent, form: str, values: object) -> int:
    widths = _PERCENT_WIDTH.findall(form)
    return _formatted(extent, form, widths, values if isinstance(values, tuple) else (values,))


def _percent_filter(extent: Extent, form: object, *args: object, **kwargs: object) -> int:
    return _percent(extent, str(form), (*args, *kwargs.values()))


def _format(extent: Extent, form: str, *args: object, **kwargs: object) -> int:
    specs = [spec for _, _, spec, _ in string.Formatter().parse(form) if spec]
    widths = [width for spec in specs for width in re.findall(r"\d+|\{", spec)]
    return _formatted(extent, form, widths, (*args, *kwargs.values()))


def _formatted(extent: Extent, form: str, widths: Sequence[str], values: Sequence[object]) -> int:
    """Every field may be as long as the longest value, or as its width; ``*`` and ``{`` take that from a value."""
    widest = max((abs(value) for value in values if isinstance(value, int)), default=0)
    padding = sum(int(width) if width.isdecimal() else widest for width in widths)
    fields = form.count("%") + form.count("{")
    return len(form) + padding + fields * max(map(extent, values), default=0)


def _padded(extent: Extent, text: object, width: int = 80, fillchar: str = " ") -> int:  # noqa: ARG001
    return extent(text) + max(width, 0)


def _joined(extent: Extent, value: object, d: object = "", attribute: object = None) -> int:  # noqa: ARG001
    return extent(value) + size(value) * extent(d)


def _joined_by(extent: Extent, separator: str, items: object) -> int:
    return _joined(extent, items, separator)


def _replaced(extent: Extent, s: object, old: object, new: object, count: object = None) -> int:  # noqa: ARG001
    return extent(s) + str(s).count(str(old)) * extent(new)


def _indented(extent: Extent, s: object, width: object = 4, *_: object, **__: object) -> int:
    return extent(s) + (str(s).count("\n") + 1) * (max(width, 0) if isinstance(width, int) else size(width))


def _wrapped(extent: Extent, s: object, *args: object, wrapstring: object = None, **_: object) -> int:
    return extent(s) * (2 + max(map(size, (wrapstring, *args))))


def _batched(_: Extent, value: object, linecount: int, fill_with: object = None) -> int:
    return size(value) + (0 if fill_with is None else max(linecount, 0))


def _sliced(_: Extent, value: object, slices: int, fill_with: object = None) -> int:  # noqa: ARG001
    return size(value) + max(slices, 0)


def _rounded(_: Extent, value: object, precision: int = 0, method: object = None) -> int:  # noqa: ARG001
    if precision > _MAX_DIGITS:
        raise OverflowError(f"a number rounded to {precision} digits")
    return 0


def written(extent: Extent, value: object, *_: object, **__: object) -> int:
    """The size of a value as text."""
    return extent(value)


FILTERS: Mapping[str, Growth] = MappingProxyType({
    "batch": _batched,
    "center": _padded,
    "format": _percent_filter,
    "indent": _indented,
    "join": _joined,
    "replace": _replaced,
    "round": _rounded,
    "slice": _sliced,
    "wordwrap": _wrapped,
    **dict.fromkeys(
        ("capitalize", "e", "escape", "forceescape", "lower", "string", "striptags", "title", "trim", "truncate",
         "upper", "urlencode", "wordcount"),
        written,
    ),
})  # fmt: skip

METHODS: Mapping[str, Growth] = MappingProxyType({
    "center": _padded,
    "format": _format,
    "join": _joined_by,
    "ljust": _padded,
    "replace": _replaced,
    "rjust": _padded,
    "zfill": _padded,
})  # fmt: skip
