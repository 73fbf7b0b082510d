"""Cases about what only some servers serve: the engine tier refuses it by name, the full tier serves it.

What no tier must serve, tools and formats, is never silently ignored: a full server does it or refuses it.
"""

from __future__ import annotations

from typing import Any

from tlserve.conform.case import Case, expect, member, shown
from tlserve.conform.reading import content_of, error_of, ok
from tlserve.conform.refusals import MESSAGES, post_chat
from tlserve.conform.target import Answer, Target, parsed

PARTS: list[dict[str, object]] = [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}]
FUNCTION = {"name": "now", "parameters": {"type": "object", "properties": {}}}
TOOLS: dict[str, object] = {"tools": [{"type": "function", "function": FUNCTION}], "tool_choice": "required"}
FORMAT: dict[str, object] = {"response_format": {"type": "json_object"}}

UNSERVED: dict[str, dict[str, object]] = {
    "n": {"n": 2},
    "tools": {"tools": TOOLS["tools"]},
    "tool": TOOLS,  # Either of the two members may be the one that is named.
    "response_format": FORMAT,
    "messages": {"messages": PARTS},
}


def _unserved(target: Target) -> str:
    for name, fields in UNSERVED.items():
        _refused(post_chat(target, fields), name)
    _refused(target.post("completions", {"prompt": "Hi", "max_tokens": 1, "echo": True}), "echo")
    return "n, tools, tool_choice, response_format, content parts, echo"


def _refused(answer: Answer, name: str) -> None:
    error = error_of(answer, 422, name)
    expect("unsupported_parameter" in (error["code"], error["type"]), f"{name}: code is {shown(error['code'])}")
    expect(str(error["param"]).startswith(name), f"{name}: param is {shown(error['param'])}")


def _choices(target: Target) -> str:
    choices = member(ok(post_chat(target, {"n": 2, "temperature": 0})), "choices")
    expect([member(choice, "index") for choice in choices] == [0, 1], f"{len(choices)} choices instead of 2")
    texts = {member(choice, "message", "content") for choice in choices}
    expect(len(texts) == 1, "two choices at temperature 0 differ")
    return "two choices"


def _parts(target: Target) -> str:
    plain, parts = (content_of(post_chat(target, {"messages": m, "temperature": 0})) for m in (MESSAGES, PARTS))
    expect(plain == parts, "a text in parts has another answer than the same text")
    return "text parts are text"


def _echo(target: Target) -> str:
    document = ok(target.post("completions", {"prompt": "Hi there", "max_tokens": 2, "echo": True}))
    text = member(document, "choices", 0, "text")
    expect(str(text).startswith("Hi there"), f"the text begins {shown(text, 30)!r}")
    return shown(text, 40)


def _tools(target: Target) -> str:
    answer = post_chat(target, TOOLS)
    if answer.status != 200:
        return _say_refused(answer, "a tool")
    calls = member(ok(answer), "choices", 0, "message").get("tool_calls")
    expect(calls, "the tool that must be called is ignored")
    return f"calls {shown(member(calls, 0, 'function', 'name'), 30)}"


def _format(target: Target) -> str:
    answer = post_chat(target, {**FORMAT, "max_tokens": 64})
    if answer.status != 200:
        return _say_refused(answer, "json_object")
    content = content_of(answer)
    if member(ok(answer), "choices", 0, "finish_reason") == "length":
        expect(content.lstrip().startswith("{"), f"the JSON object begins {shown(content, 30)!r}")
        return "the beginning of an object"
    try:
        document: Any = parsed(content)
    except ValueError:
        document = None
    expect(isinstance(document, dict), f"this is no JSON object: {shown(content)}")
    return "an object"


def _say_refused(answer: Answer, what: str) -> str:
    error_of(answer, 400 if answer.status == 400 else 422, what)
    return f"refused with {answer.status}"


CASES = (
    Case("err.422", _unserved, tiers=("engine",)),
    Case("full.n", _choices, tiers=("full",)),
    Case("full.parts", _parts, tiers=("full",)),
    Case("full.echo", _echo, tiers=("full",)),
    Case("full.tools", _tools, tiers=("full",)),
    Case("full.response_format", _format, tiers=("full",)),
)
