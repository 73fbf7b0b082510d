"""Request bodies to frozen request classes: cattrs, made strict.

The classes say what they take by the rules in their annotations. This module lends cattrs those rules, refuses what
is no object or no list, treats null as absent, and turns cattrs' nested exceptions into the one
:class:`~tlserve.openai.fields.FieldProblem` that comes first, with its full path.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, TypeVar, get_args

import attrs
from cattrs import BaseValidationError, Converter
from cattrs.errors import AttributeValidationNote
from cattrs.gen import make_dict_structure_fn

from tlserve.openai.body import decode_object
from tlserve.openai.fields import FieldProblem, Rule, Several, missing, wrong_type

T = TypeVar("T")
Hook = Callable[[Any, Any], Any]


def read_request(body: bytes, cls: type[T]) -> tuple[T, tuple[str, ...]]:
    """The request in ``body``, and the names of its members that ``cls`` does not have.

    Raises:
        ApiError: 400 for what is no JSON object, or with the path of the first member that cannot be used.
    """
    document = decode_object(body)
    try:
        return _CONVERTER.structure(document, cls), unknown_names(document, cls)
    except FieldProblem as problem:
        raise problem.answer() from None


def unknown_names(document: Mapping[str, object], cls: Any) -> tuple[str, ...]:
    """The members that ``cls`` does not have, in their order; null asks for nothing and does not count."""
    known = attrs.fields_dict(attrs.resolve_types(cls))
    names: list[str] = []
    for name, value in document.items():
        if name not in known:
            names += [name] if value is not None else []
        elif isinstance(value, dict) and (inner := member_class(known[name].type)):
            names += [f"{name}.{unknown}" for unknown in unknown_names(value, inner)]
    return tuple(names)


def rule_of(annotation: Any) -> Rule[Any] | None:
    """The rule in ``Annotated[..., rule]``, if there is one."""
    return next((extra for extra in getattr(annotation, "__metadata__", ()) if isinstance(extra, Rule)), None)


@cache
def rules_of(cls: Any) -> Mapping[str, Rule[Any] | None]:
    """The rule of each attribute of an attrs class; None for members that are objects themselves."""
    return {attribute.name: rule_of(attribute.type) for attribute in attrs.fields(attrs.resolve_types(cls))}


def member_class(annotation: Any) -> Any:
    """The attrs class in ``Annotated[tuple[Class, ...], rule]`` or ``Class | None``; None if there is no class."""
    if isinstance(annotation, type) and attrs.has(annotation):
        return annotation
    return next((found for inner in get_args(annotation) if (found := member_class(inner))), None)


def _rule_hook(annotation: Any, converter: Converter) -> Hook:
    """How a member with a rule is read: by the rule, and the items of a list by their class."""
    rule: Any = rule_of(annotation)
    if not isinstance(rule, Several):
        return lambda value, _: rule.read(value)
    item_class = member_class(annotation)

    def read_items(value: Any, _: Any) -> tuple[Any, ...]:
        return tuple(read_item(index, item) for index, item in enumerate(rule.read(value)))

    def read_item(index: int, item: object) -> Any:
        try:
            return converter.structure(item, item_class)
        except FieldProblem as problem:
            raise problem.under(f"[{index}]") from None

    return read_items


def _class_hook(cls: Any, converter: Converter) -> Hook:
    """How an object is read: members that are null are left out, the first that fails is named."""
    build = make_dict_structure_fn(cls, converter, _cattrs_detailed_validation=True)

    def read_object(value: Any, _: Any) -> Any:
        if not isinstance(value, dict):
            raise wrong_type("an object", value)
        try:
            return build({name: member for name, member in value.items() if member is not None}, cls)
        except BaseValidationError as group:
            raise _first_problem(group) from None

    return read_object


def _first_problem(group: BaseValidationError) -> Exception:
    """What was wrong with the first member that failed, which is named by the note that cattrs left on it."""
    error = group.exceptions[0]
    name = next(note.name for note in error.__notes__ if isinstance(note, AttributeValidationNote))
    problem = missing() if isinstance(error, KeyError) else error
    return problem.under(name) if isinstance(problem, FieldProblem) else problem


def _strict_converter() -> Converter:
    converter = Converter(detailed_validation=True)
    converter.register_structure_hook_factory(attrs.has, _class_hook)
    converter.register_structure_hook_factory(lambda annotation: rule_of(annotation) is not None, _rule_hook)
    return converter


_CONVERTER = _strict_converter()
