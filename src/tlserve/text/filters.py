"""The filters of chat templates: Jinja's own behind a meter, and a ``tojson`` that writes what Hugging Face's does.

Left out, and so refused when a template is parsed: ``pprint``, ``urlize`` and ``xmlattr``, which no prompt needs.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

from jinja2 import pass_context
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

from tlserve.text import growth
from tlserve.text.meter import meter_of

_LEFT_OUT = frozenset({"pprint", "tojson", "urlize", "xmlattr"})
_MAX_INDENT = 64


def metered_filters() -> dict[str, Callable[..., Any]]:
    """All filters by name. Each asks the meter of its rendering before it runs and after."""
    plain = ImmutableSandboxedEnvironment()
    metered = {name: _metered(plain, name) for name in plain.filters if name not in _LEFT_OUT}
    return metered | {"tojson": _tojson}


def _metered(plain: ImmutableSandboxedEnvironment, name: str) -> Callable[..., Any]:
    growth_of = growth.FILTERS.get(name)

    @pass_context
    def run(context: Context, value: Any, *args: Any, **kwargs: Any) -> Any:
        meter = meter_of(context)
        if growth_of is not None:
            value = list(value) if isinstance(value, Iterator) else value  # a measured iterator would be used up
            meter.admit(growth_of(meter.extent, value, *args, **kwargs))
        result = plain.call_filter(name, value, args, kwargs, context=context)
        meter.admit(growth.size(result))
        return result

    return run


@pass_context
def _tojson(  # noqa: PLR0917 - templates pass what they like by position
    context: Context,
    value: Any,
    ensure_ascii: bool = False,  # noqa: FBT001, FBT002
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,  # noqa: FBT001, FBT002
) -> str:
    """JSON as ``json.dumps`` writes it: nothing escaped for HTML, other scripts as they are, keys in their order."""
    if indent is not None and not 0 <= indent <= _MAX_INDENT:
        raise OverflowError(f"tojson indents by 0 to {_MAX_INDENT}, not by {indent}")
    meter = meter_of(context)
    meter.admit(meter.extent(value) * (1 + max(map(len, separators or ("",)))))
    encoder = json.JSONEncoder(ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
    pieces = []
    for piece in encoder.iterencode(value):
        meter.admit(len(piece))
        pieces.append(piece)
    return "".join(pieces)
