"""Cases about what must be refused, how, and what each tier makes of the rest of the API."""

from __future__ import annotations

from typing import Any

from tlserve.conform.case import Case, Skipped, expect, member, shown
from tlserve.conform.reading import content_of, error_of, ok
from tlserve.conform.target import Target

MESSAGES: list[dict[str, object]] = [{"role": "user", "content": "Hi"}]
PARTS: list[dict[str, object]] = [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}]
TOOLS: list[dict[str, object]] = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]

WRONG: dict[str, dict[str, object]] = {
    "temperature": {"temperature": -1},
    "top_p": {"top_p": 1.5},
    "max_tokens": {"max_tokens": 0},
    "stop": {"stop": ["a", "b", "c", "d", "e"]},
    "stream": {"stream": "yes"},
    "seed": {"seed": "lucky"},
    "messages": {"messages": []},
    "frequency_penalty": {"frequency_penalty": 9},
}

UNSERVED: dict[str, dict[str, object]] = {
    "n": {"n": 2},
    "tools": {"tools": TOOLS},
    "tool_choice": {"tools": TOOLS, "tool_choice": "required"},
    "response_format": {"response_format": {"type": "json_object"}},
    "content parts": {"messages": PARTS},
}


def _post(target: Target, fields: dict[str, Any]) -> Any:
    return target.post("chat/completions", {"messages": MESSAGES, "max_tokens": 4, **fields})


def _bad_values(target: Target) -> str:
    unnamed = []
    for name, fields in WRONG.items():
        error = error_of(_post(target, fields), 400, name)
        if not str(error["param"] or "").startswith(name):
            unnamed.append(name)
    expect(not unnamed, f"param does not name {', '.join(unnamed)}")
    no_messages = target.post("chat/completions", {"max_tokens": 4})
    expect(no_messages.status in (400, 422), f"without messages: status {no_messages.status}")
    return f"{len(WRONG)} wrong values, each named"


def _bad_json(target: Target) -> str:
    for body in ("{", "[]", "null", '{"model": "x", "messages": [', "\x00"):
        error_of(target.send("POST", "chat/completions", content=body), 400, repr(body))
    return "five bodies that are no request"


def _context(target: Target) -> str:
    error = error_of(_post(target, {"max_tokens": 10**7}), 400, "max_tokens of ten million")
    expect(error["code"] == "context_length_exceeded", f"code is {shown(error['code'])}")
    return shown(error["message"], 80)


def _unserved(target: Target) -> str:
    for name, fields in UNSERVED.items():
        error_of(_post(target, fields), 422, name)
    answer = target.post("completions", {"prompt": "Hi", "max_tokens": 1, "echo": True})
    error_of(answer, 422, "echo")
    return f"{', '.join(UNSERVED)}, echo"


def _choices(target: Target) -> str:
    choices = member(ok(_post(target, {"n": 2, "temperature": 0})), "choices")
    expect([choice["index"] for choice in choices] == [0, 1], f"{len(choices)} choices instead of 2")
    texts = {choice["message"]["content"] for choice in choices}
    expect(len(texts) == 1, "two choices at temperature 0 differ")
    return "two choices"


def _parts(target: Target) -> str:
    plain, parts = (content_of(_post(target, {"messages": m, "temperature": 0})) for m in (MESSAGES, PARTS))
    expect(plain == parts, "a text in parts has another answer than the same text")
    return "text parts are text"


def _echo(target: Target) -> str:
    document = ok(target.post("completions", {"prompt": "Hi there", "max_tokens": 2, "echo": True}))
    text = member(document, "choices", 0, "text")
    expect(text.startswith("Hi there"), f"the text begins {shown(text, 30)!r}")
    return shown(text, 40)


def _unknown_model(target: Target) -> str:
    error = error_of(_post(target, {"model": "no-such-model"}), 404, "an unknown model")
    expect(error["code"] == "model_not_found", f"code is {shown(error['code'])}")
    return shown(error["message"], 80)


def _routes(target: Target) -> str:
    error_of(target.get("no/such/route"), 404, "an unknown path")
    wrong = target.get("chat/completions")
    error_of(wrong, 405, "GET of a chat")
    expect("POST" in wrong.headers.get("allow", ""), f"Allow is {wrong.headers.get('allow')!r}")
    return f"404, and 405 with Allow: {wrong.headers['allow']}"


def _media_type(target: Target) -> str:
    answer = target.send("POST", "chat/completions", content="<chat/>", headers={"Content-Type": "application/xml"})
    expect(answer.status in (400, 415), f"status {answer.status}")
    member(answer.document, "error", "message")
    return f"XML is refused with {answer.status}"


def _request_id(target: Target) -> str:
    made = target.get("models").headers.get("x-request-id")
    expect(made, "no X-Request-Id")
    echoed = target.get("models", X_Request_Id="conform-1").headers.get("x-request-id")
    expect(echoed == "conform-1", f"the client's X-Request-Id became {echoed!r}")
    return f"own ids are kept, made ones look like {shown(made, 40)}"


def _our_headers(target: Target) -> str:
    owner = member(ok(target.get(f"models/{target.model}")), "owned_by")
    if owner != "tlserve":
        raise Skipped(f"headers of tlserve; this server says {shown(owner, 30)}")
    body = {"messages": MESSAGES, "max_tokens": 1}
    error_of(target.post("chat/completions", body, X_TL_Priority="101"), 400, "a priority of 101")
    ok(target.post("chat/completions", body, X_TL_Priority="-100"))
    error = error_of(target.post("chat/completions", body, X_TL_KV_Handle="x"), 404, "a KV handle")
    expect(error["code"] == "kv_handle_not_found", f"code is {shown(error['code'])}")
    return "priority and KV handle"


CASES = (
    Case("err.400", _bad_values),
    Case("err.json", _bad_json),
    Case("err.context", _context),
    Case("err.422", _unserved, tiers=("engine",)),
    Case("err.404", _unknown_model),
    Case("err.routes", _routes),
    Case("err.415", _media_type),
    Case("full.n", _choices, tiers=("full",)),
    Case("full.parts", _parts, tiers=("full",)),
    Case("full.echo", _echo, tiers=("full",)),
    Case("headers.request_id", _request_id),
    Case("headers.tlserve", _our_headers),
)
