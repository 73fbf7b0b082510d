"""Request headers with a meaning of ours, and what may go back in a header."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tlserve.openai import headers
from tlserve.openai.errors import ApiError


@pytest.mark.parametrize(("value", "priority"), [(None, 0), ("0", 0), ("-100", -100), (" 100 ", 100), ("+7", 7)])
def test_a_priority_is_an_integer_from_minus_100_to_100(value: str | None, priority: int) -> None:
    """Without the header it is 0."""
    assert headers.parse_priority(value) == priority


@pytest.mark.parametrize("value", ["", "101", "-101", "1.5", "high", "١", "1_0", "9" * 5000, "0x10"])
def test_other_priorities_are_refused(value: str) -> None:
    """400, named after the header; never clamped."""
    with pytest.raises(ApiError) as caught:
        headers.parse_priority(value)
    assert (caught.value.status, caught.value.param) == (400, "X-TL-Priority")


@pytest.mark.parametrize(
    ("value", "limit_ms"), [(None, None), ("1", 1), (" 2500 ", 2500), ("3600000", 3_600_000), ("0000010", 10)]
)
def test_a_timeout_is_whole_milliseconds_up_to_an_hour(value: str | None, limit_ms: int | None) -> None:
    """Without the header there is none."""
    assert headers.parse_timeout(value) == limit_ms


@pytest.mark.parametrize("value", ["", "0", "-1", "3600001", "1.5", "1e3", "soon", "١", "9" * 5000])
def test_other_timeouts_are_refused(value: str) -> None:
    """400, named after the header."""
    with pytest.raises(ApiError) as caught:
        headers.parse_timeout(value)
    assert (caught.value.status, caught.value.param) == (400, "X-Request-Timeout-Ms")


@pytest.mark.parametrize("value", ["", "a b", "x" * 129, "café", "a\x00"])
def test_a_cache_salt_is_visible_ascii(value: str) -> None:
    """400 for anything else; the message does not repeat it, since it may be a secret."""
    assert headers.parse_cache_salt(None) == ""
    assert headers.parse_cache_salt("s-1") == "s-1"
    with pytest.raises(ApiError) as caught:
        headers.parse_cache_salt(value)
    assert (caught.value.status, caught.value.param) == (400, "X-TL-Cache-Salt")


@pytest.mark.parametrize(
    ("values", "key"),
    [
        (["Bearer abc"], "abc"),
        (["bearer   abc"], "abc"),
        ([" BEARER abc "], "abc"),
        ([], None),
        ([""], None),
        (["Bearer"], None),
        (["Bearer "], None),
        (["Bearer a b"], None),
        (["Basic abc"], None),
        (["abc"], None),
        (["Bearer abc", "Bearer abc"], None),
    ],
)
def test_a_bearer_key_is_one_word_given_once(values: list[str], key: str | None) -> None:
    """The scheme may be written in any case; anything ambiguous is no key."""
    assert headers.parse_bearer(values) == key


def test_a_kv_handle_is_not_found() -> None:
    """Nothing hands KV blocks over to this server."""
    headers.refuse_kv_handle(None)
    with pytest.raises(ApiError) as caught:
        headers.refuse_kv_handle("abc")
    assert (caught.value.status, caught.value.code) == (404, "kv_handle_not_found")


@pytest.mark.parametrize("value", ["a", "req-1_2.3:4/5", "x" * 128])
def test_a_sane_request_id_is_echoed(value: str) -> None:
    """So that one request can be followed through all logs."""
    assert headers.request_id(value) == value


@pytest.mark.parametrize("value", [None, "", "x" * 129, "a b", "a\r\nSet-Cookie: x=1", "café", "a\x00", "a\n"])
def test_any_other_request_id_is_replaced(value: str | None) -> None:
    """Never an extra header or log line; never twice the same."""
    new = headers.request_id(value)
    assert new != value
    assert new.isalnum()
    assert headers.request_id(value) != new


def test_ignored_members_are_told_in_their_order() -> None:
    """And nothing is told when there is nothing to tell."""
    assert headers.ignored_header(()) is None
    assert headers.ignored_header(["foo", "stream_options.x"]) == "foo, stream_options.x"


@given(st.lists(st.text(max_size=100), min_size=1, max_size=100))
def test_the_ignored_header_is_safe_for_any_names(names: list[str]) -> None:
    """Printable ASCII of a bounded length, whatever keys a client invents; every name is at least counted."""
    value = headers.ignored_header(names)
    assert value is not None
    assert value.isascii()
    assert value.isprintable()
    assert len(value) < 1200
    assert value


def test_names_that_are_not_plain_words_are_counted() -> None:
    """A header injection is one more."""
    assert headers.ignored_header(["a", "b\r\nX: y", "é"]) == "a, and 2 more"


@pytest.mark.parametrize(
    "value",
    [
        None,
        "",
        "application/json",
        "Application/JSON; charset=utf-8",
        "application/vnd.api+json",
        "application/x-www-form-urlencoded",
    ],
)
def test_json_in_any_spelling_is_taken(value: str | None) -> None:
    """Also from a plain ``curl -d``, which claims a form."""
    headers.check_content_type(value)


@pytest.mark.parametrize(
    "value", ["multipart/form-data; boundary=x", "application/xml", "application/jsonx", "image/png"]
)
def test_other_content_types_are_415(value: str) -> None:
    """The message names what to send."""
    with pytest.raises(ApiError, match="application/json") as caught:
        headers.check_content_type(value)
    assert caught.value.status == 415


def test_compressed_bodies_are_415() -> None:
    """A small body must not become a large one."""
    headers.check_content_encoding(None)
    headers.check_content_encoding("Identity")
    with pytest.raises(ApiError) as caught:
        headers.check_content_encoding("gzip")
    assert caught.value.status == 415
