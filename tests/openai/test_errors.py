"""Every answer that is not a success: its status, its shape, its headers, and what it never repeats."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tlserve import errors as tree
from tlserve.openai import errors
from tlserve.openai.errors import ApiError
from tlserve.openai.excerpt import describe, excerpt

from .conftest import Validate

ANSWERS: list[tuple[ApiError, int, str | None]] = [
    (errors.invalid("x", param="n"), 400, "invalid_value"),
    (errors.unsupported("x", param="n"), 422, "unsupported_parameter"),
    (errors.model_not_found("nope", served=["smol"]), 404, "model_not_found"),
    (errors.kv_handle_not_found("h"), 404, "kv_handle_not_found"),
    (errors.context_length_exceeded(prompt_tokens=7, max_tokens=5, limit=10), 400, "context_length_exceeded"),
    (errors.template_refused("roles must alternate"), 400, "invalid_messages"),
    (errors.invalid_api_key(), 401, "invalid_api_key"),
    (errors.unknown_path("GET", "/nope"), 404, "unknown_url"),
    (errors.method_not_allowed("PUT", "/v1/models", allowed=["GET"]), 405, "method_not_allowed"),
    (errors.body_timeout(seconds=60), 408, "request_timeout"),
    (errors.refused_by_protocol(400, limit=9), 400, "malformed_request"),
    (errors.refused_by_protocol(408, limit=9), 408, "request_timeout"),
    (errors.refused_by_protocol(431, limit=9), 431, "headers_too_large"),
    (errors.refused_by_protocol(501, limit=9), 501, "unsupported_transfer_encoding"),
    (errors.refused_by_protocol(505, limit=9), 505, "unsupported_http_version"),
    (errors.body_too_large(limit=100), 413, "request_too_large"),
    (errors.unsupported_media_type("x"), 415, "unsupported_media_type"),
    (errors.rate_limit_exceeded(capacity=64), 429, "rate_limit_exceeded"),
    (errors.too_many_at_once(limit=2), 429, "rate_limit_exceeded"),
    (errors.too_many_bodies(limit=100), 429, "rate_limit_exceeded"),
    (errors.deadline_exceeded("x"), 504, "deadline_exceeded"),
    (errors.no_capacity(waited_ms=100), 503, "no_capacity"),
    (errors.draining(), 503, "draining"),
    (errors.loading("warming up"), 503, "loading"),
    (errors.internal(), 500, "internal_error"),
]


@pytest.mark.parametrize(("error", "status", "code"), ANSWERS, ids=[str(code) for _, _, code in ANSWERS])
def test_errors_use_the_openai_shape(error: ApiError, status: int, code: str | None, validate: Validate) -> None:
    """Status and code are those of the API, and the document is OpenAI's own."""
    document = error.document()
    validate("ErrorResponse", document)
    assert (error.status, error.code) == (status, code)
    assert set(document) == {"error"}
    assert str(error) == error.message


def test_the_type_says_whose_turn_it_is() -> None:
    """4xx, 501 and 505: change the request. 429 and other 5xx: try again."""
    for error, status, _ in ANSWERS:
        kind = (
            "rate_limit_error"
            if status == 429
            else "server_error"
            if status in (500, 503, 504)
            else "invalid_request_error"
        )
        assert error.kind == kind


def test_answers_that_pass_with_time_say_when_to_come_back() -> None:
    """429 and 503 carry Retry-After in whole seconds; others do not."""
    for error, status, _ in ANSWERS:
        assert ("Retry-After" in error.headers()) == (status in (429, 503))
    assert errors.rate_limit_exceeded(retry_after=7).headers() == {"Retry-After": "7"}


def test_a_wrong_method_learns_the_right_ones() -> None:
    """405 without Allow is no 405."""
    error = errors.method_not_allowed("PUT", "/v1/models", allowed={"HEAD", "GET"})
    assert error.headers() == {"Allow": "GET, HEAD"}


def test_a_missing_key_is_challenged() -> None:
    """401 names the scheme."""
    assert errors.invalid_api_key().headers() == {"WWW-Authenticate": "Bearer"}


def test_a_prompt_that_is_too_long_is_told_all_numbers() -> None:
    """What was sent, what was asked for, what fits."""
    message = errors.context_length_exceeded(prompt_tokens=700, max_tokens=50, limit=512).message
    for number in ("700", "50", "750", "512"):
        assert number in message


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (tree.QueueFull("full"), 429, "rate_limit_exceeded"),
        (tree.NeverFits("prompt of 9000 tokens"), 400, "context_length_exceeded"),
        (tree.TemplateRenderError("roles must alternate"), 400, "invalid_messages"),
        (tree.BadLogits("NaN in row 3"), 500, "internal_error"),
        (tree.DeadlineExceeded("not done within 5 ms"), 504, "deadline_exceeded"),
        (tree.EngineDead("the engine thread has ended"), 500, "internal_error"),
        (tree.ModelError("a file is missing"), 500, "internal_error"),
        (errors.draining(), 503, "draining"),
    ],
)
def test_errors_of_the_rooms_below_have_their_answers(error: tree.TlserveError, status: int, code: str) -> None:
    """The table at the top of the error tree holds."""
    answer = errors.from_error(error)
    assert (answer.status, answer.code) == (status, code)


def test_start_up_errors_are_not_shown_to_clients() -> None:
    """Paths of the machine stay in the log."""
    assert "secret" not in errors.from_error(tree.ModelError("/secret/model is missing")).message


LOUD: list[Callable[[str], ApiError]] = [
    errors.model_not_found,
    errors.kv_handle_not_found,
    lambda text: errors.unknown_path(text, text),
    lambda text: errors.method_not_allowed(text, text, allowed=["GET"]),
]


@pytest.mark.parametrize("constructor", LOUD)
def test_a_huge_or_hostile_value_is_quoted_short_and_clean(constructor: Callable[[str], ApiError]) -> None:
    """100 kB of control characters come back as less than 4 kB of printable text."""
    body = json.dumps(constructor("\x00\x1b[31m<script>\n" * 10_000).document())
    assert len(body) < 4096
    assert not any(escape in body for escape in ("\\u0000", "\\u001b", "\\n"))


@given(st.text(st.characters(), max_size=200))
def test_an_excerpt_is_one_short_printable_line(text: str) -> None:
    """Whatever was sent, also half surrogate pairs."""
    quoted = excerpt(text)
    assert len(quoted) <= 65
    assert quoted.isprintable()


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (None, "null"),
        (True, "true"),
        (5, "5"),
        (2.5, "2.5"),
        ("wizard", "'wizard'"),
        ([1, 2], "a list of 2"),
        ({}, "an object"),
        (10**1000, "an integer of 3322 bits"),
    ],
)
def test_values_are_named_as_json_names_them(value: object, words: str) -> None:
    """Python's words for them would puzzle clients."""
    assert describe(value) == words
