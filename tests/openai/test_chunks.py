"""Streams: the order of their events, whatever the order of the calls."""

from __future__ import annotations

import json
import timeit
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tlserve.openai.chunks import ChatChunks, Chunks, CompletionChunks, failure
from tlserve.openai.documents import Choice, Head, text_completion
from tlserve.openai.errors import internal
from tlserve.openai.sse import DONE
from tlserve.openai.values import TokenLogprob, Usage

from .conftest import Validate

HEAD = Head("chatcmpl-1", 1_700_000_000, "succ")
USAGE = Usage(prompt_tokens=1, completion_tokens=3)


def events(stream: str) -> list[dict[str, Any]]:
    """The payloads of a stream without its [DONE]."""
    assert stream.endswith("\n\n") or not stream
    lines = [event.removeprefix("data: ") for event in stream.split("\n\n")[:-1]]
    return [json.loads(line) for line in lines if line != "[DONE]"]


def choices(stream: str) -> list[dict[str, Any]]:
    """The single choice of each event that has one."""
    return [choice for event in events(stream) for choice in event["choices"]]


def token(text: str, data: bytes | None = None) -> TokenLogprob:
    """A sampled token."""
    return TokenLogprob(text, -0.5, text.encode() if data is None else data)


def test_stream_framing_role_first_then_done(validate: Validate) -> None:
    """The worked example: role, b, c, d with the finish, usage, [DONE]; one id, one created, one model."""
    chunks = ChatChunks(HEAD, 0)
    stream = chunks.opening() + chunks.piece("b") + chunks.piece("c") + chunks.piece("d", finish="length")
    stream += ChatChunks.usage_event(HEAD, USAGE) + DONE
    assert stream.endswith("data: [DONE]\n\n")
    assert stream.count("\n\n") == 6
    role, b, c, d, usage = events(stream)
    assert role["choices"] == [{"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}]
    assert b["choices"] == [{"index": 0, "delta": {"content": "b"}, "finish_reason": None}]
    assert c["choices"] == [{"index": 0, "delta": {"content": "c"}, "finish_reason": None}]
    assert d["choices"] == [{"index": 0, "delta": {"content": "d"}, "finish_reason": "length"}]
    assert usage["choices"] == []
    assert usage["usage"] == USAGE.document()
    for event in (role, b, c, d, usage):
        validate("CreateChatCompletionStreamResponse", event)
        assert {name: event[name] for name in ("id", "object", "created", "model")} == {
            "id": "chatcmpl-1",
            "object": "chat.completion.chunk",
            "created": 1_700_000_000,
            "model": "succ",
        }


def test_usage_is_on_no_other_chunk() -> None:
    """Only who asked gets it, and only once."""
    chunks = ChatChunks(HEAD, 0)
    assert all("usage" not in event for event in events(chunks.piece("a") + chunks.piece("b", finish="stop")))


def test_the_role_comes_first_even_when_nobody_opens_the_stream() -> None:
    """The first piece brings it along."""
    chunks = ChatChunks(HEAD, 0)
    deltas = [choice["delta"] for choice in choices(chunks.piece("a") + chunks.opening() + chunks.piece("b"))]
    assert deltas == [{"role": "assistant", "content": ""}, {"content": "a"}, {"content": "b"}]


def test_a_held_back_piece_sends_nothing() -> None:
    """No empty deltas between the role and the finish."""
    chunks = ChatChunks(HEAD, 0)
    chunks.opening()
    assert chunks.piece("") == ""


def test_the_finish_is_sent_even_without_text() -> None:
    """An end token adds none, and may be the very first."""
    chunks = ChatChunks(HEAD, 0)
    assert [choice["finish_reason"] for choice in choices(chunks.piece("", finish="stop"))] == [None, "stop"]


PIECES = st.tuples(st.text(max_size=3), st.sampled_from([None, None, None, "stop", "length"]), st.booleans())


@pytest.mark.parametrize("kind", [ChatChunks, CompletionChunks])
@given(st.lists(st.one_of(PIECES, st.none()), max_size=12))
def test_a_choice_is_well_formed_whatever_is_called(kind: type[Chunks], calls: list[Any]) -> None:
    """Role first and once, at most one finish and nothing after it, the text complete up to there."""
    chunks = kind(HEAD, 2)
    stream, expected, finished = "", "", False
    for call in calls:
        if call is None:
            stream += chunks.opening()
            continue
        text, finish, with_logprob = call
        stream += chunks.piece(text, finish=finish, logprob=token("t") if with_logprob else None)
        expected += "" if finished else text
        finished = finished or finish is not None
    sent = choices(stream)
    assert all(choice["index"] == 2 for choice in sent)
    assert "".join(choice["delta"]["content"] if "delta" in choice else choice["text"] for choice in sent) == expected
    assert [choice["finish_reason"] is not None for choice in sent[:-1]] == [False] * len(sent[:-1])
    assert (bool(sent) and sent[-1]["finish_reason"] is not None) == finished
    if kind is ChatChunks:
        assert ["role" in choice["delta"] for choice in sent] == [True] * bool(sent) + [False] * len(sent[1:])


def test_several_choices_do_not_mix() -> None:
    """Each has its own index, role and finish."""
    first, second = ChatChunks(HEAD, 0), ChatChunks(HEAD, 1)
    stream = first.piece("a") + second.piece("x") + first.piece("b", finish="stop") + second.piece("y", finish="length")
    by_index = {index: [one for one in choices(stream) if one["index"] == index] for index in (0, 1)}
    assert ["role" in choice["delta"] for choice in by_index[1]] == [True, False, False]
    assert [by_index[0][-1]["finish_reason"], by_index[1][-1]["finish_reason"]] == ["stop", "length"]


def test_log_probabilities_of_held_back_tokens_wait_for_the_next_chunk(validate: Validate) -> None:
    """Every token has its entry, in order, on a chunk that is sent anyway."""
    chunks = ChatChunks(HEAD, 0)
    stream = chunks.piece("", logprob=token("d")) + chunks.piece("dx", logprob=token("x"))
    stream += chunks.piece("", logprob=token("<eos>", b""), finish="stop")
    for event in events(stream):
        validate("CreateChatCompletionStreamResponse", event)
    role, text, last = choices(stream)
    assert "logprobs" not in role
    assert [entry["token"] for entry in text["logprobs"]["content"]] == ["d", "x"]
    assert [entry["bytes"] for entry in last["logprobs"]["content"]] == [[]]


def test_a_text_stream_has_no_role_and_its_own_shape(validate: Validate) -> None:
    """The older endpoint: text instead of deltas, logprobs null when not asked for."""
    chunks = CompletionChunks(HEAD, 0)
    assert chunks.opening() == ""
    stream = chunks.piece("a") + chunks.piece("b", finish="length")
    assert choices(stream) == [
        {"index": 0, "text": "a", "logprobs": None, "finish_reason": None},
        {"index": 0, "text": "b", "logprobs": None, "finish_reason": "length"},
    ]
    last = events(stream)[-1]
    assert last["object"] == "text_completion"
    validate("CreateCompletionResponse", last)
    validate("CreateCompletionResponse", events(CompletionChunks.usage_event(HEAD, USAGE))[0])


def test_streamed_log_probabilities_add_up_to_the_plain_ones() -> None:
    """All four lists, offsets included, however many tokens share a chunk."""
    tokens = [token("a"), token("bb"), token("?", b"\xc3"), token("?", b"\xa9"), token("c")]
    texts = ["a", "", "", "bbé", "c"]
    chunks = CompletionChunks(HEAD, 0, text_offset=7)
    pieces = zip(texts, tokens, [None] * 4 + ["stop"], strict=True)
    sent = choices("".join(chunks.piece(text, logprob=one, finish=finish) for text, one, finish in pieces))  # type: ignore[arg-type]
    choice = Choice(index=0, text="abbéc", finish="stop", logprobs=tokens, text_offset=7)
    plain: Any = text_completion(HEAD, [choice], USAGE)
    for name, expected in plain["choices"][0]["logprobs"].items():
        assert [item for one in sent for item in one["logprobs"][name]] == expected


def test_a_failure_is_one_error_event_and_the_end(validate: Validate) -> None:
    """No finish_reason that could pass for an answer."""
    stream = failure(internal())
    assert stream.endswith(DONE)
    (document,) = events(stream)
    validate("ErrorResponse", document)
    assert "choices" not in document


@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=1))
def test_any_text_is_one_event(text: str) -> None:
    """Line breaks of every kind, quotes and backslashes are escaped; the text arrives as it was."""
    chunks = ChatChunks(HEAD, 0)
    chunks.opening()
    stream = chunks.piece(text)
    assert stream.count("\n") == 2
    assert len(stream.splitlines()) == 2
    assert choices(stream)[0]["delta"]["content"] == text


def test_a_model_name_cannot_break_out_of_the_json() -> None:
    """Quotes, brackets and line breaks in it are data."""
    name = '"]}],\n\\"choices":[]'
    head = Head("chatcmpl-1", 1, name, fingerprint="fp_1")
    (event, _) = events(ChatChunks(head, 0).piece("a"))
    assert (event["model"], event["system_fingerprint"]) == (name, "fp_1")


def test_a_chunk_is_rendered_in_microseconds() -> None:
    """Sixteen streams of a hundred tokens a second share one thread with everything else."""
    chunks = ChatChunks(HEAD, 0)
    chunks.opening()
    best = min(timeit.repeat(lambda: chunks.piece(" hello"), number=2000, repeat=5)) / 2000
    assert best < 20e-6  # about 1 us on an idle core
