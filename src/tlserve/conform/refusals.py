"""Cases about what every server must refuse, and how."""

from __future__ import annotations

from tlserve.conform.case import Case, expect, member, shown
from tlserve.conform.reading import error_of
from tlserve.conform.target import Answer, Target

MESSAGES: list[dict[str, object]] = [{"role": "user", "content": "Hi"}]

TOO_MANY_BYTES = 16 * 1024**2

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


def post_chat(target: Target, fields: dict[str, object]) -> Answer:
    """A short chat, with some fields of it changed."""
    return target.post("chat/completions", {"messages": MESSAGES, "max_tokens": 4, **fields})


def _bad_values(target: Target) -> str:
    unnamed = []
    for name, fields in WRONG.items():
        error = error_of(post_chat(target, fields), 400, name)
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


def _bad_stream(target: Target) -> str:
    error_of(post_chat(target, {"stream": True, "temperature": -1}), 400, "a stream with a wrong value")
    return "refused before the stream begins"


def _context(target: Target) -> str:
    error = error_of(post_chat(target, {"max_tokens": 10**7}), 400, "max_tokens of ten million")
    expect(error["code"] == "context_length_exceeded", f"code is {shown(error['code'])}")
    return shown(error["message"], 80)


def _unknown_model(target: Target) -> str:
    error = error_of(post_chat(target, {"model": "no-such-model"}), 404, "an unknown model")
    expect(error["code"] == "model_not_found", f"code is {shown(error['code'])}")
    return shown(error["message"], 80)


def _routes(target: Target) -> str:
    error_of(target.get("no/such/route"), 404, "an unknown path")
    wrong = target.get("chat/completions")
    error_of(wrong, 405, "GET of a chat")
    expect("POST" in wrong.headers.get("allow", ""), f"Allow is {wrong.headers.get('allow')!r}")
    return f"404, and 405 with Allow: {wrong.headers['allow']}"


def _too_large(target: Target) -> str:
    messages = [{"role": "user", "content": "a" * TOO_MANY_BYTES}]
    answer = post_chat(target, {"messages": messages})
    error_of(answer, 400 if answer.status == 400 else 413, f"a body of {TOO_MANY_BYTES} bytes")
    expect(target.get("models").status == 200, "after a body that is too large nothing is answered")
    return f"{TOO_MANY_BYTES} bytes are refused with {answer.status}"


def _media_type(target: Target) -> str:
    answer = target.send("POST", "chat/completions", content="<chat/>", headers={"Content-Type": "application/xml"})
    expect(answer.status in (400, 415), f"status {answer.status}")
    member(answer.document, "error", "message")
    return f"XML is refused with {answer.status}"


CASES = (
    Case("err.400", _bad_values),
    Case("err.json", _bad_json),
    Case("err.stream", _bad_stream),
    Case("err.context", _context),
    Case("err.404", _unknown_model),
    Case("err.routes", _routes),
    Case("err.413", _too_large),
    Case("err.415", _media_type),
)
