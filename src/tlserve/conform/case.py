"""What a case is, what it may say, and what it means that an answer is right."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Any, Literal

from attrs import frozen

from tlserve.conform.target import Target

Tier = Literal["engine", "full"]

Check = Callable[[Target], str]
"""Asks the target and returns the evidence, one line; raises Failed or Skipped."""


class Failed(Exception):
    """The target does not do what the case asks; the message is the evidence."""


class Skipped(Exception):
    """The target cannot be asked; the message says why."""


class Verdict(Enum):
    """How a case came out."""

    PASS = "pass"  # noqa: S105
    FAIL = "fail"
    SKIP = "skip"


@frozen
class Case:
    """One promise of the API.

    Attributes:
        name: a group and a word, such as ``chat.seed``; it never changes.
        check: how to find out.
        tiers: those that make the promise.

    """

    name: str
    check: Check
    tiers: tuple[Tier, ...] = ("engine", "full")


@frozen
class Result:
    """What became of a case."""

    name: str
    verdict: Verdict
    evidence: str
    seconds: float


def expect(condition: object, evidence: str) -> None:
    """Raise Failed with the evidence unless the condition holds."""
    if not condition:
        raise Failed(evidence)


def member(document: Any, *path: str | int) -> Any:
    """What lies at a path of an answer.

    Raises:
        Failed: the answer has nothing there.
    """
    place = document
    for number, step in enumerate(path):
        try:
            place = place[step]
        except (KeyError, IndexError, TypeError):
            where = ".".join(map(str, path[: number + 1]))
            raise Failed(f"the answer has no {where}: {shown(document)}") from None
    return place


def shown(value: object, most: int = 120) -> str:
    """Something from the target, short enough for a line and harmless to a terminal."""
    line = " ".join(str(value).split())
    text = "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in line)
    return text if len(text) <= most else text[: most - 3] + "..."
