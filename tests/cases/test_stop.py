"""Stop strings: found in the text whatever its tokens are, never shown, and never in the way of other text."""

from __future__ import annotations

import time

import pytest

from support import Server

from .asking import STREAMS, WAYS, Way

ALPHABET = "Here is the English alphabet: ABC"


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_str_07_str_08_stop_02_stop_03_a_stop_of_several_tokens(smollm2: Server, way: Way) -> None:
    """The text ends right before the first occurrence, be it between tokens or inside of them, with log probabilities or without."""
    whole = way.ask(smollm2, ALPHABET, max_tokens=24, temperature=0).only.text
    for begin, end in ((6, 17), (7, 16), (11, 12), (len(whole) // 2, len(whole) // 2 + 9)):
        stop = whole[begin:end]
        expected = whole[: whole.index(stop)]
        for extra in ({}, way.logprobs(top=1)):
            answer = way.ask(smollm2, ALPHABET, max_tokens=24, temperature=0, stop=[stop], **extra)
            assert answer.told == (expected, "stop"), stop

    tokens = smollm2.api.post("/v1/tokenize", json={"model": smollm2.model, "text": whole[6:17]}).json()
    assert tokens["count"] >= 3


@pytest.mark.parametrize("way", STREAMS, ids=str)
def test_str_07_no_event_shows_a_part_of_the_stop(counting: Server, way: Way) -> None:
    """Not even its first character, though its tokens came one by one."""
    answer = way.ask(counting, "a", max_tokens=24, temperature=0, stop=["defgh"])
    assert answer.only.pieces == ["b", "c"]
    assert answer.only.finish == "stop"


@pytest.mark.parametrize("kind", ["chat", "completions"])
def test_str_08_choices_hold_back_for_themselves(hot: Server, kind: str) -> None:
    """Each of several choices ends at its own first stop, streamed as plainly."""
    fields = {"n": 3, "temperature": 1, "seed": 4, "max_tokens": 60}
    ways = [Way("chat" if kind == "chat" else "completions", stream) for stream in (False, True)]
    whole = ways[0].ask(hot, "x", **fields)
    stops = [choice.text[5 * number + 2 : 5 * number + 4] for number, choice in enumerate(whole.choices)]

    for way in ways:
        answer = way.ask(hot, "x", stop=stops, **fields)
        for choice, uncut in zip(answer.choices, whole.choices, strict=True):
            assert choice.text == uncut.text[: min(uncut.text.find(stop) % 1000 for stop in stops)]
            assert choice.finish == "stop"


@pytest.mark.parametrize("way", STREAMS, ids=str)
def test_str_10_stop_05_only_what_could_match_waits(smollm2: Server, way: Way) -> None:
    """A long stop string that never comes changes no chunk, adds no empty ones, and cuts no token in two."""
    fields = {"max_tokens": 24, "temperature": 0}
    plain = way.ask(smollm2, "List: a,b,c,d,e,f", **fields).only
    for stop in ("<<<<END-OF-ANSWER-MARKER-LONG>>>>", "zq,zq,zq"):
        held = way.ask(smollm2, "List: a,b,c,d,e,f", stop=[stop], **fields).only
        assert held.pieces == plain.pieces
        assert held.finish == plain.finish


@pytest.mark.parametrize("way", STREAMS, ids=str)
def test_str_10_exactly_the_beginning_of_a_stop_waits(counting: Server, way: Way) -> None:
    """Of text that turns out to be none, all is shown at once."""
    answer = way.ask(counting, "a", max_tokens=6, temperature=0, stop=["deX", "XXXX"])
    assert answer.only.pieces == ["b", "c", "def", "g"]


@pytest.mark.parametrize("way", WAYS, ids=str)
@pytest.mark.parametrize("stop", ["", [""], ["", "D"], ["D", ""]], ids=str)
def test_stop_01_an_empty_stop_is_refused(counting: Server, way: Way, stop: object) -> None:
    """It would match everywhere; it is a 400 that names the member."""
    response = way.post(counting, "A B C", max_tokens=6, stop=stop)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "stop"


@pytest.mark.parametrize("way", WAYS, ids=str)
@pytest.mark.parametrize("stop", [[], None], ids=str)
def test_stop_01_no_stop_is_no_stop(counting: Server, way: Way, stop: object) -> None:
    """An empty list and null change nothing."""
    assert way.ask(counting, "a", max_tokens=3, temperature=0, stop=stop).told == ("bcd", "length")


@pytest.mark.parametrize("stream", [False, True])
def test_stop_04_the_text_of_the_end_marker_as_a_stop(smollm2: Server, *, stream: bool) -> None:
    """The model's own end of a turn ends it; its marker is in no text, and the usage is that of a run without the stop."""
    way = Way("chat", stream)
    ask = "What is the capital of France?"
    fields = {"max_tokens": 100, "temperature": 0}
    plain, stopped = way.ask(smollm2, ask, **fields), way.ask(smollm2, ask, stop=["<|im_end|>"], **fields)
    assert stopped.told == plain.told
    assert stopped.only.finish == "stop"
    assert "<|" not in stopped.only.text
    completion = [answer.usage["completion_tokens"] for answer in (plain, stopped)]
    assert completion[0] == completion[1]


@pytest.mark.parametrize("way", WAYS, ids=str)
@pytest.mark.parametrize(
    "stop",
    [list("abcde"), "x" * 1025, ["x" * 100_000], ["x"] * 10_000, 5, ["a", 5], {"a": "b"}, [["a"]]],
    ids=["five", "1025", "100kB", "10k", "number", "number-in-list", "object", "nested"],
)
def test_spc_06_stops_are_bounded(counting: Server, way: Way, stop: object) -> None:
    """Up to four strings of up to 1024 characters; more is a 400 at once."""
    started = time.monotonic()
    response = way.post(counting, "a", max_tokens=2, stop=stop)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "stop"
    assert time.monotonic() - started < 1


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_spc_06_four_long_stops_are_served(counting: Server, way: Way) -> None:
    """At the limits a match is still a match."""
    stops = ["x" * 1024, "y" * 1024, "z" * 1024, "cd"]
    assert way.ask(counting, "a", max_tokens=9, temperature=0, stop=stops).told == ("b", "stop")


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_spc_14_only_what_is_generated_is_searched(counting: Server, way: Way) -> None:
    """A stop that stands in the prompt, or begins there, does not end the answer."""
    for stop in ("abc", "c", "bcd", "cde"):
        assert way.ask(counting, "abc", max_tokens=3, temperature=0, stop=[stop]).told == ("def", "length")
    assert way.ask(counting, "abcdef", max_tokens=3, temperature=0, stop=["h"]).told == ("g", "stop")


def test_spc_14_an_echo_is_not_searched(full: Server) -> None:
    """The prompt comes back whole, stops and all."""
    for stream in (False, True):
        answer = Way("completions", stream).ask(
            full, "one two", echo=True, max_tokens=3, temperature=0, stop=["two", "q"]
        )
        assert answer.told == ("one twop", "stop")


@pytest.mark.parametrize("way", WAYS, ids=str)
@pytest.mark.parametrize(
    ("stop", "told"),
    [
        ("é", ("👋", "stop")),
        ("e\u0301", ("👋é 👋é ", "length")),
        ("\u0301", ("👋é 👋é ", "length")),
        ("👋é 👋", ("", "stop")),
        (" 👋", ("👋é", "stop")),
    ],
    ids=["composed", "decomposed", "accent", "across", "space-first"],
)
def test_spc_15_stops_are_compared_by_code_point(waving: Server, way: Way, stop: str, told: tuple[str, str]) -> None:
    """No normalisation, and no character is cut in two."""
    assert way.ask(waving, "x", max_tokens=14, temperature=0, stop=[stop]).told == told


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_spc_25_the_order_of_stops_does_not_matter(counting: Server, way: Way) -> None:
    """The match that begins first wins, whatever its place in the list, and one stop may be the beginning of another."""
    for stops in (["gh", "de"], ["de", "gh"], ["def", "de"], ["de", "def"], ["e", "cde", "de"]):
        expected = "bcdefghi"[: min("bcdefghi".index(stop) for stop in stops)]
        answer = way.ask(counting, "a", max_tokens=12, temperature=0, stop=stops)
        assert answer.told == (expected, "stop")
