"""Reads a model's config.json strictly: a wrong type or a missing key is an error that names both.

Knows nothing about any architecture; `hparams` and `rope` say which keys they need. JSON null counts as absent.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from attrs import frozen

from tlserve.errors import CheckpointError


@frozen
class Entries:
    """One mapping of a config, with typed look-ups that raise CheckpointError.

    ``path`` is where the mapping lies inside config.json ("" at the top), so that messages name the full key.
    """

    values: Mapping[str, object]
    path: str = ""

    def has(self, key: str) -> bool:
        """Whether the key is there and is not null."""
        return self.values.get(key) is not None

    def count(self, key: str, default: int | None = None) -> int:
        """A whole number of at least 1."""
        value = self._get(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise self.wrong(key, "a whole number of at least 1")
        return value

    def optional_count(self, key: str) -> int | None:
        """A whole number of at least 1, or None where the key is absent."""
        return self.count(key) if self.has(key) else None

    def positive(self, key: str, default: float | None = None) -> float:
        """A finite number above 0."""
        value = self._get(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
            raise self.wrong(key, "a finite number above 0")
        return float(value)

    def optional_positive(self, key: str) -> float | None:
        """A finite number above 0, or None where the key is absent."""
        return self.positive(key) if self.has(key) else None

    def flag(self, key: str, *, default: bool) -> bool:
        """A JSON true or false."""
        value = self._get(key, default)
        if not isinstance(value, bool):
            raise self.wrong(key, "true or false")
        return value

    def text(self, key: str, default: str | None = None) -> str:
        """A string."""
        value = self._get(key, default)
        if not isinstance(value, str):
            raise self.wrong(key, "a string")
        return value

    def texts(self, key: str) -> tuple[str, ...]:
        """A list of strings."""
        value = self._get(key, None)
        if isinstance(value, str) or not isinstance(value, Sequence):
            raise self.wrong(key, "a list of strings")
        items = tuple(item for item in value if isinstance(item, str))
        if len(items) != len(value):
            raise self.wrong(key, "a list of strings")
        return items

    def section(self, key: str) -> Entries:
        """A JSON object below this one."""
        value = self._get(key, None)
        if not isinstance(value, Mapping):
            raise self.wrong(key, "an object")
        return Entries(value, self.name(key) + ".")

    def name(self, key: str) -> str:
        """The key with the path of its section, as messages show it."""
        return self.path + key

    def wrong(self, key: str, expected: str) -> CheckpointError:
        """The error for a key whose value is not what the model needs."""
        return CheckpointError(f"config.json: {self.name(key)} is {self.values.get(key)!r}; it must be {expected}")

    def _get(self, key: str, default: object) -> object:
        value = self.values.get(key)
        if value is None:
            value = default
        if value is None:
            raise CheckpointError(f"config.json: {self.name(key)} is missing")
        return value
