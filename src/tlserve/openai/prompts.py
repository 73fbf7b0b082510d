"""One text, several texts, one list of token ids or several: the four ways to say what the model reads."""

from __future__ import annotations

from attrs import field, frozen

from tlserve.openai.fields import FieldProblem, Rule, Schema, Text, read_list, wrong_type
from tlserve.openai.spec import Prompt
from tlserve.openai.token_ids import read_token_ids

_WANTED = "a string, a list of strings, a list of token ids or a list of such lists"


@frozen
class TextsOrIds(Rule[tuple[Prompt, ...]]):
    """Any of the four, as a tuple with one item for each text or list of ids; no list is empty."""

    doc: str
    max_items: int = field(kw_only=True)
    min_length: int = field(default=0, kw_only=True)

    def read(self, value: object) -> tuple[Prompt, ...]:
        """The texts and id lists; what the first item is, all must be."""
        if isinstance(value, str):
            return (self._text(value),)
        if not isinstance(value, list):
            raise wrong_type(_WANTED, value)
        kind = type(value[0]) if value else list
        if kind not in (str, list):
            return (read_token_ids(value),)
        items = read_list(value, min_items=1, max_items=self.max_items)
        return tuple(self._read_item(index, item, kind) for index, item in enumerate(items))

    def _read_item(self, index: int, item: object, kind: type) -> Prompt:
        try:
            return self._text(item) if kind is str else read_token_ids(_filled_list(item))
        except FieldProblem as problem:
            raise problem.of_item(index) from None

    def _text(self, value: object) -> str:
        return Text("", min_length=self.min_length).read(value)

    def schema(self) -> Schema:
        """The four forms."""
        text = Text("", min_length=self.min_length).schema()
        ids: Schema = {"type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 1}
        texts: Schema = {"type": "array", "items": text, "minItems": 1, "maxItems": self.max_items}
        return {"anyOf": [text, texts, ids, {**texts, "items": ids}]}


def _filled_list(value: object) -> list[object]:
    """A list with at least one item; how long it may be is the context's business."""
    if not isinstance(value, list):
        raise wrong_type("a list of token ids", value)
    if not value:
        raise FieldProblem("must not be an empty list")
    return value
