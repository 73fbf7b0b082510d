"""Streams: what comes when, in which chunk, and how it ends."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
from openai import OpenAI

from support import Serve, Server, chunks_of, events_of, text_of

from .asking import STREAMS, WAYS, Way

HI = [{"role": "user", "content": "Hi"}]


def chat_chunks(server: Server, content: str, **fields: object) -> list[dict[str, Any]]:
    """The chunks of a streamed chat."""
    return chunks_of(server.chat(content, stream=True, **fields).text)


@pytest.mark.parametrize(
    ("model", "content", "fields"),
    [
        ("counting", "a", {"max_tokens": 24, "temperature": 0}),
        ("waving", "a", {"max_tokens": 24, "temperature": 0}),
        ("silent", " ", {"max_tokens": 4, "temperature": 0}),
        ("counting", "a", {"max_tokens": 4, "temperature": 0, "stop": "b"}),
    ],
    ids=["text", "half-a-character-first", "end-first", "stop-first"],
)
def test_str_01_str_02_the_role_is_announced_once(
    request: pytest.FixtureRequest, model: str, content: str, fields: dict[str, object]
) -> None:
    """In the first chunk with an empty content, whatever the first token is; no later delta has the member at all."""
    first, *rest = chat_chunks(request.getfixturevalue(model), content, **fields)

    assert first["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert rest
    assert all("role" not in chunk["choices"][0]["delta"] for chunk in rest)


@pytest.mark.parametrize("kind", ["chat", "completions"])
@pytest.mark.parametrize("options", [None, {}, {"include_usage": False}, {"include_usage": True}], ids=str)
def test_str_03_str_04_usage_comes_when_asked_for(counting: Server, kind: str, options: dict[str, bool] | None) -> None:
    """On one chunk without choices, after the finish and before [DONE], with the head of the others; else nowhere."""
    way = Way("chat" if kind == "chat" else "completions", stream=True)
    chunks = chunks_of(way.post(counting, "a", max_tokens=3, temperature=0, stream_options=options).text)
    with_usage = [chunk for chunk in chunks if chunk.get("usage") is not None]

    assert [chunk for chunk in chunks if chunk["choices"] == []] == with_usage
    if options != {"include_usage": True}:
        assert with_usage == []
        return
    assert with_usage == [chunks[-1]]
    assert chunks[-2]["choices"][0]["finish_reason"] == "length"
    usage = with_usage[0]["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"]) == (1, 3, 4)


@pytest.mark.parametrize("way", STREAMS, ids=str)
def test_str_05_the_sentinel_ends_both_streams(counting: Server, way: Way) -> None:
    """Once, as the last bytes; the body is over without the client's help and the connection serves on."""
    for _ in range(2):
        response = way.post(counting, "a", max_tokens=2)
        assert response.text.count("data: [DONE]\n\n") == 1
        assert response.text.endswith("\n\ndata: [DONE]\n\n")


@pytest.mark.parametrize("way", STREAMS, ids=str)
def test_held_back_text_comes_with_the_finish(counting: Server, way: Way) -> None:
    """On the last content chunk, as this API has it; nothing of it is lost."""
    plain = Way(way.kind, stream=False).ask(counting, "a", max_tokens=3, temperature=0, stop=["cdX"])
    streamed = way.ask(counting, "a", max_tokens=3, temperature=0, stop=["cdX"])

    assert streamed.told == plain.told == ("bcd", "length")
    assert streamed.only.pieces == ["b", "cd"]


@pytest.mark.parametrize("way", WAYS, ids=str)
@pytest.mark.parametrize("count", range(9))
def test_str_11_str_12_characters_split_over_tokens(waving: Server, way: Way, count: int) -> None:
    """A delta holds whole characters; one that the limit cuts becomes one replacement, streamed or not, and counts its tokens."""
    said = "👋é 👋é ".encode()[: count + 1]
    answer = way.ask(waving, "x", max_tokens=count + 1, temperature=0)

    assert answer.told == (said.decode("utf-8", "replace"), "length")
    assert answer.usage["completion_tokens"] == count + 1
    assert all("�" not in piece for piece in answer.only.pieces[:-1])


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_tok_05_words_are_not_spelled_as_the_vocabulary_does(smollm2: Server, way: Way) -> None:
    """Spaces and lines are real ones; a letter that the vocabulary spells them with is itself where a text has it."""
    text = way.ask(smollm2, "Two lines:\n1.", max_tokens=24, temperature=0).only.text
    assert " " in text
    assert not set("ĠĊ") & set(text)
    body = {"model": smollm2.model, "text": "ĠaĊ b\n", "return_token_strs": True}
    pieces = smollm2.api.post("/v1/tokenize", json=body).json()
    assert "".join(piece for piece in pieces["token_strs"] if "�" not in piece).endswith(" b\n")
    assert way.ask(smollm2, "ĠaĊ", max_tokens=1).usage["prompt_tokens"] > 2


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_str_13_random_bytes_are_text(hot: Server, way: Way) -> None:
    """Whatever a hot sampler draws is valid JSON with a text in it, the same streamed or not, and the server lives."""
    for seed in range(12):
        fields = {"max_tokens": 60, "temperature": 2, "top_p": 1, "seed": seed}
        answer = way.ask(hot, "Explain.", **fields)
        assert answer.told == Way(way.kind, not way.stream).ask(hot, "Explain.", **fields).told
        answer.only.text.encode()
    assert hot.api.get("/healthz").status_code == 200


@pytest.mark.parametrize("way", WAYS, ids=str)
@pytest.mark.parametrize("times", [1, 10])
def test_str_14_a_prompt_that_is_too_long_is_a_400(counting: Server, way: Way, times: int) -> None:
    """Streamed or not, with the limit and the actual count in numbers."""
    limit = counting.api.get("/v1/models").json()["data"][0]["max_model_len"]
    response = way.post(counting, "word " * (limit * times // 5 + 1), max_tokens=8)

    error = response.json()["error"]
    assert response.status_code == 400
    assert (error["type"], error["code"]) == ("invalid_request_error", "context_length_exceeded")
    assert str(limit) in error["message"]
    assert str((limit * times // 5 + 1) * 5) in error["message"]


@pytest.mark.parametrize("way", STREAMS, ids=str)
def test_str_17_one_head_for_a_whole_stream(counting: Server, way: Way) -> None:
    """One id with its prefix, one time in whole seconds, one model, on every chunk; another request has another id."""
    bodies = [chunks_of(way.post(counting, "a", max_tokens=4).text) for _ in range(2)]
    ids = []
    for chunks in bodies:
        ((identity, created, model),) = {(chunk["id"], chunk["created"], chunk["model"]) for chunk in chunks}
        assert identity.startswith("chatcmpl-" if way.kind == "chat" else "cmpl-")
        assert abs(time.time() - created) < 60
        assert isinstance(created, int)
        assert model == "succ"
        ids.append(identity)
    assert len(set(ids)) == 2


@pytest.mark.parametrize("kind", ["chat", "completions"])
def test_str_18_choices_of_a_stream_do_not_mix(hot: Server, kind: str) -> None:
    """Each has its index, its role, its text and one finish; regrouped they are the plain answer, and one usage covers all."""
    fields = {"n": 2, "temperature": 1.5, "seed": 11, "max_tokens": 12}
    plain, stream = (
        Way("chat" if kind == "chat" else "completions", stream).ask(hot, "Name a colour", **fields)
        for stream in (False, True)
    )

    assert [choice.text for choice in stream.choices] == [choice.text for choice in plain.choices]
    assert [choice.finish for choice in stream.choices] == ["length", "length"]
    assert plain.choices[0].text != plain.choices[1].text
    assert stream.usage["completion_tokens"] == plain.usage["completion_tokens"] == 24


def test_str_19_comments_do_not_disturb_the_official_client(serve: Serve, succ_dir: Path) -> None:
    """Pings are comments between events, there are no ``retry`` and no ``id`` lines, and the client reads the whole answer."""
    server = serve(succ_dir, step_delay=0.15, ping_interval_s=0.1)
    body = server.chat("a", stream=True, max_tokens=3, temperature=0).text
    assert ": ping\n\n" in body
    assert {line.partition(":")[0] for line in body.splitlines() if line} <= {"data", ""}
    with OpenAI(base_url=server.base_url, api_key="none", max_retries=0) as client:
        stream = client.chat.completions.create(
            model="succ", messages=[{"role": "user", "content": "a"}], max_tokens=3, temperature=0, stream=True
        )
        assert "".join(chunk.choices[0].delta.content or "" for chunk in stream) == "bcd"


def test_str_20_a_long_prefill_is_not_silent(serve: Serve, succ_dir: Path) -> None:
    """Status, headers and role go out while most of the prompt is still to be computed."""
    server = serve(succ_dir, engine={"prefill_chunk": 16, "prefix_cache": "off"}, step_delay=0.02)
    body = {"model": "succ", "messages": [{"role": "user", "content": "a" * 1600}], "stream": True, "max_tokens": 1}
    started = time.monotonic()
    with httpx.stream("POST", f"{server.base_url}/chat/completions", json=body) as response:
        lines = (line for line in response.iter_lines() if line.startswith("data: "))
        assert '"role"' in next(lines)
        role_after = time.monotonic() - started
        assert '"length"' in next(lines)
        text_after = time.monotonic() - started
    assert text_after > 2
    assert role_after < text_after / 2


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_str_21_spc_16_why_an_answer_ended(silent: Server, way: Way) -> None:
    """``length`` at the token limit and at the end of the context; ``stop`` for an end token or a stop string, also on the last token."""
    limit = silent.api.get("/v1/models").json()["data"][0]["max_model_len"]
    cases: dict[str, tuple[str, dict[str, object], tuple[str, str]]] = {
        "limit": ("a", {"max_tokens": 5}, ("bcdef", "length")),
        "stop on the last token": ("a", {"max_tokens": 3, "stop": ["cd"]}, ("b", "stop")),
        "end on the last token": ("\x1d", {"max_tokens": 4}, ("\x1e\x1f ", "stop")),
        "end first": (" ", {"max_tokens": 4}, ("", "stop")),
        "end of the context": ("a" * (limit - 2) + "b", {"max_tokens": 1}, ("c", "length")),
    }
    for name, (prompt, fields, expected) in cases.items():
        answer = way.ask(silent, prompt, temperature=0, **fields)
        assert answer.told == expected, name
        if name == "end first":
            assert answer.usage["completion_tokens"] == 1, "the end token counts"


def test_str_21_the_rest_of_the_context_is_the_default_of_a_chat(serve: Serve, succ_dir: Path) -> None:
    """Without a limit a chat goes on until the window is full, and says that it was cut."""
    server = serve(succ_dir, engine={"max_model_len": 32})
    document = server.chat("a", temperature=0).json()
    assert document["choices"][0]["finish_reason"] == "length"
    assert document["usage"]["total_tokens"] == 32


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_spc_07_stream_options_need_a_stream(counting: Server, way: Way) -> None:
    """Without ``stream`` they are a 400 and never a stream."""
    response = way.post(counting, "a", stream=False, stream_options={"include_usage": True})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "stream_options"


@pytest.mark.parametrize("way", STREAMS, ids=str)
def test_spc_19_headers_of_a_stream(counting: Server, way: Way) -> None:
    """Nobody on the way may keep, cache, compress or count it."""
    headers = way.post(counting, "a", max_tokens=1).headers
    assert headers["content-type"].startswith("text/event-stream")
    assert "no-cache" in headers["cache-control"]
    assert headers["x-accel-buffering"] == "no"
    assert "content-length" not in headers
    assert "content-encoding" not in headers


def test_spc_19_each_event_is_flushed(serve: Serve, succ_dir: Path) -> None:
    """A token is with the client before the next one is computed."""
    server = serve(succ_dir, step_delay=0.1)
    body = {"model": "succ", "messages": HI, "stream": True, "max_tokens": 4, "temperature": 0}
    arrived: dict[str, float] = {}
    with httpx.stream("POST", f"{server.base_url}/chat/completions", json=body) as response:
        for line in response.iter_lines():
            if line.startswith("data: {"):
                arrived[json.loads(line[6:])["choices"][0]["delta"]["content"]] = time.monotonic()
    gaps = [arrived[later] - arrived[sooner] for sooner, later in ("jk", "kl", "lm")]
    assert min(gaps) > 0.05


def test_a_stream_is_framed_to_the_byte(counting: Server) -> None:
    """The worked example's six events and nothing between them."""
    fields = {"max_tokens": 3, "temperature": 0, "stream_options": {"include_usage": True}}
    body = counting.chat("a", stream=True, **fields).text
    assert len(events_of(body)) == body.count("\n\n") == 6
    assert text_of(body) == "bcd"
