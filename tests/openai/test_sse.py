"""The three frames of a stream, byte for byte."""

from __future__ import annotations

from tlserve.openai import sse


def test_an_event_is_one_data_line_and_a_blank_one() -> None:
    """One newline would merge all events into one."""
    assert sse.event('{"a":1}') == 'data: {"a":1}\n\n'


def test_the_sentinel_and_the_comment() -> None:
    """[DONE] is data, a ping is a comment that no client sees."""
    assert sse.event("[DONE]") == sse.DONE
    assert sse.PING == ": ping\n\n"


def test_nobody_may_hold_events_back() -> None:
    """Caches and buffering proxies are told."""
    assert sse.HEADERS["Cache-Control"] == "no-cache"
    assert sse.HEADERS["X-Accel-Buffering"] == "no"
    assert sse.CONTENT_TYPE.startswith("text/event-stream")
