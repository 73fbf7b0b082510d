"""Stop strings: texts that end an answer."""

from __future__ import annotations

from attrs import frozen

from tlserve.openai.fields import FieldProblem, Rule, Schema, Text, read_list, wrong_type

MAX_STOPS = 4
MAX_STOP_LENGTH = 1024

_ONE = Text("A stop string.", min_length=1, max_length=MAX_STOP_LENGTH)


@frozen
class Stops(Rule[tuple[str, ...]]):
    """One string, or a list of up to four; none is empty, and an empty list stops nothing."""

    doc: str

    def read(self, value: object) -> tuple[str, ...]:
        """The strings."""
        if isinstance(value, str):
            return (_ONE.read(value),)
        if not isinstance(value, list):
            raise wrong_type("a string or a list of strings", value)
        items = read_list(value, min_items=0, max_items=MAX_STOPS)
        return tuple(_read_item(index, item) for index, item in enumerate(items))

    def schema(self) -> Schema:
        """Both forms."""
        return {"anyOf": [_ONE.schema(), {"type": "array", "items": _ONE.schema(), "maxItems": MAX_STOPS}]}


def _read_item(index: int, item: object) -> str:
    try:
        return _ONE.read(item)
    except FieldProblem as problem:
        raise problem.of_item(index) from None
