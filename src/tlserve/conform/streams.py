"""Cases about streams: their framing, and that they say what a whole answer says."""

from __future__ import annotations

import time

from tlserve.conform.case import Case, expect, member, shown
from tlserve.conform.chats import QUESTION
from tlserve.conform.reading import FINISHES, content_of, ok, stream_of, usage_of
from tlserve.conform.target import Target

PATIENCE_S = 2.0
"""How soon after a hang-up the server must have noticed."""


def _framing(target: Target) -> str:
    stream = stream_of(target.stream_chat(QUESTION, max_tokens=8, temperature=0))
    chunks = stream.chunks
    expect(chunks, "no chunks")
    expect(all(member(chunk, "choices") for chunk in chunks), "a chunk without a choice, and no usage was asked for")
    expect(len({member(chunk, "id") for chunk in chunks}) == 1, "the chunks have several ids")
    kinds = {member(chunk, "object") for chunk in chunks}
    expect(kinds == {"chat.completion.chunk"}, f"object is {shown(kinds)}")
    roles = [member(chunk, "choices", 0, "delta").get("role") for chunk in chunks]
    expect(roles[0] == "assistant", f"the first delta has the role {roles[0]!r}")
    expect(len(stream.finishes) == 1, f"finish_reason is set {len(stream.finishes)} times")
    expect(stream.finishes[0] in FINISHES, f"finish_reason is {shown(stream.finishes[0])}")
    expect(chunks[-1]["choices"][0].get("finish_reason"), "a chunk follows the one with the finish_reason")
    return f"{len(chunks)} chunks, then [DONE]"


def _equals(target: Target) -> str:
    for question in (QUESTION, "Repeat: naïve café 👋🏽", "1, 2, 3,"):
        plain = content_of(target.chat(question, max_tokens=24, temperature=0))
        streamed = stream_of(target.stream_chat(question, max_tokens=24, temperature=0)).text
        expect(streamed == plain, f"streamed {shown(streamed, 50)!r}, plain {shown(plain, 50)!r}")
    return "three answers, the same both ways"


def _usage(target: Target) -> str:
    options = {"include_usage": True}
    stream = stream_of(target.stream_chat(QUESTION, max_tokens=8, temperature=0, stream_options=options))
    expect(stream.usage is not None, "no chunk has a usage")
    expect(member(stream.chunks[-1], "choices") == [], "the chunk with the usage has choices")
    plain = usage_of(ok(target.chat(QUESTION, max_tokens=8, temperature=0)))
    streamed = usage_of({"usage": stream.usage})
    expect(streamed == plain, f"{streamed} prompt and completion tokens, {plain} in the whole answer")
    return f"{streamed[0]} prompt and {streamed[1]} completion tokens"


def _disconnect(target: Target) -> str:
    before = _answer_time(target)
    with target.opened(QUESTION, temperature=0, ignore_eos=True) as lines:
        expect(next(lines, ""), "the stream has no first line")
    begin = time.monotonic()
    after = _answer_time(target)
    evidence = f"an answer takes {before:.2f} s before a hang-up, {after:.2f} s after it"
    expect(after < 4 * before + PATIENCE_S, evidence)
    if target.metric("tl_engine_active_sequences") is None:
        return f"{evidence}; no metrics to look into"
    while active := target.metric("tl_engine_active_sequences"):
        expect(time.monotonic() - begin < PATIENCE_S, f"{active:.0f} sequences run {PATIENCE_S} s after the hang-up")
        time.sleep(0.02)
    used = target.metric('tl_engine_kv_blocks{state="used"}')
    expect(used == 0, f"{used} KV blocks are used with nothing running")
    return f"{evidence}; nothing runs, no block is used"


def _answer_time(target: Target) -> float:
    """Seconds until a small question is answered."""
    begin = time.monotonic()
    content_of(target.chat("Hi", max_tokens=1))
    return time.monotonic() - begin


CASES = (
    Case("chat.stream.framing", _framing),
    Case("chat.stream.equals_nonstream", _equals),
    Case("chat.stream.usage", _usage),
    Case("cancel.disconnect", _disconnect),
)
