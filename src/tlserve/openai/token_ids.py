"""Token ids and what is said about them. Whether the model has a token is asked later, by who holds the model."""

from __future__ import annotations

import re
from collections.abc import Mapping

from attrs import field, frozen

from tlserve.openai.excerpt import excerpt
from tlserve.openai.fields import (
    FieldProblem,
    Integer,
    Number,
    Rule,
    Schema,
    read_list,
    wrong_type,
)

MAX_BIASED_TOKENS = 1024

_KEY = re.compile(r"0|[1-9][0-9]{0,9}")
_TOKEN_ID = Integer("A token id.", ge=0)
_BIAS = Number("A bias.", ge=-100, le=100)


def read_token_ids(items: list[object]) -> tuple[int, ...]:
    """The ids, if each is a whole number and not negative."""
    return tuple(_read_token_id(index, item) for index, item in enumerate(items))


def _read_token_id(index: int, item: object) -> int:
    try:
        return _TOKEN_ID.read(item)
    except FieldProblem as problem:
        raise problem.of_item(index) from None


@frozen
class TokenIds(Rule[tuple[int, ...]]):
    """A list of token ids."""

    doc: str
    max_items: int = field(kw_only=True)

    def read(self, value: object) -> tuple[int, ...]:
        """The ids."""
        return read_token_ids(read_list(value, min_items=0, max_items=self.max_items))

    def schema(self) -> Schema:
        """A list of integers."""
        return {"type": "array", "items": _TOKEN_ID.schema(), "maxItems": self.max_items}


@frozen
class LogitBias(Rule[Mapping[int, float]]):
    """An object whose keys are token ids in decimal and whose values, -100 to 100, are added to their logits."""

    doc: str

    def read(self, value: object) -> Mapping[int, float]:
        """Ids to biases."""
        if not isinstance(value, dict):
            raise wrong_type("an object of token ids and numbers", value)
        if len(value) > MAX_BIASED_TOKENS:
            raise FieldProblem(f"names {len(value)} tokens; at most {MAX_BIASED_TOKENS} are allowed")
        return dict(_read_bias(key, bias) for key, bias in value.items())

    def schema(self) -> Schema:
        """An object with such keys and values."""
        return {
            "type": "object",
            "propertyNames": {"pattern": f"^({_KEY.pattern})$"},
            "additionalProperties": _BIAS.schema(),
            "maxProperties": MAX_BIASED_TOKENS,
        }


def _read_bias(key: str, bias: object) -> tuple[int, float]:
    if not _KEY.fullmatch(key):
        raise FieldProblem(f"has the key {excerpt(key)}; keys must be token ids in decimal")
    try:
        return int(key), _BIAS.read(bias)
    except FieldProblem as problem:
        raise FieldProblem(f"for token {key} {problem.what}", problem.code) from None
