"""Log probabilities: an entry for every token, with its own bytes, from the model's own distribution."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support import Serve, Server, shift_logits, write_bigram

from .asking import CHATS, COMPLETIONS, WAYS, Way, entries_of


@pytest.mark.parametrize("way", WAYS, ids=str)
@pytest.mark.parametrize("top", [0, 1, 5])
def test_logp_01_logp_03_one_entry_a_token(smollm2: Server, way: Way, top: int) -> None:
    """Also for no alternatives, which is not the same as no log probabilities; in the form of its endpoint and of no other."""
    answer = way.ask(smollm2, "Hi!", max_tokens=4, temperature=0, **way.logprobs(top=top))
    members = (
        {"content", "refusal"} if way.kind == "chat" else {"tokens", "token_logprobs", "top_logprobs", "text_offset"}
    )
    assert all(set(logprobs) == members for logprobs in answer.only.logprobs)
    entries = entries_of(way, answer.only)
    assert len(entries) == answer.usage["completion_tokens"] == 4
    for entry in entries:
        assert -50 < entry["logprob"] <= 0
        assert len(entry["top"]) == (max(top, 1) if way.kind == "completions" else top)


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_logp_without_being_asked_there_are_none(smollm2: Server, way: Way) -> None:
    """Neither by default nor with false or null."""
    absent: list[dict[str, object]] = [{}, {"logprobs": None}]
    if way.kind == "chat":
        absent.append({"logprobs": False})
    for fields in absent:
        assert way.ask(smollm2, "Hi!", max_tokens=2, **fields).only.logprobs == []


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_logp_streamed_and_plain_agree(smollm2: Server, way: Way) -> None:
    """Entry by entry, also where a stop string holds some back."""
    for extra in ({}, {"stop": ["ZZ", " a b"]}):
        fields = {"max_tokens": 12, "temperature": 0, **way.logprobs(top=2), **extra}
        other = Way(way.kind, not way.stream)
        assert entries_of(way, way.ask(smollm2, "Hi!", **fields).only) == entries_of(
            other, other.ask(smollm2, "Hi!", **fields).only
        )


@pytest.mark.parametrize("way", CHATS, ids=str)
@pytest.mark.parametrize("ask", ["Repeat exactly: 👋🏽 👋🏽 👋🏽", "Quote the word yes with curly quotes: “yes”"])
def test_logp_04_logp_07_bytes_are_those_of_the_text(smollm2: Server, way: Way, ask: str) -> None:
    """Together they are the answer; no vocabulary's spelling of spaces shows, and a part of a character is told as its bytes."""
    told = way.ask(smollm2, ask, max_tokens=24, temperature=0, **way.logprobs(top=5)).only
    entries = entries_of(way, told)
    assert b"".join(bytes(entry["bytes"]) for entry in entries).decode("utf-8", "replace") == told.text
    for entry in entries:
        assert not set("ĠĊĉ") & set(entry["token"])
        assert bytes(entry["bytes"]).decode("utf-8", "replace") == entry["token"] or not entry["bytes"]


@pytest.mark.parametrize("way", CHATS, ids=str)
def test_logp_04_a_part_of_a_character_has_its_own_bytes(waving: Server, way: Way) -> None:
    """Not those of the replacement character that stands for it."""
    entries = entries_of(way, way.ask(waving, "x", max_tokens=6, temperature=0, **way.logprobs(top=1)).only)
    assert [entry["bytes"] for entry in entries] == [[byte] for byte in "👋é".encode()]


@pytest.mark.parametrize("way", CHATS, ids=str)
def test_logp_05_alternatives_are_told_for_themselves(smollm2: Server, way: Way) -> None:
    """Best first; the chosen one's value is its entry's among them, and each has the bytes of its own text."""
    told = way.ask(
        smollm2, "Quote the word yes with “curly” quotes", max_tokens=16, temperature=0, **way.logprobs(top=5)
    )
    for logprobs in told.only.logprobs:
        for entry in logprobs["content"]:
            alternatives: list[dict[str, Any]] = entry["top_logprobs"]
            values = [alternative["logprob"] for alternative in alternatives]
            assert values == sorted(values, reverse=True)
            assert sum(map(math.exp, values)) <= 1.0001
            assert (entry["token"], entry["logprob"]) == (alternatives[0]["token"], values[0])
            for alternative in alternatives:
                assert bytes(alternative["bytes"]).decode("utf-8", "replace") == alternative["token"]


@pytest.mark.parametrize("way", WAYS, ids=str)
@pytest.mark.parametrize(
    "fields", [{"logit_bias": {"98": -100}}, {"top_p": 0.01, "temperature": 1}, {"logit_bias": {"122": 100}}], ids=str
)
def test_logp_06_values_are_finite_and_the_models_own(counting: Server, way: Way, fields: dict[str, object]) -> None:
    """Whatever bans, forces or cuts off tokens: the numbers are JSON, and those of the model before any of that."""
    asked = {"max_tokens": 3, "temperature": 0, **way.logprobs(top=5), **fields}
    (first, *_) = entries_of(way, way.ask(counting, "a", **asked).only)
    assert first["top"]["b"] == pytest.approx(0, abs=1e-6)
    assert all(math.isfinite(value) for value in first["top"].values())
    assert first["logprob"] == pytest.approx(0 if first["token"] == "b" else -50, abs=0.01)


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_logp_06_what_the_model_rules_out_is_finite(serve: Serve, tmp_path: Path, way: Way) -> None:
    """A token of no probability at all has the number that OpenAI gives it."""
    only = np.where(shift_logits(1) > 0, np.float32(0), np.float32(-np.inf))
    server = serve(write_bigram(tmp_path / "only", only))
    (first,) = entries_of(way, way.ask(server, "a", max_tokens=1, temperature=0, **way.logprobs(top=3)).only)
    assert first["top"]["b"] == 0
    assert set(first["top"].values()) == {0, -9999.0}


@pytest.mark.parametrize("stream", [False, True])
def test_prompts_are_not_scored(full: Server, *, stream: bool) -> None:
    """Echo together with log probabilities is refused clearly, not answered with half of what was asked for."""
    response = full.complete("Hello", echo=True, logprobs=1, max_tokens=3, stream=stream)
    assert response.status_code == 422
    error = response.json()["error"]
    assert (error["code"], error["param"]) == ("unsupported_parameter", "echo")


@pytest.mark.parametrize("way", COMPLETIONS, ids=str)
@pytest.mark.parametrize("prompt", ["Translate to French: 'Hello'", "été 👋", "a"])
def test_logp_09_offsets_begin_after_the_prompt(smollm2: Server, way: Way, prompt: str) -> None:
    """They count characters from the beginning of the prompt, streamed or not, and lead to each token's text."""
    told = way.ask(smollm2, prompt, max_tokens=10, temperature=0, **way.logprobs(top=0)).only
    entries = entries_of(way, told)
    assert entries[0]["offset"] == len(prompt)
    text = prompt + told.text
    for entry in entries:
        if "�" not in entry["token"]:
            assert text[entry["offset"] :].startswith(entry["token"])


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        ("/v1/chat/completions", {"top_logprobs": 2}, "top_logprobs"),
        ("/v1/chat/completions", {"logprobs": False, "top_logprobs": 2}, "top_logprobs"),
        ("/v1/chat/completions", {"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ("/v1/chat/completions", {"logprobs": True, "top_logprobs": -1}, "top_logprobs"),
        ("/v1/chat/completions", {"logprobs": 5}, "logprobs"),
        ("/v1/completions", {"logprobs": 6}, "logprobs"),
        ("/v1/completions", {"logprobs": -1}, "logprobs"),
        ("/v1/completions", {"logprobs": True}, "logprobs"),
    ],
)
def test_spc_09_how_many_alternatives(counting: Server, path: str, fields: dict[str, object], param: str) -> None:
    """Up to 20 in a chat that asks for log probabilities at all, up to 5 in a completion."""
    asked = {"prompt": "Hi"} if path == "/v1/completions" else {"messages": [{"role": "user", "content": "Hi"}]}
    response = counting.api.post(path, json={"model": "succ", "max_tokens": 1, **asked, **fields})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == param
