from __future__ import annotations

from typing import Any

import pytest
from attrs import evolve
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from engine.bench import SPECULATIVE, VOCAB, Bench, FakeRunner
from tlserve.decode.params import SamplingParams
from tlserve.engine.messages import GenRequest
from tlserve.errors import BadLogits, DuplicateRequest, SamplingFailed, StepFailed

POISON = VOCAB - 1

engine_settings = st.fixed_dictionaries(
    {
        "prefix_cache": st.sampled_from(["off", "radix"]),
        "prefill_chunk": st.sampled_from([1, 3, 8, 512]),
        "max_batch": st.sampled_from([1, 2, 5]),
        "max_batch_tokens": st.sampled_from([2, 6, 20, 512]),
        "speculative": st.sampled_from([None, SPECULATIVE]),
    }
)
pools = st.sampled_from([(30, 1), (16, 2), (9, 4), (64, 4)])  # (blocks, tokens per block)

sampling = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 0.8]),
    top_p=st.sampled_from([0.9, 1.0]),
    top_k=st.sampled_from([0, 8]),
    frequency_penalty=st.sampled_from([0.0, 0.5]),
    repetition_penalty=st.sampled_from([1.0, 1.3]),
    logit_bias=st.sampled_from([{}, dict.fromkeys(range(5), 3.0)]),
    min_tokens=st.sampled_from([0, 3]),
    logprobs=st.sampled_from([None, 2]),
)

prompts = st.lists(st.sampled_from([0, 1, 2, 3, 4, 0, 1, 2, 3, 4, POISON]), min_size=1, max_size=18)
circles = st.builds(
    lambda start, length: [(start + n) % 5 for n in range(length)], st.integers(0, 4), st.integers(1, 18)
)

generations = st.builds(
    GenRequest,
    prompt=(prompts | circles).map(tuple),
    params=sampling,
    seed=st.integers(-3, 3),
    max_tokens=st.integers(1, 12),
    stop_ids=st.sampled_from([frozenset(), frozenset({3}), frozenset({7, 11})]),
    priority=st.sampled_from([0, 0, 1, -1]),
    cache_salt=st.sampled_from(["", "", "b"]),
    tenant=st.sampled_from(["", "", "b", "c"]),
    weight=st.sampled_from([1, 1, 5]),
)


class BrokenSampler:
    """Raises what nobody has foreseen."""

    def next(self, _row: object) -> object:
        raise ZeroDivisionError("on purpose")


class EngineMachine(RuleBasedStateMachine):
    """Requests come, go and fail in any order over a pool that is too small for all of them.

    The bench checks the engine's integrity after every step and every abort, and that nothing follows an end.
    """

    @initialize(config=engine_settings, pool=pools)
    def begin(self, config: dict[str, Any], pool: tuple[int, int]) -> None:
        num_blocks, block_size = pool
        self.bench = Bench(FakeRunner(num_blocks=num_blocks, block_size=block_size), **config)
        self.bench.runner.poison = {POISON}

    @rule(request=generations)
    def submit(self, request: GenRequest) -> None:
        self.bench.submit(request)

    @rule(request=generations, earlier=st.randoms(use_true_random=False))
    def follow_up(self, request: GenRequest, earlier: Any) -> None:
        """A prompt that goes on where another request has got to."""
        if self.bench.requests:
            name = earlier.choice(sorted(self.bench.requests))
            known = [*self.bench.requests[name].prompt, *(out.token for out in self.bench.outputs[name])]
            self.bench.submit(evolve(request, prompt=(*known[:15], *request.prompt[:3])))

    @rule(count=st.integers(1, 4))
    def step(self, count: int) -> None:
        for _ in range(count):
            self.bench.step()

    @rule(index=st.integers(0, 99))
    def abort(self, index: int) -> None:
        live = self.bench.live()
        if live:
            self.bench.abort(live[index % len(live)])

    @rule()
    def reach_a_deadline(self) -> None:
        """All that have not started by now are given up together."""
        for name in self.bench.requests:
            if not self.bench.has_ended(name) and name not in self.bench.started:
                self.bench.abort(name)

    @rule(request=generations, index=st.integers(0, 99))
    def submit_a_live_id_again(self, request: GenRequest, index: int) -> None:
        """It is refused, and the one that lives is not touched."""
        live = self.bench.live()
        if live:
            with pytest.raises(DuplicateRequest):
                self.bench.engine.add_request(evolve(request, id=live[index % len(live)]))

    @rule()
    def spoil_a_step(self) -> None:
        """What is computed in it is NaN; whoever attends to it fails, and it is found by nobody later."""
        self.bench.runner.spoils = True
        self.bench.step()
        self.bench.runner.spoils = False

    @rule(index=st.integers(0, 99))
    def break_a_sampler(self, index: int) -> None:
        """One request's sampling raises from now on."""
        live = self.bench.live()
        if live:
            self.bench.engine._samplers[live[index % len(live)]] = BrokenSampler()  # type: ignore[assignment]

    @rule(request=generations)
    def fail_a_forward_pass(self, request: GenRequest) -> None:
        """With a good one after it, so that the engine does not give up."""
        self.bench.submit(request)
        self.bench.runner.failures = [RuntimeError("on purpose")]
        self.bench.step()
        assert self.bench.runner.failures == []
        self.bench.submit(request)
        self.bench.step()

    def teardown(self) -> None:
        """Everything ends, once, within the scheduler's bound; all blocks are back; every answer is the serial one."""
        if not hasattr(self, "bench"):
            return
        bench = self.bench
        bench.run(max_steps=sum(len(request.prompt) + request.max_tokens for request in bench.requests.values()))
        assert bench.engine.stats().kv_blocks_used == 0
        for name in bench.requests:
            assert bench.has_ended(name)
            self.check_answer(name)
        for name in list(bench.requests)[:5]:
            self.check_again(bench.requests[name])

    def check_again(self, request: GenRequest) -> None:
        """Sent once more, it may meet spoilt KV of a request that was given up unseen; after that, it never does again."""
        for may_fail in (self.bench.runner.has_spoilt, False):
            name = self.bench.submit(evolve(request, id=None))
            self.bench.run()
            if not may_fail:
                assert self.bench.answer(name) == self.bench.serial_answer(name)

    def check_answer(self, name: Any) -> None:
        answer, serial = self.bench.answer(name), self.bench.serial_answer(name)
        error = self.bench.failed[name].error if name in self.bench.failed else None
        is_cut = isinstance(error, StepFailed | SamplingFailed) or (error is not None and self.bench.runner.has_spoilt)
        if name in self.bench.aborted or is_cut:
            assert answer == serial[: len(answer)]
        else:
            assert answer == serial
            assert (error is None) == (answer != [] and answer[-1][-1] is not None)
            assert error is None or isinstance(error, BadLogits)


def test_every_request_ends_once_with_the_answer_it_gets_alone() -> None:
    """Whatever is submitted, aborted, preempted, shared, guessed and broken, in any configuration of the engine."""
    run_state_machine_as_test(EngineMachine, settings=settings(max_examples=60, stateful_step_count=25, deadline=None))
