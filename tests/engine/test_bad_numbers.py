"""NaN in logits or in the KV cache, and sampling that raises: whose trouble it is, and whose it is not."""

from __future__ import annotations

from typing import Any

import pytest

from engine.bench import VOCAB, Bench
from tlserve.decode.params import SamplingParams
from tlserve.errors import BadLogits, SamplingFailed

PROMPT = [3, 1, 4, 1, 5, 9, 2, 6, 5]


def spoil(bench: Bench) -> None:
    """A step in which everything that is computed comes out as NaN."""
    bench.runner.spoils = True
    bench.step()
    bench.runner.spoils = False


def test_spoilt_kv_is_served_to_nobody() -> None:
    """The chunk that was NaN had been published; after its request has failed, the same prompt is computed afresh."""
    bench = Bench(prefill_chunk=8)
    bad = bench.add(PROMPT * 3)
    spoil(bench)
    assert bench.engine.stats().kv_blocks_used == 7
    bench.run()
    assert isinstance(bench.failed[bad].error, BadLogits)
    assert bench.engine.stats().kv_blocks_cached == 0
    again = bench.add(PROMPT * 3)
    bench.run()
    assert bench.started[again].cached_tokens == 0
    assert bench.answer(again) == bench.serial_answer(again)


def test_whoever_shares_a_spoilt_prefix_publishes_nothing_of_it() -> None:
    """A second request already holds the spoilt blocks when the first fails: it fails as well, the third is right."""
    bench = Bench(prefill_chunk=8)
    first = bench.add(PROMPT * 3)
    spoil(bench)
    second = bench.add([*PROMPT * 3, 7, 7, 7, 7], priority=-1)
    bench.run()
    assert list(bench.failed) == [first, second]
    assert bench.started[second].cached_tokens == 8
    third = bench.add([*PROMPT * 3, 7, 7, 7, 7])
    bench.run()
    assert bench.started[third].cached_tokens == 0
    assert bench.answer(third) == bench.serial_answer(third)


def test_other_prefixes_stay_cached() -> None:
    """What has nothing in common with the spoilt one is found as before."""
    bench = Bench(prefill_chunk=8)
    bench.add([7, *PROMPT])
    bench.run()
    bench.add(PROMPT * 3)
    spoil(bench)
    bench.run()
    other = bench.add([7, *PROMPT])
    bench.run()
    assert bench.started[other].cached_tokens == 8


def test_a_request_that_rules_everything_out_spoils_nothing() -> None:
    """It fails by its own parameters: the numbers of the model were good, and stay in the cache for others."""
    bench = Bench()
    hopeless = bench.add(PROMPT, SamplingParams(min_tokens=1), stop_ids=frozenset(range(VOCAB)))
    bench.run()
    assert "rules out all" in str(bench.failed[hopeless].error)
    again = bench.add(PROMPT)
    bench.run()
    assert bench.started[again].cached_tokens == 0  # its only step was never taken in
    hopeless = bench.add([*PROMPT, 5], SamplingParams(min_tokens=1), stop_ids=frozenset(range(VOCAB)))
    bench.run()
    again = bench.add([*PROMPT, 5])
    bench.run()
    assert bench.started[again].cached_tokens == 8


class Raising:
    """A sampler that works a few times, then raises."""

    def __init__(self, sampler: Any, error: Exception, *, after: int) -> None:
        self._sampler, self._error, self._left = sampler, error, after

    def next(self, row: Any) -> Any:
        if not self._left:
            raise self._error
        self._left -= 1
        return self._sampler.next(row)


@pytest.mark.parametrize("after", [0, 3])
@pytest.mark.parametrize("error", [ZeroDivisionError("on purpose"), MemoryError(), IndexError("index 31")])
def test_whatever_sampling_raises_fails_one_request_alone(error: Exception, after: int) -> None:
    """At its first token or later, with the error's own words; those beside it get the tokens that they get alone."""
    bench = Bench()
    good, bad, other = bench.add(PROMPT), bench.add(PROMPT[2:]), bench.add(PROMPT[1:])
    sampler: Any = Raising(bench.engine._samplers[bad], error, after=after)
    bench.engine._samplers[bad] = sampler
    bench.run()
    assert list(bench.failed) == [bad]
    failure = bench.failed[bad].error
    assert isinstance(failure, SamplingFailed)
    assert f"request {bad} failed: {type(error).__name__}" in str(failure)
    assert failure.__cause__ is error
    assert bench.answer(bad) == bench.serial_answer(bad)[:after]
    for request in (good, other):
        assert bench.answer(request) == bench.serial_answer(request)


def test_failures_of_sampling_do_not_add_up_to_a_broken_engine() -> None:
    """Only forward passes count towards the engine's end."""
    bench = Bench()
    for _ in range(5):
        bad = bench.add(PROMPT)
        bench.engine._samplers[bad] = Raising(None, ValueError("x"), after=0)  # type: ignore[assignment]
        bench.run()
    good = bench.add(PROMPT)
    bench.run()
    assert bench.answer(good) == bench.serial_answer(good)
