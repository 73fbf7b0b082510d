"""Chooses the tokens of one request, one row of logits after the other.

Leaves to others where rows come from and when a request is finished. The order of work on a row: report probabilities
from the model's own distribution; then penalties, logit_bias, and the stop ids that min_tokens forbids; then
temperature, top_k, min_p, top_p; then the draw.
Invariant: token number n of a request is a function of its row, its parameters, its seed and its tokens before n.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
from attrs import frozen
from numpy.typing import NDArray

from tlserve.decode.distribution import best, draw, log_normaliser
from tlserve.decode.params import SamplingParams
from tlserve.decode.penalties import Penalties
from tlserve.decode.randomness import stream
from tlserve.errors import BadLogits

GREEDY_BELOW = 1e-5
"""A temperature under this is 0: dividing float32 logits by less overflows."""


@frozen
class Sampled:
    """A chosen token.

    Attributes:
        token: its id.
        logprob: its natural log-probability in the model's own distribution, before any parameter changed it; -inf for
            a token that the model excludes and a bias brought back.
        top: the likeliest tokens of that distribution with theirs, best first, as many as ``params.logprobs`` asks.

    """

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


class RequestSampler:
    """The tokens of one request as a sequence: each call of ``next`` chooses the one after the last.

    Nothing is ever taken back. A row is only shown when all tokens before it are final, so preemption and speculation
    need no rollback here. Engine thread only.

    Args:
        params: the request's parameters.
        prompt: its prompt, for the repetition penalty.
        seed: any integer; counts modulo 2**64.
        stop_ids: the ids that ``params.min_tokens`` forbids at first.

    """

    def __init__(self, params: SamplingParams, *, prompt: Iterable[int], seed: int, stop_ids: Iterable[int]) -> None:
        self._params = params
        self._seed = seed
        self._is_greedy = params.temperature < GREEDY_BELOW
        self._penalties = Penalties(params, prompt)
        self._bias_ids = np.array(list(params.logit_bias), dtype=np.intp)
        self._biases = np.array(list(params.logit_bias.values()), dtype=np.float32)
        self._stop_ids = np.array(sorted(stop_ids), dtype=np.intp)
        self._position = 0

    def next(self, row: NDArray[np.float32]) -> Sampled:
        """Choose the next token from its logits (vocab,), which are left as they are.

        Raises:
            BadLogits: the row has a NaN, or no token is left to choose.

        """
        row, likeliest = _checked(row, "the model")
        peak = float(row[likeliest])
        normaliser = log_normaliser(row, peak)
        if self._changes_logits:
            token = self._choose(*_checked(self._changed(row), "the model with the request's penalties and biases"))
        else:
            token = self._choose(row, likeliest)
        self._penalties.count(token)
        self._position += 1
        return Sampled(token, float(row[token]) - normaliser, self._alternatives(row, normaliser))

    @property
    def _forbids_stop(self) -> bool:
        return self._position < self._params.min_tokens and len(self._stop_ids) > 0

    @property
    def _changes_logits(self) -> bool:
        return self._penalties.is_active or len(self._bias_ids) > 0 or self._forbids_stop

    def _changed(self, row: NDArray[np.float32]) -> NDArray[np.float32]:
        """A copy of the row with penalties, biases and forbidden stop ids."""
        row = row.copy()
        self._penalties.apply(row)
        row[self._bias_ids] += self._biases
        if self._forbids_stop:
            row[self._stop_ids] = -np.inf
        return row

    def _choose(self, row: NDArray[np.float32], likeliest: int) -> int:
        if self._is_greedy:
            return likeliest
        return draw(row, float(row[likeliest]), self._params, stream(self._seed, self._position))

    def _alternatives(self, row: NDArray[np.float32], normaliser: float) -> tuple[tuple[int, float], ...]:
        if not self._params.logprobs:
            return ()
        ids = best(row, self._params.logprobs).tolist()
        return tuple((token, float(row[token]) - normaliser) for token in ids)


def warm_sampler(vocab_size: int) -> None:
    """Draw once with everything on, so that no request waits for what is compiled, or loaded, at its first use."""
    params = SamplingParams(top_k=2, top_p=0.9, min_p=0.1, logprobs=2)
    RequestSampler(params, prompt=(), seed=0, stop_ids=()).next(np.zeros(vocab_size, np.float32))


def _checked(row: NDArray[np.float32], source: str) -> tuple[NDArray[np.float32], int]:
    """The row with a finite peak, and the id of that peak (the lowest of equals).

    Tokens at +inf share all probability, as the limit of ever larger logits: they become 0 and the others -inf.

    Raises:
        BadLogits: there is a NaN, or everything is -inf.

    """
    likeliest = int(row.argmax())  # a NaN counts as the maximum
    peak = float(row[likeliest])
    if math.isnan(peak):
        raise BadLogits(f"{source} gave NaN for token {likeliest}; the request cannot go on")
    if peak == -math.inf:
        raise BadLogits(f"{source} rules out all {len(row)} tokens; the request cannot go on")
    if peak == math.inf:
        row = np.where(row == np.inf, np.float32(0.0), np.float32(-np.inf))
    return row, likeliest
