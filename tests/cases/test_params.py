"""Members of a body: ranges, types, limits and defaults, and what is told of those that have no effect."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from support import Serve, Server, text_of

from .asking import COMPLETIONS, WAYS, Way


@pytest.mark.parametrize("stream", [False, True])
def test_par_01_the_newer_name_of_the_limit_counts(counting: Server, *, stream: bool) -> None:
    """``max_completion_tokens`` ends a chat."""
    answer = Way("chat", stream).ask(counting, "a", max_completion_tokens=5, temperature=0)
    assert answer.told == ("bcdef", "length")
    assert answer.usage["completion_tokens"] == 5


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_par_02_more_than_the_window_is_refused(counting: Server, way: Way) -> None:
    """With both numbers, and never answered with nothing; what fits exactly is served to the last token."""
    limit = counting.api.get("/v1/models").json()["data"][0]["max_model_len"]
    for wanted in (limit, 100_000_000, 2**63 - 1):
        response = way.post(counting, "Hi", max_tokens=wanted)
        error = response.json()["error"]
        assert (response.status_code, error["code"]) == (400, "context_length_exceeded")
        assert str(limit) in error["message"]
        assert str(wanted + 2) in error["message"]
    answer = way.ask(counting, "a" * (limit - 1), max_tokens=1, temperature=0)
    assert answer.told == ("b", "length")


OUT_OF_RANGE: dict[str, list[object]] = {
    "n": [0, -1, "2", 1.5, True, 10**30],
    "temperature": [-1, 5, 2.001, "hot", True, [1], {}],
    "top_p": [0, 2, -0.5, "1", True],
    "top_k": [-2, 1.5, "5", 2**31],
    "min_p": [-0.1, 1.1, "0"],
    "presence_penalty": [3, -2.1, "1", []],
    "frequency_penalty": [3, -2.1, "1", []],
    "repetition_penalty": [0, -1, 101, 5e-324, "1"],
    "max_tokens": [0, -5, "ten", True, 1.5, [5], {}],
    "min_tokens": [-1, "1", 1.5, 3],
    "stream": ["yes", 1, "true", []],
    "ignore_eos": ["yes", 1],
    "stop_token_ids": [5, [-1], ["5"], [1.5], [256], [True], list(range(129))],
    "user": [5, "x" * 513],
    "model": [5, "", [], {}],
}
WRONG = [(name, value) for name, values in OUT_OF_RANGE.items() for value in values]


@pytest.mark.parametrize("way", WAYS, ids=str)
@pytest.mark.parametrize(("name", "value"), WRONG, ids=[f"{name}={str(value)[:12]}" for name, value in WRONG])
def test_par_03_a_wrong_value_is_named(counting: Server, way: Way, name: str, value: object) -> None:
    """400 in the v1 shape; nothing is coerced, true is not 1, and the tier comes after the range."""
    response = way.post(counting, "Hi", **{"max_tokens": 2, name: value})
    error = response.json()["error"]
    assert (response.status_code, error["type"], error["param"]) == (400, "invalid_request_error", name)
    assert name in error["message"]


@pytest.mark.parametrize("tier", ["counting", "full"])
@pytest.mark.parametrize("stream", [False, True])
def test_par_04_an_answer_has_at_least_one_token(request: pytest.FixtureRequest, tier: str, *, stream: bool) -> None:
    """Prompts are not scored: no new tokens is a 400 in every tier, with echo or without."""
    server: Server = request.getfixturevalue(tier)
    for fields in ({}, {"echo": True}, {"echo": True, "logprobs": 1}):
        response = server.complete("Score this", max_tokens=0, stream=stream, **fields)
        assert (response.status_code, response.json()["error"]["param"]) == (400, "max_tokens")


BAD_IDS = [
    [0, 1, 999999999],
    [-1, 5],
    [1.5, 2],
    [True, False],
    [[1, 2], [3, 99999999]],
    [256],
    [1, "a"],
    [[1], "a"],
    [[1.5]],
]


@pytest.mark.parametrize("way", COMPLETIONS, ids=str)
@pytest.mark.parametrize("prompt", BAD_IDS, ids=str)
def test_par_05_ids_that_the_vocabulary_does_not_have(counting: Server, way: Way, prompt: list[object]) -> None:
    """400 that names the prompt; they never reach the embedding table."""
    response = counting.complete(prompt, max_tokens=2, stream=way.stream)
    assert (response.status_code, response.json()["error"]["param"]) == (400, "prompt")


def test_par_05_refusals_beside_a_stream(serve: Serve, succ_dir: Path) -> None:
    """The stream's tokens are unchanged."""
    server = serve(succ_dir, step_delay=0.01)
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(server.chat, "!", stream=True, max_tokens=50, temperature=0)
        while not running.done():
            assert {server.complete(prompt, max_tokens=2).status_code for prompt in BAD_IDS} == {400}
    assert text_of(running.result().text) == "".join(map(chr, range(0x22, 0x22 + 50)))


PROMPTS: list[tuple[object, list[str]]] = [
    ("a", ["bc"]),
    (["a", "m", "x"], ["bc", "no", "yz"]),
    ([97], ["bc"]),
    ([97, 109], ["no"]),
    ([[97], [109, 120]], ["bc", "yz"]),
    ([97.0], ["bc"]),
]


@pytest.mark.parametrize("way", COMPLETIONS, ids=str)
@pytest.mark.parametrize(("prompt", "texts"), PROMPTS, ids=[str(prompt) for prompt, _ in PROMPTS])
def test_par_06_a_prompt_comes_in_four_forms(counting: Server, way: Way, prompt: object, texts: list[str]) -> None:
    """One choice for each text or list of ids, in their order."""
    answer = way.ask(counting, prompt, max_tokens=2, temperature=0)
    assert [choice.text for choice in answer.choices] == texts


@pytest.mark.parametrize("way", COMPLETIONS, ids=str)
def test_par_06_several_answers_to_several_prompts(hot: Server, way: Way) -> None:
    """Choice i * n + j is the j-th answer to prompt i, which it would also give alone; prompts are billed once."""
    prompts = ["2+2=", "The capital of Spain is", "ABC"]
    fields = {"n": 2, "max_tokens": 6, "temperature": 1, "seed": 4}
    answer = way.ask(hot, prompts, **fields)
    alone = [choice.text for prompt in prompts for choice in way.ask(hot, prompt, **fields).choices]
    assert [choice.text for choice in answer.choices] == alone
    assert len(alone) == 6
    assert answer.usage["prompt_tokens"] == sum(map(len, prompts))


@pytest.mark.parametrize("way", COMPLETIONS, ids=str)
@pytest.mark.parametrize("prompt", ["", [], [""], [[]], ["a", ""], [[97], []], None, 5, {}, [None], [{}]], ids=str)
def test_par_07_an_empty_prompt_is_refused(counting: Server, way: Way, prompt: object) -> None:
    """400 that names it, and the next request is served."""
    response = counting.complete(prompt, max_tokens=2, stream=way.stream)
    assert (response.status_code, response.json()["error"]["param"]) == (400, "prompt")
    assert counting.complete("ok", max_tokens=2).status_code == 200


@pytest.mark.parametrize(
    "body",
    [
        '{"model":"succ","prompt":"x","temperature":NaN}',
        '{"model":"succ","prompt":"x","top_p":Infinity}',
        '{"model":"succ","prompt":"x","temperature":-Infinity}',
        '{"model":"succ","prompt":"x","max_tokens":1e400}',
        '{"model":"succ","prompt":"x","seed":' + "9" * 5000 + "}",
    ],
    ids=["NaN", "Infinity", "-Infinity", "1e400", "5000 digits"],
)
def test_spc_01_numbers_that_json_does_not_have(counting: Server, body: str) -> None:
    """A 400; none of them becomes a number."""
    response = counting.api.post("/v1/completions", content=body)
    assert (response.status_code, response.json()["error"]["code"]) == (400, "invalid_json")


@pytest.mark.parametrize(
    "body",
    [
        '{"model":"succ","prompt":"a","max_tokens":1,"max_tokens":9}',
        '{"model":"succ","prompt":"a","stream_options":{"include_usage":true,"include_usage":false},"stream":true}',
        '{"model":"succ","prompt":"a","unknown":{"x":1,"x":2}}',
    ],
    ids=["top", "inner", "unknown"],
)
def test_spc_02_a_key_may_come_once(counting: Server, body: str) -> None:
    """At any depth: two readers of one body must not understand it differently."""
    response = counting.api.post("/v1/completions", content=body)
    assert (response.status_code, response.json()["error"]["code"]) == (400, "invalid_json")
    assert "twice" in response.json()["error"]["message"]


@pytest.mark.parametrize("stream", [False, True])
def test_spc_08_of_two_limits_the_newer_wins(counting: Server, *, stream: bool) -> None:
    """``max_completion_tokens``; a header tells that the other had no effect, unless they agree."""
    way = Way("chat", stream)
    assert way.ask(counting, "a", max_tokens=5, max_completion_tokens=3, temperature=0).only.text == "bcd"
    assert way.post(counting, "a", max_tokens=5, max_completion_tokens=3).headers["x-tl-ignored"] == "max_tokens"
    assert "x-tl-ignored" not in way.post(counting, "a", max_tokens=3, max_completion_tokens=3).headers


HARMLESS = {"foo": 1, "store": True, "metadata": {"a": "b"}, "user": "u", "parallel_tool_calls": False}


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_spc_22_unknown_members_are_ignored_and_told(counting: Server, way: Way) -> None:
    """They change nothing, and ``X-TL-Ignored`` names them, in streams too; null is no member."""
    response = way.post(counting, "a", max_tokens=1, **HARMLESS, nothing=None)
    assert response.status_code == 200
    assert response.headers["x-tl-ignored"] == "foo, store, metadata, parallel_tool_calls"
    assert "x-tl-ignored" not in way.post(counting, "a", max_tokens=1, user="u").headers


def test_spc_22_names_in_the_header_are_harmless(counting: Server) -> None:
    """Strange names are counted, many are cut off, and none can break the header."""
    names = ["a\r\nSet-Cookie: x=1", "é", "", "x" * 5000, *(f"name{number}" for number in range(500))]
    for path, body in (
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}], "max_tokens": 1}),
        ("/v1/completions", {"prompt": "a", "max_tokens": 1}),
        ("/v1/embeddings", {"input": "a"}),
        ("/v1/tokenize", {"text": "a"}),
    ):
        response = counting.api.post(path, json={"model": "succ", **body, **dict.fromkeys(names, 1)})
        assert response.status_code == 200
        assert len(response.headers["x-tl-ignored"]) < 1200
        assert "488 more" in response.headers["x-tl-ignored"]
        assert "set-cookie" not in response.headers


UNSERVED: list[tuple[str, object]] = [
    ("n", 2),
    ("tools", [{"type": "function", "function": {"name": "f"}}]),
    ("tools", []),
    ("tool_choice", "auto"),
    ("tool_choice", "none"),
    ("functions", [{"name": "f"}]),
    ("function_call", "auto"),
    ("response_format", {"type": "json_object"}),
    ("response_format", {"type": "text"}),
    ("audio", {"voice": "alloy", "format": "wav"}),
    ("modalities", ["text", "audio"]),
    ("web_search_options", {}),
]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("name", "value"), UNSERVED, ids=[f"{name}={json.dumps(value)[:20]}" for name, value in UNSERVED]
)
def test_spc_22_what_the_engine_tier_does_not_serve(
    counting: Server, name: str, value: object, *, stream: bool
) -> None:
    """422 with the member's name, never an answer that pretends."""
    response = Way("chat", stream).post(counting, "Hi", **{name: value})
    error = response.json()["error"]
    assert (response.status_code, error["code"], error["param"]) == (422, "unsupported_parameter", name)


@pytest.mark.parametrize("fields", [{"n": 2}, {"echo": True}, {"best_of": 2}, {"suffix": "x"}], ids=str)
def test_spc_22_what_completions_do_not_serve(counting: Server, fields: dict[str, object]) -> None:
    """The same on the other endpoint."""
    error = (response := counting.complete("Hi", **fields)).json()["error"]
    assert (response.status_code, error["code"], error["param"]) == (422, "unsupported_parameter", *fields)


@pytest.mark.parametrize("way", COMPLETIONS, ids=str)
def test_more_choices_than_the_queue_holds(serve: Serve, succ_dir: Path, way: Way) -> None:
    """They could never be admitted, so it is a 400 and no 429 to be tried again; as many as it holds are served."""
    server = serve(succ_dir, api_tier="full", queue_capacity=4)
    refused: list[tuple[object, int, str]] = [("a", 5, "n"), (["a", "b", "c"], 2, "n"), (["a"] * 5, 1, "prompt")]
    for prompt, n, param in refused:
        error = (answer := way.post(server, prompt, n=n)).json()["error"]
        assert (answer.status_code, error["param"]) == (400, param)
        assert "at most" in error["message"]
    assert len(way.ask(server, ["a", "b"], n=2, max_tokens=2).choices) == 4


def test_the_full_tier_serves_more(full: Server) -> None:
    """Several answers, echo, and members whose values ask for nothing."""
    neutral = {"tools": [], "tool_choice": "auto", "response_format": {"type": "text"}, "function_call": "none"}
    assert full.chat("a", max_tokens=1, **neutral).status_code == 200
    for stream in (False, True):
        way = Way("completions", stream)
        echoed = way.ask(full, ["ab", "x"], echo=True, max_tokens=2, temperature=0, n=2)
        assert [choice.text for choice in echoed.choices] == ["abcd", "abcd", "xyz", "xyz"]
        assert way.ask(full, [97, 98], echo=True, max_tokens=1, temperature=0).only.text == "abc"
    assert full.chat("a", tools=[{"type": "function", "function": {"name": "f"}}]).status_code == 422
