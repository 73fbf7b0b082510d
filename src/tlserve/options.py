"""Tables of options to frozen values, strictly.

Knows how one key is read, from TOML or from an environment variable, and how to say what is wrong with it. Which keys there
are is written in ``config``; this file holds no key of its own.
"""

from __future__ import annotations

import difflib
import math
import re
import types
import typing
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar

import attrs
from cattrs import Converter

from tlserve.errors import ConfigError

T = TypeVar("T")

_SIZE = re.compile(r"(?P<number>\d+(?:\.\d+)?)\s*(?P<unit>[KMGT]?)(?P<binary>i?)B?", re.IGNORECASE)
_TRUTH = {"true": True, "1": True, "yes": True, "on": True, "false": False, "0": False, "no": False, "off": False}


def option(
    default: Any = attrs.NOTHING,
    *,
    doc: str,
    ge: float | None = None,
    le: float | None = None,
    check: Callable[[Any], object] | None = None,
    size: bool = False,
) -> Any:
    """Declare one key.

    Args:
        default: the value when the key is absent; without one the key is required.
        doc: one line for the README's table and the schema.
        ge: the smallest value allowed.
        le: the largest value allowed.
        check: called with the value; its ValueError becomes part of the message.
        size: the value counts bytes and may be written ``"512MiB"``.
    """
    return attrs.field(default=default, metadata={"doc": doc, "ge": ge, "le": le, "check": check, "size": size})


def options_of(cls: type) -> dict[str, attrs.Attribute[Any]]:
    """The keys that ``cls`` declares, by name; its other attributes are not for the file."""
    attrs.resolve_types(cls)
    return {field.name: field for field in attrs.fields(cls) if "doc" in field.metadata}


def refuse_unknown(table: Mapping[str, object], known: Collection[str], *, where: str) -> None:
    """Raise ConfigError for the first key of ``table`` that is not known, naming the nearest that is."""
    for key in table:
        if key not in known:
            near = difflib.get_close_matches(key, known, n=1, cutoff=0.6)
            hint = f"did you mean {where}{near[0]}?" if near else f"known keys: {', '.join(sorted(known))}"
            raise ConfigError(f"{where}{key} is not a known key; {hint}")


def structure_table(cls: type[T], table: Mapping[str, object], *, where: str, **given: object) -> T:
    """Make a ``cls`` of ``table``, whose place in the file is ``where`` (such as ``engine.``); ``given`` passes unread.

    Raises:
        ConfigError: an unknown key, a missing one, or a value that its option does not allow.
    """
    options = options_of(cls)
    refuse_unknown(table, options, where=where)
    for name, field in options.items():
        if field.default is attrs.NOTHING and name not in table:
            raise ConfigError(f"{where}{name} is required and not set: {field.metadata['doc']}")
    values = {key: read_option(options[key], value, where=where) for key, value in table.items()}
    return cls(**values, **given)


def read_option(field: attrs.Attribute[Any], value: object, *, where: str) -> Any:
    """Check one value against its option and return it in the option's type.

    Raises:
        ConfigError: the value has another type or lies outside of what is allowed.
    """
    path = f"{where}{field.name}"
    inner = without_none(field.type)
    if attrs.has(inner):
        if not isinstance(value, Mapping):
            raise ConfigError(f"{path} = {value!r} is not a table; write [{path}]")
        return structure_table(inner, value, where=f"{path}.")
    try:
        if field.metadata["size"] and isinstance(value, str):
            value = parse_size(value)
        result = _CONVERTER.structure(value, inner)
        _check_range(field.metadata, result)
    except ValueError as error:
        raise ConfigError(f"{path} = {_shown(value)} is not allowed: {error}") from None
    return result


def value_of_text(field: attrs.Attribute[Any], text: str) -> object:
    """Read the text of an environment variable as the TOML value its option would have in the file.

    Raises:
        ConfigError: the text is no value of the option's type.
    """
    kind = without_none(field.type)
    try:
        return _parse_text(kind, text, size=field.metadata["size"])
    except ValueError as error:
        raise ConfigError(f"{field.name} = {text!r} is not allowed: {error}") from None


def parse_size(text: str) -> int:
    """Bytes of ``"512MiB"``, ``"2G"`` or ``"1048576"``; both K and Ki mean 1024.

    Raises:
        ValueError: the text is no size.
    """
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise ValueError('expected a size such as 1073741824 or "512MiB"')
    return int(float(match["number"]) * 1024 ** " KMGT".index(match["unit"].upper() or " "))


def _parse_text(kind: Any, text: str, *, size: bool) -> object:
    if kind is bool:
        if text.lower() not in _TRUTH:
            raise ValueError("expected true or false")
        return _TRUTH[text.lower()]
    if kind in (int, float) and not size:
        try:
            return kind(text)
        except ValueError:
            raise ValueError(f"expected {_TYPE_WORDS[kind]}") from None
    if attrs.has(kind):
        raise ValueError("it is a table; set its keys one by one, such as __METHOD")
    return text


def _check_range(metadata: Mapping[str, Any], value: Any) -> None:
    low, high = metadata["ge"], metadata["le"]
    if low is not None and value < low:
        raise ValueError(f"the smallest value is {low}" + (f", the largest {high}" if high is not None else ""))
    if high is not None and value > high:
        raise ValueError(f"the largest value is {high}")
    if metadata["check"] is not None:
        metadata["check"](value)


def without_none(kind: Any) -> Any:
    """``T`` of an annotation ``T | None``; another annotation as it is."""
    if typing.get_origin(kind) in (typing.Union, types.UnionType):
        return next(arm for arm in typing.get_args(kind) if arm is not type(None))
    return kind


def _is_literal(kind: Any) -> bool:
    origin: object = typing.get_origin(kind)
    return origin is Literal


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


_TYPE_WORDS = {int: "a whole number", float: "a number", str: "a text", bool: "true or false", Path: "a path"}


def _strict_converter() -> Converter:
    """A converter that never coerces: cattrs' own hooks would read ``"false"`` as True and 1 as ``"1"``."""
    converter = Converter()

    def only(kind: type, accepted: type) -> Callable[[object, object], object]:
        def hook(value: object, _: object) -> object:
            if type(value) is not accepted:
                raise ValueError(f"expected {_TYPE_WORDS[kind]}")
            return kind(value)

        return hook

    def finite(value: object, _: object) -> float:
        if not isinstance(value, int | float) or isinstance(value, bool) or not math.isfinite(value):
            raise ValueError("expected a number")
        return float(value)

    def literal(value: object, kind: Any) -> object:
        allowed = typing.get_args(kind)
        if value not in allowed or type(value) is not type(allowed[0]):
            raise ValueError("allowed: " + ", ".join(repr(choice) for choice in allowed))
        return value

    converter.register_structure_hook(str, only(str, str))
    converter.register_structure_hook(int, only(int, int))
    converter.register_structure_hook(float, finite)
    converter.register_structure_hook(bool, only(bool, bool))
    converter.register_structure_hook(Path, only(Path, str))
    converter.register_structure_hook_func(_is_literal, literal)
    return converter


_CONVERTER = _strict_converter()
