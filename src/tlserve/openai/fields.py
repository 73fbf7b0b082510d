"""The rules of single fields: which JSON values are taken, what they become, how the API description tells it.

A rule sits in the annotation of an attrs class, ``Annotated[float, Number("...", ge=0, le=2)]``, and is the only
place that knows the field's type, range and meaning: :mod:`tlserve.openai.structure` reads values with it,
:mod:`tlserve.openai.openapi` writes the schema from it. Rules of one field alone live here; those of a single
endpoint live beside it.

Nothing is coerced: ``"false"`` is no flag, ``true`` is no number, ``1`` is no text. ``1.0`` is an integer, as JSON
Schema has it. A rule raises :class:`FieldProblem`, which does not know the field's name; the path is added on the
way up.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Generic, TypeVar

from attrs import field, frozen

from tlserve.errors import TlserveError
from tlserve.openai.errors import ApiError, invalid
from tlserve.openai.excerpt import describe

T = TypeVar("T")
Schema = dict[str, object]


@frozen
class FieldProblem(TlserveError):
    """A field's value cannot be used. ``path`` grows from the leaf to the root: ``messages[2].content``."""

    what: str
    code: str = "invalid_value"
    path: str = ""

    def under(self, step: str) -> FieldProblem:
        """The same problem seen from one level up: ``step`` is a name, or ``[index]``."""
        joint = "." if self.path and not self.path.startswith("[") else ""
        return FieldProblem(self.what, self.code, f"{step}{joint}{self.path}")

    def of_item(self, index: int) -> FieldProblem:
        """The same problem said of the list that has the item: clients are told the field, people the item."""
        return FieldProblem(f"item {index} {self.what}", self.code)

    def answer(self) -> ApiError:
        """The 400 that names the field, what it must be and what it was."""
        return invalid(f"{self.path or 'the request'} {self.what}", param=self.path or None, code=self.code)


def wrong_type(wanted: str, value: object) -> FieldProblem:
    """``must be a string, not 5``, said of whatever field it is."""
    return FieldProblem(f"must be {wanted}, not {describe(value)}", "invalid_type")


def out_of_range(wanted: str, value: object) -> FieldProblem:
    """The type is right, the value is not."""
    return FieldProblem(f"must be {wanted}, not {describe(value)}")


def missing() -> FieldProblem:
    """The field has no default and was not sent, or was sent as null."""
    return FieldProblem("is required", "missing_required_parameter")


class Rule(ABC, Generic[T]):
    """What one field takes. ``doc`` is the sentence of the API description."""

    doc: str

    @abstractmethod
    def read(self, value: object) -> T:
        """The typed value of a JSON value that is not null; raises :class:`FieldProblem`."""

    @abstractmethod
    def schema(self) -> Schema:
        """The JSON Schema of exactly the values that :meth:`read` takes."""


@frozen
class Text(Rule[str]):
    """A string, of a bounded length or one of a few words."""

    doc: str
    min_length: int = field(default=0, kw_only=True)
    max_length: int | None = field(default=None, kw_only=True)
    choices: tuple[str, ...] = field(default=(), kw_only=True)

    def read(self, value: object) -> str:
        """The string, if its spelling and length are allowed."""
        text = read_text(value)
        if self.choices and text not in self.choices:
            raise out_of_range(f"one of {', '.join(self.choices)}", text)
        if len(text) < self.min_length:
            raise FieldProblem("must not be empty")
        if self.max_length is not None and len(text) > self.max_length:
            raise FieldProblem(f"has {len(text)} characters; at most {self.max_length} are allowed")
        return text

    def schema(self) -> Schema:
        """``minLength``, ``maxLength``, ``enum``."""
        return present(
            type="string",
            enum=list(self.choices) or None,
            minLength=self.min_length or None,
            maxLength=self.max_length,
        )


@frozen
class Flag(Rule[bool]):
    """``true`` or ``false``."""

    doc: str

    def read(self, value: object) -> bool:
        """The flag."""
        if not isinstance(value, bool):
            raise wrong_type("true or false", value)
        return value

    def schema(self) -> Schema:
        """A boolean."""
        return {"type": "boolean"}


@frozen
class Integer(Rule[int]):
    """A whole number from ``ge`` to ``le``, both included."""

    doc: str
    ge: int | None = field(default=None, kw_only=True)
    le: int | None = field(default=None, kw_only=True)

    def read(self, value: object) -> int:
        """The number, if it is whole and in range."""
        number = read_integer(value)
        if (self.ge is not None and number < self.ge) or (self.le is not None and number > self.le):
            raise out_of_range(f"an integer {bounds(self.ge, self.le)}", number)
        return number

    def schema(self) -> Schema:
        """``minimum`` and ``maximum``."""
        return present(type="integer", minimum=self.ge, maximum=self.le)


@frozen
class Number(Rule[float]):
    """A number from ``ge`` (or above ``gt``) to ``le``."""

    doc: str
    ge: float | None = field(default=None, kw_only=True)
    gt: float | None = field(default=None, kw_only=True)
    le: float = field(kw_only=True)

    def read(self, value: object) -> float:
        """The number as a float, if it is in range."""
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise wrong_type("a number", value)
        too_small = (self.ge is not None and value < self.ge) or (self.gt is not None and value <= self.gt)
        if too_small or not value <= self.le:
            floor = f"above {self.gt:g} and up to {self.le:g}" if self.gt is not None else bounds(self.ge, self.le)
            raise out_of_range(f"a number {floor}", value)
        return float(value)

    def schema(self) -> Schema:
        """``minimum`` or ``exclusiveMinimum``, and ``maximum``."""
        return present(type="number", minimum=self.ge, exclusiveMinimum=self.gt, maximum=self.le)


@frozen
class Several(Rule[list[object]]):
    """A list of a bounded length whose items are read by the type of the attribute."""

    doc: str
    max_items: int = field(kw_only=True)
    min_items: int = field(default=0, kw_only=True)

    def read(self, value: object) -> list[object]:
        """The items as they are, if they are not too few or too many."""
        return read_list(value, min_items=self.min_items, max_items=self.max_items)

    def schema(self) -> Schema:
        """``minItems`` and ``maxItems``; ``items`` are told by their class."""
        return present(type="array", minItems=self.min_items or None, maxItems=self.max_items)


def read_text(value: object) -> str:
    """A string that can be written as UTF-8: JSON can smuggle in half a surrogate pair."""
    if not isinstance(value, str):
        raise wrong_type("a string", value)
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise FieldProblem(f"has half a surrogate pair at character {error.start}; send whole ones") from None
    return value


def read_integer(value: object) -> int:
    """An integer; a float without a fraction is one too."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise wrong_type("an integer", value)
    return value


def read_list(value: object, *, min_items: int, max_items: int) -> list[object]:
    """A list of a bounded length."""
    if not isinstance(value, list):
        raise wrong_type("a list", value)
    if len(value) < min_items:
        raise FieldProblem("must not be empty")
    if len(value) > max_items:
        raise FieldProblem(f"has {len(value)} items; at most {max_items} are allowed")
    return value


def bounds(low: float | None, high: float | None) -> str:
    """``from 1 to 4``, ``of at least 1``."""
    if low is not None and high is not None:
        return f"from {low} to {high}"
    return f"of at least {low}" if high is None else f"of at most {high}"


def present(**members: Any) -> Schema:
    """A schema without the members that are None."""
    return {name: value for name, value in members.items() if value is not None}
