"""Typed look-ups in what a file says: a key of the wrong type is an error that names file, key and value.

Serves JSON objects and GGUF metadata alike; knows no key by itself. JSON null counts as absent.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NoReturn, TypeVar

import numpy as np
import numpy.typing as npt
from attrs import field, frozen

from tlserve.errors import CheckpointError

T = TypeVar("T", bool, int, float, str)

MAX_JSON_BYTES: Final = 256 * 2**20
"""No configuration file is read beyond this; the largest tokenizers take 35 MB."""

EXPECTED: Final[Mapping[type, str]] = {bool: "true or false", int: "a whole number", float: "a number", str: "a string"}


@frozen
class Fields:
    """A mapping from a file, with the file's name for messages."""

    origin: str
    values: Mapping[str, object] = field(repr=False, factory=dict)

    def fail(self, key: str, wanted: str) -> NoReturn:
        """Refuse the value of ``key``."""
        shown = repr(self.values.get(key))[:80]
        raise CheckpointError(f"{self.origin}: {key} is {shown}, expected {wanted}")

    def optional(self, key: str, kind: type[T]) -> T | None:
        """The value, or None where the key is absent; an int passes for a float, a bool never for a number."""
        value = self.values.get(key)
        if value is None:
            return None
        if kind is float and type(value) is int:
            return kind(value)
        if type(value) is not kind:
            self.fail(key, EXPECTED[kind])
        return value

    def get(self, key: str, default: T) -> T:
        """The value, or ``default`` where the key is absent."""
        value = self.optional(key, type(default))
        return default if value is None else value

    def required(self, key: str, kind: type[T]) -> T:
        """The value; an absent key is an error."""
        value = self.optional(key, kind)
        if value is None:
            raise CheckpointError(f"{self.origin}: {key} is missing, expected {EXPECTED[kind]}")
        return value

    def token_id(self, key: str) -> int | None:
        """A token id, or None where the key is absent."""
        value = self.optional(key, int)
        if value is not None and value < 0:
            self.fail(key, "a token id (0 or more)")
        return value

    def token_ids(self, key: str) -> tuple[int, ...]:
        """Token ids given as one number or a list of them; none where the key is absent."""
        value = self.values.get(key)
        found = value if isinstance(value, list) else [] if value is None else [value]
        if not all(type(item) is int and item >= 0 for item in found):
            self.fail(key, "a token id or a list of token ids")
        return tuple(found)

    def texts(self, key: str) -> tuple[str, ...]:
        """Strings in a row; none where the key is absent."""
        value = self.values.get(key)
        if value is None:
            return ()
        if not isinstance(value, list | tuple) or not all(isinstance(item, str) for item in value):
            self.fail(key, "a list of strings")
        return tuple(value)

    def integers(self, key: str) -> tuple[int, ...]:
        """An array of GGUF as plain numbers; none where the key is absent."""
        return tuple(self._array(key, "iu", "an array of whole numbers").tolist())

    def floats(self, key: str) -> tuple[float, ...]:
        """An array of GGUF as plain numbers; none where the key is absent."""
        return tuple(self._array(key, "f", "an array of numbers").tolist())

    def _array(self, key: str, kinds: str, wanted: str) -> npt.NDArray[np.generic]:
        """An array whose dtype is of one of numpy's ``kinds``."""
        value = self.values.get(key)
        if value is None:
            return np.empty(0)
        if not isinstance(value, np.ndarray) or value.dtype.kind not in kinds:
            self.fail(key, wanted)
        return value

    def section(self, key: str) -> Fields:
        """An object within; empty where the key is absent."""
        value = self.values.get(key)
        if value is None:
            return Fields(f"{self.origin}: {key}")
        if not isinstance(value, dict):
            self.fail(key, "an object")
        return Fields(f"{self.origin}: {key}", value)

    def objects(self, key: str) -> list[Fields]:
        """The objects of a list; none where the key is absent."""
        value = self.values.get(key)
        if value is None:
            return []
        if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
            self.fail(key, "a list of objects")
        return [Fields(f"{self.origin}: {key}[{i}]", item) for i, item in enumerate(value)]


def read_bytes(path: Path, limit: int = MAX_JSON_BYTES) -> bytes:
    """A whole small file.

    Raises:
        CheckpointError: it cannot be read or is larger than ``limit`` bytes.
    """
    try:
        with path.open("rb") as file:
            data = file.read(limit + 1)
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error.strerror}") from error
    if len(data) > limit:
        raise CheckpointError(f"{path}: larger than {limit} bytes, too much for such a file")
    return data


def parse_object(origin: str, data: bytes) -> Fields:
    """A JSON object as fields.

    Raises:
        CheckpointError: bad JSON, not UTF-8, nested too deep, or not an object.
    """
    try:
        value = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{origin}: not valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{origin}: holds a JSON {type(value).__name__}, expected an object")
    return Fields(origin, value)


def read_object(path: Path) -> Fields:
    """A JSON file that must exist and hold an object. Raises CheckpointError as its two halves do."""
    return parse_object(str(path), read_bytes(path))


def read_optional_object(path: Path) -> Fields:
    """The same for a file that may be absent: then it is empty."""
    return read_object(path) if path.exists() else Fields(str(path))
