"""Draws: seeds, greed, biases, and what they must not depend on."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from support import Serve, Server, text_of, write_bigram

from .asking import WAYS, Way

DRAWN = {"temperature": 1, "max_tokens": 16}


def test_samp_02_without_a_seed_answers_differ(serve: Serve, tmp_path: Path) -> None:
    """From request to request and from start to start."""
    batches = []
    for start in range(2):
        server = serve(write_bigram(tmp_path / str(start), np.zeros((256, 256))))
        batches.append([server.complete("x", **DRAWN).json()["choices"][0]["text"] for _ in range(5)])
    assert all(len(set(batch)) == 5 for batch in batches)
    assert not set(batches[0]) & set(batches[1])


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_samp_03_choices_differ_and_repeat_as_a_set(hot: Server, way: Way) -> None:
    """With one seed: four different answers, and the same four again."""
    runs = [[choice.text for choice in way.ask(hot, "x", n=4, seed=5, **DRAWN).choices] for _ in range(2)]
    assert len(set(runs[0])) == 4
    assert runs[0] == runs[1]


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_samp_04_seeds_are_whole_64_bit_integers(hot: Server, way: Way) -> None:
    """Each is a seed of its own, 0 and -1 too; none wraps around at 32 bits."""
    seeds = [0, 1, -1, 2**31 - 1, 2**32 - 1, 2**32, 2**63 - 1, -(2**63)]
    answers = {seed: way.ask(hot, "x", seed=seed, **DRAWN).only.text for seed in seeds}
    assert len(set(answers.values())) == len(seeds)
    assert all(way.ask(hot, "x", seed=seed, **DRAWN).only.text == text for seed, text in answers.items())
    assert way.ask(hot, "x", seed=1000.0, **DRAWN).told == way.ask(hot, "x", seed=1000, **DRAWN).told


@pytest.mark.parametrize("way", WAYS, ids=str)
@pytest.mark.parametrize("seed", [2**63, -(2**63) - 1, 10**30, 1.5, "7", True, [1]], ids=str)
def test_samp_04_other_seeds_are_refused(hot: Server, way: Way, seed: object) -> None:
    """A 400 that names the member."""
    response = way.post(hot, "x", seed=seed)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "seed"


def test_samp_05_greedy_answers_do_not_depend_on_company(llama: Server) -> None:
    """Sixteen prompts alone, all at once, and in another order: the same text and the same log probabilities."""
    prompts = [f"Prompt {number}: " + "lorem ipsum " * number for number in range(16)]

    def ask(prompt: str) -> object:
        choice = llama.complete(prompt, max_tokens=16, temperature=0, logprobs=1, ignore_eos=True).json()["choices"][0]
        return choice["text"], choice["logprobs"]["token_logprobs"]

    alone = [ask(prompt) for prompt in prompts]
    order = random.Random(7).sample(range(16), 16)
    with ThreadPoolExecutor(16) as pool:
        assert list(pool.map(ask, prompts)) == alone
        assert list(pool.map(ask, [prompts[place] for place in order])) == [alone[place] for place in order]


@pytest.mark.parametrize("prefix_cache", ["radix", "off"])
def test_samp_06_what_happened_in_between_does_not_matter(serve: Serve, tiny_models: Path, prefix_cache: str) -> None:
    """The same prompt and seed give the same answer after another conversation, with the prefix cache or without."""
    server = serve(tiny_models / "tiny-llama", engine={"prefix_cache": prefix_cache})
    fields = {"seed": 1, "temperature": 1, "max_tokens": 24, "stream": True, "ignore_eos": True}
    first, other, again = (
        text_of(server.chat(ask, **fields).text) for ask in ("Who are you?", "A cat?", "Who are you?")
    )
    assert first == again != other


@pytest.mark.parametrize("way", WAYS, ids=str)
@pytest.mark.parametrize(
    "bias",
    [
        {"191222000": -100},
        {"256": 1},
        {"-1": 5},
        {"abc": 5},
        {"": 5},
        {"5": 101},
        {"5": -101},
        {"5": "1"},
        {"5": None},
        [5],
    ],
    ids=str,
)
def test_samp_08_a_bias_for_no_token_is_refused(counting: Server, way: Way, bias: object) -> None:
    """Ids outside the vocabulary, keys that are no ids, values out of range: 400, and the engine never hears of it."""
    response = way.post(counting, "a", max_tokens=4, logit_bias=bias)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "logit_bias"


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_samp_08_refusals_beside_a_stream_do_not_disturb_it(serve: Serve, succ_dir: Path, way: Way) -> None:
    """The running stream's tokens are what they would be alone."""
    server = serve(succ_dir, step_delay=0.01)
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(server.chat, "!", stream=True, max_tokens=60, temperature=0)
        while not running.done():
            assert way.post(server, "a", max_tokens=4, logit_bias={"999999": 1}).status_code == 400
            assert way.post(server, "a", max_tokens=4, stop_token_ids=[256]).status_code == 400
    assert text_of(running.result().text) == "".join(map(chr, range(0x22, 0x22 + 60)))


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_samp_10_several_greedy_answers_are_alike(full: Server, way: Way) -> None:
    """At temperature 0 there is one answer, as often as it is asked for."""
    choices = way.ask(full, "a", n=3, temperature=0, max_tokens=4).choices
    assert [(choice.text, choice.finish) for choice in choices] == [("bcde", "length")] * 3


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_spc_23_tiny_numbers_are_greed(llama: Server, way: Way) -> None:
    """No overflow, no NaN: what all but rules out chance is the likeliest token."""
    fields = {"max_tokens": 8, "seed": 1, "ignore_eos": True}
    greedy = way.ask(llama, "The", temperature=0, **fields).only.text
    for tiny in (
        {"temperature": 1e-9},
        {"temperature": -0.0},
        {"temperature": 5e-324},
        {"top_p": 1e-9},
        {"top_p": 5e-324},
    ):
        assert way.ask(llama, "The", **fields, **tiny).only.text == greedy, tiny
    for one in ({"top_k": 1}, {"min_p": 1}):
        assert way.ask(llama, "The", temperature=2, **fields, **one).only.text == greedy, one


@pytest.mark.parametrize("way", WAYS, ids=str)
@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"logit_bias": {"122": 100}}, "zzzz"),
        ({"logit_bias": {"122": 100, "98": -100}, "frequency_penalty": 2, "max_tokens": 3}, "zzz"),
        ({"logit_bias": {"98": -100, "99": 40}}, "cdef"),
        ({"stop_token_ids": [100], "max_tokens": 9}, "bc"),
        ({"stop_token_ids": [98], "min_tokens": 1}, "\0\1\2\3"),
        ({"top_k": 1, "temperature": 2}, "bcde"),
    ],
    ids=["forced", "forced-twice", "shifted", "stop-token", "stop-token-too-soon", "top-k"],
)
def test_fields_beyond_openai_have_their_effect(
    counting: Server, way: Way, fields: dict[str, object], expected: str
) -> None:
    """Biases, stop tokens, the least number of tokens and top_k."""
    answer = way.ask(counting, "a", **{"max_tokens": 4, "temperature": 0, "seed": 0, **fields})
    assert answer.only.text == expected


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_the_end_of_text_can_be_ignored(silent: Server, way: Way) -> None:
    """With ``ignore_eos`` the answer goes on past it; with ``min_tokens`` it cannot come too soon."""
    assert way.ask(silent, "\x1f", max_tokens=4, temperature=0).told == (" ", "stop")
    assert way.ask(silent, "\x1f", max_tokens=4, temperature=0, ignore_eos=True).told == (' !"#', "length")
    kept = way.ask(silent, "\x1f", max_tokens=4, temperature=0, min_tokens=4)
    assert len(kept.only.text) == 4
    assert kept.only.finish == "length"


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_a_repetition_penalty_has_its_effect(smollm2: Server, way: Way) -> None:
    """It counts the prompt's words too; at 1 it is off."""
    ask = "one two three one two three one two three one two"
    plain, off, on = (
        way.ask(smollm2, ask, temperature=0, max_tokens=10, **fields).only.text.lower().count("two")
        for fields in ({}, {"repetition_penalty": 1}, {"repetition_penalty": 3})
    )
    assert plain == off > on


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_penalties_end_repetition(hot: Server, way: Way) -> None:
    """With a penalty no letter comes twice where all are equally likely; without one the first of equals comes for ever."""
    fields = {"temperature": 0, "max_tokens": 20}
    assert len(set(way.ask(hot, "x", **fields).only.text)) == 1
    for penalty in ({"presence_penalty": 1}, {"frequency_penalty": 0.5}):
        assert len(set(way.ask(hot, "x", **fields, **penalty).only.text)) == 20
