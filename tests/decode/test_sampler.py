from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tlserve.decode.params import SamplingParams
from tlserve.decode.sampler import RequestSampler
from tlserve.errors import BadLogits


def row(*values: float) -> NDArray[np.float32]:
    return np.array(values, dtype=np.float32)


def sampler(
    prompt: Sequence[int] = (), *, seed: int = 0, stop_ids: Sequence[int] = (), **params: Any
) -> RequestSampler:
    return RequestSampler(SamplingParams(**params), prompt=prompt, seed=seed, stop_ids=stop_ids)


def tokens(chooser: RequestSampler, logits: NDArray[np.float32], count: int) -> list[int]:
    return [chooser.next(logits).token for _ in range(count)]


@pytest.mark.parametrize("temperature", [0.0, 1e-6])
def test_greedy_takes_the_likeliest_and_the_lowest_of_equals(temperature: float) -> None:
    """Temperature 0, or as good as 0, needs no chance; a tie goes to the lower id."""
    assert sampler(temperature=temperature).next(row(1, 3, 2, 3)).token == 1


def test_logprobs_are_of_the_models_own_distribution() -> None:
    """Whatever the parameters do to the choice, the reported numbers are log_softmax of the raw logits."""
    logits = row(1.0, 2.0, 0.5, -1.0)
    expected = logits.astype(np.float64) - math.log(math.fsum(np.exp(logits.astype(np.float64))))
    chosen = sampler([1], temperature=0, logit_bias={3: 50.0}, repetition_penalty=2.0, logprobs=3).next(logits)
    assert chosen.token == 3
    assert chosen.logprob == pytest.approx(expected[3], abs=1e-6)
    assert [token for token, _ in chosen.top] == [1, 0, 2]
    assert [logprob for _, logprob in chosen.top] == pytest.approx([expected[1], expected[0], expected[2]], abs=1e-6)


def test_the_chosen_tokens_logprob_equals_its_entry_among_the_alternatives() -> None:
    """To the last bit."""
    logits = np.random.default_rng(0).normal(size=5000).astype(np.float32)
    chosen = sampler(temperature=0, logprobs=20).next(logits)
    assert dict(chosen.top)[chosen.token] == chosen.logprob
    assert len(chosen.top) == 20


@pytest.mark.parametrize("asked", [None, 0])
def test_no_alternatives_unless_asked(asked: int | None) -> None:
    """The chosen token's logprob is always known; a list costs extra."""
    chosen = sampler(temperature=0, logprobs=asked).next(row(0, 0))
    assert chosen.logprob == pytest.approx(-math.log(2))
    assert chosen.top == ()


def test_presence_and_frequency_count_the_output_alone() -> None:
    """A prompt token is not penalised; an output token is, once for presence and each time for frequency."""
    logits = row(2.0, 1.0, 0.0)
    assert tokens(sampler([0, 0, 0], temperature=0, presence_penalty=1.5), logits, 4) == [0, 1, 0, 0]
    assert tokens(sampler([0, 0, 0], temperature=0, frequency_penalty=0.6), logits, 5) == [0, 0, 1, 0, 1]


def test_repetition_penalty_counts_prompt_and_output() -> None:
    """As Hugging Face has it: positive logits are divided, negative ones multiplied, whether read or written."""
    assert sampler([0], temperature=0, repetition_penalty=3.0).next(row(2.0, 1.0)).token == 1
    assert sampler([0], temperature=0, repetition_penalty=3.0).next(row(-1.0, -2.0)).token == 1
    assert tokens(sampler([], temperature=0, repetition_penalty=3.0), row(2.0, 1.0, 0.9), 3) == [0, 1, 2]


def test_penalties_come_before_the_bias() -> None:
    """A bias is what the client says, undiminished by a penalty."""
    assert sampler([0], temperature=0, repetition_penalty=2.0, logit_bias={0: 1.5}).next(row(2.0, 2.0)).token == 0


def test_logit_bias_bans_and_forces() -> None:
    """-100 and 100 do what they are used for."""
    logits = row(5.0, 4.0, -5.0)
    assert sampler(temperature=0, logit_bias={0: -100.0}).next(logits).token == 1
    assert tokens(sampler(temperature=2.0, logit_bias={2: 100.0}), logits, 20) == [2] * 20


def test_min_tokens_forbids_stop_ids_until_then() -> None:
    """The stop id, though likeliest, is first chosen as the token after min_tokens."""
    assert tokens(sampler(temperature=0, min_tokens=2, stop_ids=[0]), row(9.0, 1.0), 4) == [1, 1, 0, 0]


def test_a_draw_depends_on_seed_and_position_only() -> None:
    """Two requests with one seed agree, another seed differs, and a token does not depend on how it was reached."""
    logits = np.zeros(1000, dtype=np.float32)
    first = tokens(sampler(seed=-5), logits, 30)
    assert tokens(sampler(seed=-5), logits, 30) == first
    assert tokens(sampler(seed=6), logits, 30) != first
    detour = sampler(seed=-5)
    tokens(detour, row(*np.eye(1000, dtype=np.float32)[7] * 99), 3)
    assert tokens(detour, logits, 27) == first[3:]


def test_rows_are_left_as_they_are() -> None:
    """Logits belong to the runner; penalties and biases work on a copy."""
    logits = row(1.0, 2.0)
    logits.flags.writeable = False
    chooser = sampler([0, 1], repetition_penalty=1.5, frequency_penalty=1.0, logit_bias={1: -3.0}, top_p=0.9, top_k=1)
    assert len(tokens(chooser, logits, 5)) == 5


@pytest.mark.parametrize("params", [{"temperature": 0}, {}, {"top_p": 0.5, "logprobs": 2}, {"frequency_penalty": 1.0}])
def test_nan_fails_the_request(params: dict[str, Any]) -> None:
    """A NaN anywhere in the row is an error that names the token, never a token of the answer."""
    with pytest.raises(BadLogits, match="NaN for token 2"):
        sampler(**params).next(row(1.0, 2.0, math.nan, math.inf))


def test_infinite_logits_share_all_probability() -> None:
    """+inf is certainty: such tokens split the distribution evenly, and nothing else is drawn."""
    logits = row(math.inf, 5.0, math.inf)
    greedy = sampler(temperature=0, logprobs=3).next(logits)
    assert greedy.token == 0
    assert greedy.logprob == pytest.approx(-math.log(2))
    assert greedy.top[2] == (1, -math.inf)
    assert set(tokens(sampler(), logits, 40)) == {0, 2}


def test_nothing_left_to_choose_fails_the_request() -> None:
    """A model, or a request, that rules out every token gets an error."""
    with pytest.raises(BadLogits, match="rules out all 2 tokens"):
        sampler().next(row(-math.inf, -math.inf))
    with pytest.raises(BadLogits, match="rules out all 2 tokens"):
        sampler(min_tokens=1, stop_ids=[0, 1]).next(row(1.0, 2.0))


def test_an_excluded_token_that_a_bias_cannot_bring_back() -> None:
    """-inf plus anything finite stays -inf."""
    assert sampler(temperature=0, logit_bias={0: 100.0}).next(row(-math.inf, -50.0)).token == 1
