"""The JSON schema of runtime.toml, from the same declarations that read the file.

For editors and for whoever checks a configuration before it is rolled out. What needs two keys to be judged (two equal ports)
or the machine (a model that is not there) only the server itself can say.
"""

from __future__ import annotations

import typing
from pathlib import Path
from typing import Any, Literal

import attrs

from tlserve.config import engine_keys
from tlserve.options import options_of, without_none

_A_MODEL = [{"required": ["model_dir"]}, {"required": ["model_source"]}]
"""A model that is fetched has a place by default."""

_TYPES: dict[type, str] = {int: "integer", float: "number", str: "string", bool: "boolean", Path: "string"}


def config_schema() -> dict[str, Any]:
    """The schema (draft 2020-12) of a whole file."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "tlserve runtime.toml",
        **_table({"engine": {**_object(engine_keys()), "anyOf": _A_MODEL}}),
    }


def _object(options: dict[str, attrs.Attribute[Any]]) -> dict[str, Any]:
    return _table({name: _property(field) for name, field in options.items()})


def _table(properties: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "additionalProperties": False}


def _property(field: attrs.Attribute[Any]) -> dict[str, Any]:
    kind = without_none(field.type)
    if attrs.has(kind):
        return {"description": field.metadata["doc"], **_object(options_of(kind))}
    schema: dict[str, Any] = {"description": field.metadata["doc"]}
    if isinstance(field.default, bool | int | float | str):
        schema["default"] = field.default
    if typing.get_origin(kind) is Literal:
        return {**schema, "enum": list(typing.get_args(kind))}
    limits = {"minimum": field.metadata["ge"], "maximum": field.metadata["le"]}
    number = {"type": _TYPES[kind], **{word: limit for word, limit in limits.items() if limit is not None}}
    if field.metadata["size"]:
        return {**schema, "anyOf": [number, {"type": "string", "pattern": r"^\d+(\.\d+)?\s*[KMGTkmgt]?i?B?$"}]}
    return {**schema, **number}
