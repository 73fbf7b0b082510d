"""POST /v1/completions, on the way in."""

from __future__ import annotations

import json

import pytest

from tlserve.openai.requests import Prompts, parse_completion

from .conftest import Refusal


def body(prompt: object = "Hi", **members: object) -> bytes:
    """A minimal completions request with ``members`` added."""
    return json.dumps({"model": "m", "prompt": prompt, **members}).encode()


def test_sixteen_tokens_unless_told_otherwise() -> None:
    """The API's old default."""
    assert parse_completion(body()).max_tokens == 16
    assert parse_completion(body(max_tokens=None)).max_tokens == 16
    assert parse_completion(body(max_tokens=3)).max_tokens == 3


@pytest.mark.parametrize(
    ("prompt", "items"),
    [
        ("Hi", ("Hi",)),
        ("", ("",)),
        (["a", "b"], ("a", "b")),
        ([1, 2], ((1, 2),)),
        ([1.0], ((1,),)),
        ([[1], [2, 3]], ((1,), (2, 3))),
    ],
)
def test_a_prompt_comes_in_four_forms(prompt: object, items: tuple[object, ...]) -> None:
    """A text, texts, a list of token ids, lists of them: one prompt for each."""
    assert parse_completion(body(prompt)).prompt == Prompts(items)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "prompt",
    [
        None,
        [],
        [[]],
        [[1], []],
        [1.5, 2],
        [True, False],
        [-1, 5],
        ["a", 1],
        [1, "a"],
        [["a"]],
        [[1], "a"],
        {},
        5,
        ["a", None],
    ],
)
def test_other_prompts_are_refused(prompt: object, refusal: Refusal) -> None:
    """Empty lists, mixtures and what is no token id: 400, param prompt."""
    error = refusal(parse_completion, body(prompt))
    assert (error.status, error.param) == (400, "prompt")


def test_the_item_that_is_wrong_is_counted_in_the_message(refusal: Refusal) -> None:
    """Among hundreds, people want to know which."""
    assert "item 2" in refusal(parse_completion, body([1, 2, "x"])).message
    assert "item 1 item 0" in refusal(parse_completion, body([[1], [-4]])).message


def test_token_ids_are_held_against_the_vocabulary() -> None:
    """Once the model is known; the largest id that it has is the last that passes."""
    spec = parse_completion(body([[1, 2], [3, 99]]))
    spec.check_vocabulary(100)
    with pytest.raises(Exception, match="token 99; the model's vocabulary ends at 98") as caught:
        spec.check_vocabulary(99)
    assert getattr(caught.value, "param", None) == "prompt"


@pytest.mark.parametrize(
    ("name", "value", "status"),
    [
        ("logprobs", 6, 400),
        ("logprobs", -1, 400),
        ("logprobs", True, 400),
        ("max_tokens", 0, 400),
        ("echo", "yes", 400),
        ("best_of", 0, 400),
        ("n", 0, 400),
        ("n", 2, 422),
        ("echo", True, 422),
        ("best_of", 2, 422),
        ("suffix", "x", 422),
    ],
)
def test_a_member_that_cannot_be_used_is_named(name: str, value: object, status: int, refusal: Refusal) -> None:
    """400 for what is wrong, 422 for what is not served."""
    error = refusal(parse_completion, body(**{name: value}))
    assert (error.status, error.param) == (status, name)


def test_neutral_values_pass_in_every_tier() -> None:
    """They ask for what is done anyway."""
    spec = parse_completion(body(echo=False, best_of=1, suffix="", n=1, logprobs=0))
    assert spec.params.logprobs == 0
    assert not spec.echo


def test_the_full_tier_serves_echo_and_several_answers() -> None:
    """Each prompt gets ``n`` choices."""
    spec = parse_completion(body(["a", "b"], n=3, echo=True, best_of=3), tier="full")
    assert (spec.n, spec.echo) == (3, True)


def test_the_full_tier_does_not_score_prompts(refusal: Refusal) -> None:
    """Echo with log probabilities would need those of the prompt."""
    for logprobs in (0, 1):
        error = refusal(parse_completion, body(echo=True, logprobs=logprobs), tier="full")
        assert (error.status, error.param) == (422, "echo")


def test_the_number_of_choices_is_bounded(refusal: Refusal) -> None:
    """Prompts times n, not each alone."""
    parse_completion(body(["a"] * 128))
    assert refusal(parse_completion, body(["a"] * 129)).param == "prompt"
    parse_completion(body(["a"] * 64, n=2), tier="full")
    error = refusal(parse_completion, body(["a"] * 65, n=2), tier="full")
    assert (error.status, error.param) == (400, "n")
