"""The messages of a conversation, from the wire to turns of plain text."""

from __future__ import annotations

from typing import Annotated, Any

from attrs import field, frozen

from tlserve.openai.errors import ApiError, unsupported
from tlserve.openai.excerpt import describe
from tlserve.openai.fields import FieldProblem, Rule, Schema, Text, missing, read_text, wrong_type
from tlserve.openai.spec import Conversation, Message
from tlserve.openai.tiers import Tier, Unserved, refuse_unserved

MAX_MESSAGES = 4096
_ROLES = ("developer", "system", "user", "assistant", "tool")
_OTHER_PARTS = ("image_url", "input_audio", "file", "refusal")


@frozen
class Content(Rule[Any]):
    """A string, or a list of content parts, which the tier judges."""

    doc: str

    def read(self, value: object) -> str | list[object]:
        """The string, or the list as it is."""
        return value if isinstance(value, list) else read_text(value)

    def schema(self, *, parts: bool = False) -> Schema:
        """A string, or with ``parts`` a list of text parts too."""
        if not parts:
            return {"type": "string"}
        members: Schema = {"type": {"const": "text"}, "text": {"type": "string"}}
        part: Schema = {"type": "object", "properties": members, "required": ["type", "text"]}
        return {"anyOf": [{"type": "string"}, {"type": "array", "items": part, "minItems": 1}]}


@frozen(kw_only=True)
class ChatMessage:
    """One message, as it is sent."""

    role: Annotated[str, Text("Who speaks; developer is another word for system.", choices=_ROLES)]
    content: Annotated[str | list[object] | None, Content("What is said.")] = field(
        default=None,
        metadata={"required": True},  # asked for after tool_calls, which explain why it is missing
    )
    name: Annotated[str | None, Text("A name for the speaker, if the chat template uses it.", max_length=512)] = None
    tool_call_id: Annotated[str | None, Text("The call that a tool message answers.", max_length=512)] = None
    tool_calls: Annotated[object, Unserved("messages are plain text.")] = None
    function_call: Annotated[object, Unserved("messages are plain text.")] = None
    audio: Annotated[object, Unserved("messages are plain text.")] = None
    refusal: Annotated[object, Unserved("messages are plain text.")] = None

    def lower(self, path: str, tier: Tier) -> Message:
        """The turn that this message is; raises ApiError 400 or 422 with a ``param`` under ``path``."""
        refuse_unserved(self, tier, path=f"{path}.")
        role = "system" if self.role == "developer" else self.role
        return Message(role, self._text(f"{path}.content", tier), self.name, self.tool_call_id)

    def _text(self, path: str, tier: Tier) -> str:
        if isinstance(self.content, str):
            return self.content
        if self.content is None:
            raise missing().under(path).answer()
        if not tier.content_parts:
            raise unsupported(f"{path} is a list of parts; this server takes a string", param=path)
        if not self.content:
            raise FieldProblem("must not be an empty list").under(path).answer()
        return "".join(_part_text(part, f"{path}[{index}]") for index, part in enumerate(self.content))


def _part_text(part: object, path: str) -> str:
    """The text of a ``{"type": "text", "text": ...}`` part."""
    if not isinstance(part, dict):
        raise wrong_type("an object", part).under(path).answer()
    if part.get("type") != "text":
        raise _part_refused(part.get("type"), path)
    try:
        return read_text(part.get("text"))
    except FieldProblem as problem:
        raise problem.under(f"{path}.text").answer() from None


def _part_refused(kind: object, path: str) -> ApiError:
    if kind in _OTHER_PARTS:
        return unsupported(f"{path} is of type {describe(kind)}; this model reads text only", param=path)
    return FieldProblem(f"must be 'text', not {describe(kind)}").under(f"{path}.type").answer()


def lower_messages(messages: tuple[ChatMessage, ...], tier: Tier) -> Conversation:
    """The conversation; raises ApiError 400 or 422 with a ``param`` like ``messages[2].content``."""
    return Conversation(tuple(message.lower(f"messages[{i}]", tier) for i, message in enumerate(messages)))
