"""POST /v1/chat/completions, on the way in."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tlserve.decode.params import SamplingParams
from tlserve.openai.requests import Conversation, GenSpec, Message, parse_chat

from .conftest import Refusal

HI: dict[str, object] = {"role": "user", "content": "Hi"}
PARTS = [{"type": "text", "text": "msg part 0 "}, {"type": "text", "text": "msg part 1"}]


def body(**members: object) -> bytes:
    """A minimal chat request with ``members`` added or put in place."""
    return json.dumps({"model": "m", "messages": [HI], **members}).encode()


def bad(refusal: Refusal, **members: object) -> tuple[int, str | None]:
    """Status and param of the refusal of these members."""
    error = refusal(parse_chat, body(**members))
    return error.status, error.param


def test_the_worked_example_is_understood() -> None:
    """The smallest request: greedy, three tokens."""
    spec = parse_chat(
        b'{"model": "succ", "messages": [{"role": "user", "content": "a"}], "max_tokens": 3, "temperature": 0}'
    )
    assert spec == GenSpec(
        model="succ",
        prompt=Conversation((Message("user", "a"),)),
        params=SamplingParams(temperature=0.0),
        max_tokens=3,
    )


def test_defaults_are_those_of_the_api() -> None:
    """Sampling at temperature 1, no limit but the context, no stream, one answer."""
    spec = parse_chat(body())
    assert spec.params == SamplingParams()
    assert (spec.max_tokens, spec.seed, spec.stop, spec.stream, spec.n, spec.ignored) == (None, None, (), False, 1, ())


def test_every_sampling_member_arrives() -> None:
    """Nothing is accepted and dropped."""
    spec = parse_chat(
        body(
            temperature=0.5,
            top_p=0.9,
            top_k=40,
            min_p=0.1,
            presence_penalty=-1,
            frequency_penalty=1.5,
            repetition_penalty=1.1,
            logit_bias={"7": -100, "0": 2.5},
            min_tokens=2,
            logprobs=True,
            top_logprobs=5,
            seed=-3,
            stop=["x", "yz"],
            stop_token_ids=[4, 5],
            ignore_eos=True,
            stream=True,
            stream_options={"include_usage": True},
            user="me",
            max_completion_tokens=9,
        )
    )
    assert spec.params == SamplingParams(
        temperature=0.5,
        top_p=0.9,
        top_k=40,
        min_p=0.1,
        presence_penalty=-1.0,
        frequency_penalty=1.5,
        repetition_penalty=1.1,
        logit_bias={7: -100.0, 0: 2.5},
        min_tokens=2,
        logprobs=5,
    )
    assert (spec.seed, spec.stop, spec.stop_token_ids, spec.ignore_eos) == (-3, ("x", "yz"), (4, 5), True)
    assert (spec.stream, spec.include_usage, spec.user, spec.max_tokens) == (True, True, "me", 9)


def test_null_is_absent() -> None:
    """Clients with typed optionals send null for everything they do not set."""
    names = [
        "temperature", "top_p", "n", "stream", "stream_options", "stop", "max_tokens", "max_completion_tokens",
        "logprobs", "top_logprobs", "seed", "tools", "tool_choice", "response_format", "logit_bias", "user", "foo",
    ]  # fmt: skip
    nulls: dict[str, object] = dict.fromkeys(names)
    assert parse_chat(body(**nulls)) == parse_chat(body())


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", -1),
        ("temperature", 2.1),
        ("temperature", "1"),
        ("temperature", True),
        ("temperature", 10**400),
        ("top_p", 0),
        ("top_p", 1.5),
        ("top_k", -2),
        ("top_k", 2.5),
        ("min_p", 2),
        ("presence_penalty", 3),
        ("frequency_penalty", -3),
        ("repetition_penalty", 0),
        ("repetition_penalty", 5e-324),
        ("max_tokens", 0),
        ("max_tokens", -5),
        ("max_tokens", "5"),
        ("max_completion_tokens", 0),
        ("n", 0),
        ("n", -1),
        ("n", True),
        ("n", 129),
        ("stop", ["a", "b", "c", "d", "e"]),
        ("stop", ""),
        ("stop", ["", "D"]),
        ("stop", [1]),
        ("stop", 7),
        ("stop", "x" * 1025),
        ("seed", 2**63),
        ("seed", 1.5),
        ("stream", "false"),
        ("stream", 1),
        ("stream_options", {}),
        ("stream_options", {"include_usage": True}),
        ("logprobs", 1),
        ("top_logprobs", 2),
        ("top_logprobs", 21),
        ("logit_bias", {"x": 1}),
        ("logit_bias", {"01": 1}),
        ("logit_bias", {"-1": 1}),
        ("logit_bias", {"5": 101}),
        ("logit_bias", {"5": "1"}),
        ("logit_bias", [[5, 1]]),
        ("logit_bias", {str(token): 1 for token in range(1025)}),
        ("stop_token_ids", [-1]),
        ("stop_token_ids", 5),
        ("ignore_eos", 0),
        ("user", 5),
        ("model", None),
        ("model", 5),
        ("model", ""),
        ("messages", None),
        ("messages", []),
        ("messages", {}),
        ("messages", "Hi"),
    ],
)
def test_a_wrong_value_is_a_400_that_names_its_member(name: str, value: object, refusal: Refusal) -> None:
    """Out of range, of the wrong type or at odds with another member; nothing is coerced."""
    error = refusal(parse_chat, body(**{name: value}))
    assert (error.status, error.kind, error.param) == (400, "invalid_request_error", name)
    assert name in error.message
    assert len(error.message) < 400


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("temperature", [0, 2]),
        ("top_p", [1e-9, 1]),
        ("min_p", [0, 1]),
        ("presence_penalty", [-2, 2]),
        ("frequency_penalty", [-2, 2]),
        ("repetition_penalty", [0.01, 100]),
        ("top_k", [0, 2**31 - 1]),
    ],
)
def test_the_ends_of_a_range_belong_to_it(name: str, values: list[float]) -> None:
    """And arrive as they were sent."""
    for value in values:
        assert getattr(parse_chat(body(**{name: value})).params, name) == value


def test_other_ranges_have_their_ends_too() -> None:
    """64-bit seeds of either sign, four stop strings, twenty alternatives, biases that ban and force."""
    for seed in (-(2**63), 2**63 - 1):
        assert parse_chat(body(seed=seed)).seed == seed
    assert parse_chat(body(stop=["a", "b", "c", "d"])).stop == ("a", "b", "c", "d")
    assert parse_chat(body(stop=[])).stop == ()
    assert parse_chat(body(logprobs=True, top_logprobs=20)).params.logprobs == 20
    assert parse_chat(body(logit_bias={"1": -100, "2": 100})).params.logit_bias == {1: -100, 2: 100}


def test_a_missing_member_is_named(refusal: Refusal) -> None:
    """Also when the body is empty."""
    error = refusal(parse_chat, b"{}")
    assert (error.status, error.code) == (400, "missing_required_parameter")
    assert refusal(parse_chat, b'{"model": "m"}').param == "messages"


def test_min_tokens_may_not_pass_the_limit(refusal: Refusal) -> None:
    """An answer that may not end and may not go on."""
    assert bad(refusal, min_tokens=5, max_tokens=4) == (400, "min_tokens")
    assert parse_chat(body(min_tokens=4, max_tokens=4)).params.min_tokens == 4


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("n", 2),
        ("tools", []),
        ("tools", [{"type": "function", "function": {"name": "f"}}]),
        ("tool_choice", "none"),
        ("response_format", {"type": "text"}),
        ("response_format", {"type": "json_object"}),
        ("functions", []),
        ("function_call", "auto"),
        ("modalities", ["audio"]),
        ("audio", {"voice": "x"}),
        ("web_search_options", {}),
    ],
)
def test_what_the_engine_tier_does_not_serve_is_a_422(name: str, value: object, refusal: Refusal) -> None:
    """A supported field with a value that is not served is never silently ignored."""
    error = refusal(parse_chat, body(**{name: value}))
    assert (error.status, error.param, error.code) == (422, name, "unsupported_parameter")


def test_a_bad_value_is_reported_before_an_unserved_one(refusal: Refusal) -> None:
    """400 says fix it, 422 says leave it out; first things first."""
    assert bad(refusal, n=2, temperature=-1) == (400, "temperature")
    assert bad(refusal, n=2, top_logprobs=3) == (400, "top_logprobs")


def test_the_full_tier_takes_what_asks_for_nothing() -> None:
    """SDKs send neutral values of members they support."""
    members: dict[str, Any] = {
        "tools": [],
        "tool_choice": "none",
        "functions": [],
        "function_call": "none",
        "response_format": {"type": "text"},
        "modalities": ["text"],
        "n": 3,
    }
    assert parse_chat(body(**members), tier="full").n == 3


@pytest.mark.parametrize(
    ("name", "value"),
    [("tools", [{}]), ("tool_choice", "required"), ("response_format", {"type": "json_object"}), ("audio", {})],
)
def test_the_full_tier_does_not_pretend(name: str, value: object, refusal: Refusal) -> None:
    """What the engine cannot do is 422 in every tier."""
    error = refusal(parse_chat, body(**{name: value}), tier="full")
    assert (error.status, error.param) == (422, name)


def test_content_parts_are_a_422_in_the_engine_tier(refusal: Refusal) -> None:
    """As v1 has it."""
    for parts in (PARTS, []):
        assert bad(refusal, messages=[{"role": "user", "content": parts}]) == (422, "messages[0].content")


def test_text_parts_read_as_their_concatenation_in_the_full_tier() -> None:
    """In order, without a joiner, for every role."""
    for role in ("system", "user", "assistant"):
        whole = parse_chat(body(messages=[{"role": role, "content": "msg part 0 msg part 1"}]))
        assert parse_chat(body(messages=[{"role": role, "content": PARTS}]), tier="full") == whole


@pytest.mark.parametrize(
    ("content", "status", "param"),
    [
        ([], 400, "messages[1].content"),
        ([7], 400, "messages[1].content[0]"),
        ([{"type": "text"}], 400, "messages[1].content[0].text"),
        ([{"type": "text", "text": 5}], 400, "messages[1].content[0].text"),
        ([PARTS[0], {"type": "wizard"}], 400, "messages[1].content[1].type"),
        ([PARTS[0], {}], 400, "messages[1].content[1].type"),
        ([{"type": ["text"]}], 400, "messages[1].content[0].type"),
        ([PARTS[0], {"type": "image_url", "image_url": {"url": "data:,"}}], 422, "messages[1].content[1]"),
    ],
)
def test_parts_that_are_no_text_are_named(content: object, status: int, param: str, refusal: Refusal) -> None:
    """By their place; an image is never fetched."""
    error = refusal(parse_chat, body(messages=[HI, {"role": "user", "content": content}]), tier="full")
    assert (error.status, error.param) == (status, param)


@pytest.mark.parametrize(
    ("message", "status", "param"),
    [
        (7, 400, "messages[1]"),
        ([], 400, "messages[1]"),
        (None, 400, "messages[1]"),
        ({"role": "user"}, 400, "messages[1].content"),
        ({"role": "user", "content": None}, 400, "messages[1].content"),
        ({"role": "user", "content": 5}, 400, "messages[1].content"),
        ({"role": "user", "content": {"type": "text"}}, 400, "messages[1].content"),
        ({"content": "x"}, 400, "messages[1].role"),
        ({"role": "wizard", "content": "x"}, 400, "messages[1].role"),
        ({"role": "User", "content": "x"}, 400, "messages[1].role"),
        ({"role": 1, "content": "x"}, 400, "messages[1].role"),
        ({"role": "user", "content": "x", "name": 5}, 400, "messages[1].name"),
        ({"role": "assistant", "content": None, "tool_calls": [{}]}, 422, "messages[1].tool_calls"),
        ({"role": "assistant", "content": "x", "function_call": {}}, 422, "messages[1].function_call"),
    ],
)
def test_a_wrong_message_is_named_by_its_place(message: object, status: int, param: str, refusal: Refusal) -> None:
    """Never a silent drop, never the word None in a prompt."""
    assert bad(refusal, messages=[HI, message]) == (status, param)


def test_an_empty_turn_is_a_turn() -> None:
    """An empty string is content."""
    assert parse_chat(body(messages=[{"role": "user", "content": ""}])).prompt == Conversation((Message("user", ""),))


def test_developer_is_another_word_for_system() -> None:
    """The models that are served were trained with one of them."""
    instructions = {"content": "Answer only with the word BANANA."}
    developer = parse_chat(body(messages=[{"role": "developer", **instructions}, HI]))
    assert developer == parse_chat(body(messages=[{"role": "system", **instructions}, HI]))


def test_templates_see_the_members_that_were_sent_and_no_others() -> None:
    """A template asks ``message.name is defined``."""
    conversation = parse_chat(
        body(messages=[HI, {"role": "tool", "content": "22", "tool_call_id": "c", "name": None}])
    ).prompt
    assert isinstance(conversation, Conversation)
    assert conversation.as_dicts() == [HI, {"role": "tool", "content": "22", "tool_call_id": "c"}]


def test_text_keeps_every_character(refusal: Refusal) -> None:
    """NUL and other controls are text; half a surrogate pair is not, and is refused where it stands."""
    text = "a\x00b\x1b 👋🏽 สวัสดี"
    assert parse_chat(body(messages=[{"role": "user", "content": text}])).prompt == Conversation(
        (Message("user", text),)
    )
    lone = b'{"model": "m", "messages": [{"role": "user", "content": "\\ud800"}]}'
    assert refusal(parse_chat, lone).param == "messages[0].content"


def test_the_number_of_messages_is_bounded(refusal: Refusal) -> None:
    """4096 turns are read, one more is not."""
    parse_chat(body(messages=[HI] * 4096))
    assert bad(refusal, messages=[HI] * 4097) == (400, "messages")


def test_the_newer_limit_wins_and_the_loser_is_told() -> None:
    """``max_tokens`` beside a different ``max_completion_tokens`` has no effect, and says so."""
    spec = parse_chat(body(max_tokens=5, max_completion_tokens=3))
    assert (spec.max_tokens, spec.ignored) == (3, ("max_tokens",))
    assert parse_chat(body(max_tokens=5, max_completion_tokens=5)).ignored == ()


def test_members_without_effect_are_collected_not_refused() -> None:
    """Unknown ones and known ones that mean nothing here, in their order, nested ones with their path."""
    spec = parse_chat(
        body(foo=1, store=True, metadata={"a": "b"}, stream=True, stream_options={"include_usage": True, "x": 1})
    )
    assert spec.ignored == ("foo", "store", "metadata", "stream_options.x")
    assert spec.include_usage


def test_usage_is_streamed_only_when_asked_for() -> None:
    """Empty options, and a false one, ask for nothing."""
    for options in ({}, {"include_usage": False}, {"include_usage": None}):
        assert not parse_chat(body(stream=True, stream_options=options)).include_usage


def test_an_integer_may_be_written_with_a_point() -> None:
    """JSON has one kind of number; 5.0 is an integer of JSON Schema."""
    spec = parse_chat(body(max_tokens=5.0, seed=2.0))
    assert (spec.max_tokens, spec.seed) == (5, 2)
    assert isinstance(spec.max_tokens, int)


def test_top_k_minus_one_is_off() -> None:
    """The two ways to say it in the wild."""
    assert parse_chat(body(top_k=-1)).params == parse_chat(body(top_k=0)).params


def test_logprobs_without_alternatives_are_not_no_logprobs() -> None:
    """0 reports the chosen token, None reports nothing."""
    assert parse_chat(body(logprobs=True)).params.logprobs == 0
    assert parse_chat(body(logprobs=False)).params.logprobs is None


@pytest.mark.parametrize(("name", "value"), [("logit_bias", {"100": 1}), ("stop_token_ids", [3, 100])])
def test_tokens_outside_the_vocabulary_are_named(name: str, value: object) -> None:
    """Asked once the model is known."""
    spec = parse_chat(body(**{name: value}))
    spec.check_vocabulary(101)
    with pytest.raises(Exception, match="vocabulary ends at 99") as caught:
        spec.check_vocabulary(100)
    assert getattr(caught.value, "param", None) == name


def test_a_request_cannot_change_after_it_was_checked() -> None:
    """Specs are values."""
    with pytest.raises(AttributeError):
        parse_chat(body()).n = 2  # type: ignore[misc]
