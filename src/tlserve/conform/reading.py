"""Answers taken apart, each step with the complaint it deserves."""

from __future__ import annotations

from typing import Any

from attrs import frozen

from tlserve.conform.case import Failed, expect, member, shown
from tlserve.conform.target import Answer, parsed

FINISHES = ("stop", "length")
ERROR_MEMBERS = {"message", "type", "param", "code"}


def ok(answer: Answer) -> Any:
    """The document of an answer that must be 200 and JSON."""
    expect(answer.status == 200, f"status {answer.status}: {shown(answer.text)}")
    expect(answer.document is not None, f"the body is not JSON: {shown(answer.text)}")
    return answer.document


def content_of(answer: Answer) -> str:
    """The text of the only choice of a chat."""
    content = member(ok(answer), "choices", 0, "message", "content")
    expect(isinstance(content, str), f"message.content is {shown(content)}")
    return str(content)


def usage_of(document: Any) -> tuple[int, int]:
    """Prompt and completion tokens, whose sum must be the total."""
    usage = member(document, "usage")
    prompt, completion, total = (member(usage, f"{kind}_tokens") for kind in ("prompt", "completion", "total"))
    numbers = [prompt, completion, total]
    expect(all(isinstance(number, int) for number in numbers), f"not numbers of tokens: {shown(usage)}")
    expect(total == prompt + completion, f"{prompt} + {completion} prompt and completion tokens are {total} in total")
    return prompt, completion


def error_of(answer: Answer, status: int, what: str) -> Any:
    """The error of an answer that must be refused with this status, in the shape of the API."""
    expect(answer.status == status, f"{what}: status {answer.status} instead of {status}: {shown(answer.text)}")
    kind = answer.headers.get("content-type", "")
    expect(kind.startswith("application/json"), f"{what}: the error's Content-Type is {kind!r}")
    error = member(answer.document, "error")
    expect(isinstance(error, dict), f"{what}: the error is {shown(error)}")
    missing = ", ".join(sorted(ERROR_MEMBERS - set(error)))
    expect(not missing, f"{what}: the error lacks {missing}: {shown(error)}")
    expect(isinstance(error["message"], str) and error["message"], f"{what}: the error has no message")
    return error


@frozen
class Stream:
    """A stream that is well framed: its chunks before ``[DONE]``."""

    chunks: list[Any]

    @property
    def text(self) -> str:
        """All deltas of the only choice, one after the other."""
        return "".join(
            choice.get("delta", choice).get("content") or choice.get("text") or ""
            for chunk in self.chunks
            for choice in chunk.get("choices", [])
        )

    @property
    def finishes(self) -> list[str]:
        """Every finish_reason that is not null, in order."""
        reasons = [choice.get("finish_reason") for chunk in self.chunks for choice in chunk.get("choices", [])]
        return [reason for reason in reasons if reason]

    @property
    def usage(self) -> Any:
        """The usage of the last chunk that has one."""
        return next((chunk["usage"] for chunk in reversed(self.chunks) if chunk.get("usage")), None)


def stream_of(answer: Answer) -> Stream:
    """The stream in an answer, after its framing has been looked at byte by byte."""
    expect(answer.status == 200, f"status {answer.status}: {shown(answer.text)}")
    kind = answer.headers.get("content-type", "")
    expect(kind.startswith("text/event-stream"), f"Content-Type is {kind!r}")
    text = answer.text.replace("\r\n", "\n")
    expect(text.endswith("\n\n"), f"the stream does not end with an empty line: {shown(text[-40:])}")
    events = [event for event in text.removesuffix("\n\n").split("\n\n") if not event.startswith(":")]
    for event in events:
        lines = [line for line in event.split("\n") if not line.startswith((":", "event:", "id:"))]
        expect(len(lines) == 1 and lines[0].startswith("data: "), f"not one data line: {shown(event)}")
    expect(events and events[-1] == "data: [DONE]", f"the last event is not [DONE]: {shown(events[-1:])}")
    return Stream([_chunk(event) for event in events[:-1]])


def _chunk(event: str) -> Any:
    try:
        return parsed(event.partition("data: ")[2])
    except ValueError:
        raise Failed(f"not JSON: {shown(event)}") from None
