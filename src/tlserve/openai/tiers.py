"""What each API tier serves, as one table.

``engine`` is the v1 engine tier: what it does not serve answers 422, even where the value would change nothing.
``full`` serves whatever the engine really can, and takes the values that ask for nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from attrs import frozen

from tlserve.openai.errors import unsupported
from tlserve.openai.fields import Rule, Schema
from tlserve.openai.structure import rules_of

TierName = Literal["engine", "full"]


@frozen
class Unserved(Rule[object]):
    """A member of the API that no tier serves; ``Tier.neutral`` knows values of it that ask for nothing."""

    doc: str

    def read(self, value: object) -> object:
        """The value as it is: that it was sent is all that matters."""
        return value

    def schema(self) -> Schema:
        """Null; who knows the tier adds its neutral values."""
        return {"type": "null"}


@frozen(kw_only=True)
class Tier:
    """One tier. ``neutral`` lists, by member, the values that ask for nothing and may therefore be sent."""

    max_n: int
    echo: bool
    content_parts: bool
    neutral: Mapping[str, tuple[object, ...]]


_ENGINE = Tier(
    max_n=1,
    echo=False,
    content_parts=False,
    neutral={"modalities": (["text"],), "suffix": ("",)},
)

_FULL = Tier(
    max_n=128,
    echo=True,
    content_parts=True,
    neutral={
        **_ENGINE.neutral,
        "tools": ([],),
        "tool_choice": ("none", "auto"),
        "functions": ([],),
        "function_call": ("none", "auto"),
        "response_format": ({"type": "text"},),
    },
)

TIERS: Mapping[TierName, Tier] = {"engine": _ENGINE, "full": _FULL}


def refuse_unserved(request: Any, tier: Tier, *, path: str = "") -> None:
    """Raise ApiError 422 for the first member that no tier serves, unless its value asks for nothing."""
    cls: Any = type(request)
    for name, rule in rules_of(cls).items():
        value = getattr(request, name)
        if value is None or not isinstance(rule, Unserved) or value in tier.neutral.get(name, ()):
            continue
        raise unsupported(f"{path}{name} is not served: {rule.doc}", param=f"{path}{name}")
