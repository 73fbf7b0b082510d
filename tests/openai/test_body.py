"""Bytes to one JSON object: what is strict about it, and where an error says it is."""

from __future__ import annotations

import json
import time

import pytest

from tlserve.openai.body import MAX_DEPTH, decode_object
from tlserve.openai.errors import ApiError


def nested(depth: int) -> bytes:
    """An object with lists inside each other, ``depth`` levels with the object itself."""
    return b'{"a": ' + b"[" * (depth - 1) + b"]" * (depth - 1) + b"}"


def test_a_plain_object_is_read_as_python_reads_it() -> None:
    """Every kind of JSON value arrives unchanged."""
    document = {"text": "né\u0000", "list": [1, 2.5, None, True], "object": {"a": {}}}
    assert decode_object(json.dumps(document).encode()) == document


def test_a_byte_order_mark_is_skipped() -> None:
    """Editors on Windows put one before the text."""
    assert decode_object(b'\xef\xbb\xbf{"a": 1}') == {"a": 1}


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b'"x"',
        b"7",
        b"{'a': 1}",
        b'{"a": 1} x',
        b'{"a": 01}',
        b'{"a": "\n"}',
        b'{"a": "\\x"}',
    ],
)
def test_what_is_no_json_object_is_refused(body: bytes) -> None:
    """Broken JSON and JSON that is no object are the client's fault, never ours."""
    with pytest.raises(ApiError) as caught:
        decode_object(body)
    assert (caught.value.status, caught.value.code) == (400, "invalid_json")


@pytest.mark.parametrize("number", [b"NaN", b"Infinity", b"-Infinity", b"1e400", b"-1e400", b"9" * 5000])
def test_numbers_that_json_or_floats_do_not_have_are_refused(number: bytes) -> None:
    """No infinity reaches a validator, by whatever spelling."""
    with pytest.raises(ApiError) as caught:
        decode_object(b'{"a": ' + number + b"}")
    assert (caught.value.status, caught.value.code) == (400, "invalid_json")


def test_an_error_says_where_the_text_stops_being_json() -> None:
    """Line and column, for people who write bodies by hand."""
    with pytest.raises(ApiError, match="line 2, column 6"):
        decode_object(b'{"a": 1,\n "b" 2}')


@pytest.mark.parametrize("body", [b'{"a": "\xc4\xe3"}', '{"a": 1}'.encode("utf-16"), '{"a": 1}'.encode("utf-16-le")])
def test_other_encodings_are_refused_without_an_echo(body: bytes) -> None:
    """The message tells that the body is wrong and repeats none of its bytes."""
    with pytest.raises(ApiError) as caught:
        decode_object(body)
    assert caught.value.status == 400
    assert caught.value.message.isascii()


def test_a_key_that_appears_twice_is_refused_at_any_level() -> None:
    """A proxy that keeps the first and a server that keeps the last would disagree on what was asked."""
    for body in (b'{"max_tokens": 1, "max_tokens": 9}', b'{"a": [{"b": 1, "c": 2, "b": 3}]}'):
        with pytest.raises(ApiError, match="appears twice"):
            decode_object(body)


def test_nesting_is_bounded_exactly() -> None:
    """The deepest body that is allowed passes, one level more does not."""
    assert decode_object(nested(MAX_DEPTH))
    with pytest.raises(ApiError, match="nested deeper"):
        decode_object(nested(MAX_DEPTH + 1))


def test_objects_and_lists_count_alike_towards_the_depth() -> None:
    """Alternating them does not buy more levels."""
    levels = MAX_DEPTH // 2 + 1
    body = b'{"a":[' * levels + b"]}" * levels
    with pytest.raises(ApiError, match="nested deeper"):
        decode_object(body)


def test_brackets_inside_strings_are_text() -> None:
    """A prompt full of brackets is not nesting, however its quotes are escaped."""
    text = '["' * 200 + "\\" + '"{' * 200
    assert decode_object(json.dumps({"prompt": text}).encode()) == {"prompt": text}


def test_many_short_lists_side_by_side_are_not_deep() -> None:
    """A batch of token lists passes."""
    prompts = [[1, 2]] * 500
    assert decode_object(json.dumps({"prompt": prompts}).encode()) == {"prompt": prompts}


@pytest.mark.parametrize("filler", [b"[", b'{"a":', b'"', b'\\"', b'"\\', b"[]"])
def test_hostile_bodies_are_refused_in_time_proportional_to_their_size(filler: bytes) -> None:
    """A megabyte of one pattern takes no quadratic time and no stack."""
    start = time.perf_counter()
    with pytest.raises(ApiError):
        decode_object(b'{"a": "' + filler * (1_000_000 // len(filler)))
    with pytest.raises(ApiError):
        decode_object(b'{"a": ' + filler * (1_000_000 // len(filler)))
    assert time.perf_counter() - start < 2
