"""What a client is billed for: the same numbers in every way to ask."""

from __future__ import annotations

from pathlib import Path

import pytest

from support import Serve, Server, wait_until

from .asking import COMPLETIONS, STREAMS, WAYS, Way

LONG = "the quick brown fox jumps over the lazy dog " * 14


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_use_01_all_choices_count_and_the_prompt_once(full: Server, way: Way) -> None:
    """Three answers of eight tokens to a prompt of five are 24 and 5."""
    usage = way.ask(full, "Count", n=3, max_tokens=8, temperature=1, seed=1).usage
    assert (usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"]) == (5, 24, 29)


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_use_02_hits_do_not_change_the_count(smollm2: Server, way: Way) -> None:
    """The prompt costs the same each time; what came from the cache is a detail of it, and never all of it."""
    ask = f"{way} {LONG}"
    usages = [way.ask(smollm2, ask, max_tokens=1, temperature=0).usage for _ in range(4)]
    cached = [usage["prompt_tokens_details"]["cached_tokens"] for usage in usages]
    assert len({usage["prompt_tokens"] for usage in usages}) == 1
    assert cached[0] < 64
    assert all(100 < count < usages[0]["prompt_tokens"] for count in cached[1:])


@pytest.mark.parametrize("kind", ["chat", "completions"])
@pytest.mark.parametrize(
    "fields",
    [{"temperature": 0.7, "seed": 3, "max_tokens": 20}, {"temperature": 0, "max_tokens": 20, "stop": ["e"]}],
    ids=["length", "stop-string"],
)
def test_use_03_streamed_and_plain_usage_agree(smollm2: Server, kind: str, fields: dict[str, object]) -> None:
    """Whatever ended the answer: every token counts that was sampled, the one that ended it included."""
    plain, stream = (
        Way("chat" if kind == "chat" else "completions", stream).ask(smollm2, "Name three rivers", **fields)
        for stream in (False, True)
    )
    counted = [
        {name: answer.usage[name] for name in ("prompt_tokens", "completion_tokens")} for answer in (plain, stream)
    ]
    assert counted[0] == counted[1]
    assert plain.told == stream.told


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_use_03_the_end_token_counts(silent: Server, way: Way) -> None:
    """Whether it is the first or the fifth."""
    assert way.ask(silent, " ", max_tokens=9).usage["completion_tokens"] == 1
    assert way.ask(silent, "\x1c", max_tokens=9).usage["completion_tokens"] == 5


@pytest.mark.parametrize("text", ["Tell me a joke.", "", " x", "<|im_start|>user\n", "été 👋🏽\n\n"])
def test_use_04_tokenize_counts_what_is_billed(smollm2: Server, text: str) -> None:
    """As a message and as a prompt; the ids that it returns, sent as a prompt, give the same answer as the text."""
    messages = [{"role": "user", "content": text}]
    fields = {"model": smollm2.model, "max_tokens": 4, "temperature": 0}
    as_chat = smollm2.api.post("/v1/tokenize", json={"model": smollm2.model, "messages": messages}).json()
    chat = smollm2.api.post("/v1/chat/completions", json={"messages": messages, **fields}).json()
    assert as_chat["count"] == len(as_chat["tokens"]) == chat["usage"]["prompt_tokens"]
    by_ids = smollm2.complete(as_chat["tokens"], max_tokens=4, temperature=0).json()
    assert by_ids["choices"][0]["text"] == chat["choices"][0]["message"]["content"]

    if text:
        as_prompt = smollm2.api.post("/v1/tokenize", json={"model": smollm2.model, "prompt": text}).json()
        by_text = smollm2.complete(text, max_tokens=4, temperature=0).json()
        by_ids = smollm2.complete(as_prompt["tokens"], max_tokens=4, temperature=0).json()
        assert as_prompt["count"] == by_text["usage"]["prompt_tokens"] == by_ids["usage"]["prompt_tokens"]
        assert by_text["choices"][0]["text"] == by_ids["choices"][0]["text"]


@pytest.mark.parametrize("way", COMPLETIONS, ids=str)
def test_use_a_list_of_prompts_is_billed_as_their_sum(counting: Server, way: Way) -> None:
    """Each prompt once."""
    streamed = {"stream": True, "stream_options": {"include_usage": True}} if way.stream else {}
    body = {"model": "succ", "prompt": ["a", "bb", "ccc"], "max_tokens": 2, **streamed}
    response = counting.api.post(way.path, json=body)
    assert '"prompt_tokens":6,"completion_tokens":6,"total_tokens":12' in response.text


@pytest.mark.parametrize("way", STREAMS, ids=str)
def test_spc_17_leaving_at_the_end_is_not_an_abort(serve: Serve, succ_dir: Path, way: Way) -> None:
    """A client that stops reading at [DONE] has had its answer; the request is counted as one that was."""
    series = f'tlserve_requests_total{{outcome="length",reason="",route="{way.path}"}}'
    server = serve(succ_dir)
    for _ in range(3):
        way.ask(server, "a", max_tokens=2)
    wait_until(lambda: f"{series} 3.0" in server.health.get("/metrics").text)
