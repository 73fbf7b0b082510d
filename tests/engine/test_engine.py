from __future__ import annotations

from typing import Any

import pytest

from engine.bench import SPECULATIVE, Bench, FakeRunner
from tlserve.config import SpeculativeConfig
from tlserve.decode.params import SamplingParams
from tlserve.engine.messages import Failed, FinishReason, GenRequest, Started
from tlserve.errors import AdmitError, BadLogits, DuplicateRequest, EngineDead, NeverFits, QueueFull, StepFailed
from tlserve.names import RequestId

PROMPT = [3, 1, 4, 1, 5, 9, 2, 6, 5]
SAMPLED = SamplingParams(
    temperature=0.9, top_p=0.95, frequency_penalty=0.4, presence_penalty=0.2, repetition_penalty=1.2, logprobs=3
)


# ---- answers ---------------------------------------------------------------------------------------------------------


def test_an_answer_ends_by_length() -> None:
    """max_tokens tokens come, one a step, and only the last has a finish reason."""
    bench = Bench()
    request = bench.add(PROMPT, max_tokens=3)
    bench.run()
    assert [out.finish for out in bench.outputs[request]] == [None, None, FinishReason.LENGTH]
    assert bench.engine.stats().steps_total == 3


def test_an_answer_ends_by_a_stop_id() -> None:
    """The stop id is the last token of the output."""
    bench = Bench()
    free = bench.add(PROMPT, max_tokens=6)
    bench.run()
    third = bench.outputs[free][2].token
    stopped = bench.add(PROMPT, max_tokens=6, stop_ids=frozenset({third}))
    bench.run()
    tokens = [out.token for out in bench.outputs[stopped]]
    assert tokens == [out.token for out in bench.outputs[free]][: len(tokens)]
    assert tokens.index(third) == len(tokens) - 1
    assert bench.outputs[stopped][-1].finish is FinishReason.STOP


@pytest.mark.parametrize("params", [SamplingParams(temperature=0.0, logprobs=2), SAMPLED])
@pytest.mark.parametrize("prefill_chunk", [1, 3, 7, 512])
@pytest.mark.parametrize("block_size", [1, 4, 16])
@pytest.mark.parametrize("speculative", [None, SPECULATIVE])
def test_one_answer_cold_cached_chunked_and_speculating(
    params: SamplingParams,
    prefill_chunk: int,
    block_size: int,
    speculative: SpeculativeConfig | None,
) -> None:
    """The same request gives the same tokens, logprobs and alternatives, however it is computed."""
    bench = Bench(FakeRunner(block_size=block_size), prefill_chunk=prefill_chunk, speculative=speculative)
    for _ in range(3):
        request = bench.add(PROMPT * 3, params, max_tokens=20)
        bench.run()
        assert bench.answer(request) == bench.serial_answer(request)
    assert (bench.engine.stats().prefix_cache_hits > 0) == (block_size < len(PROMPT) * 3)


def test_requests_of_one_batch_do_not_disturb_each_other() -> None:
    """Sixteen at once get what each gets alone."""
    bench = Bench(max_batch=16, max_batch_tokens=40)
    requests = [bench.add(PROMPT[n % 5 :], SAMPLED, max_tokens=9, seed=n) for n in range(16)]
    bench.run()
    assert [bench.answer(request) for request in requests] == [bench.serial_answer(request) for request in requests]


def test_preemption_changes_neither_draws_nor_penalties() -> None:
    """A request with a seed and penalties that is computed again goes on as if nothing had happened."""
    bench = Bench(FakeRunner(num_blocks=14, block_size=2), prefix_cache="off")
    requests = [bench.add(PROMPT, SAMPLED, max_tokens=12, seed=n) for n in range(4)]
    bench.run()
    assert bench.engine.stats().preemptions_total >= 3
    assert [bench.answer(request) for request in requests] == [bench.serial_answer(request) for request in requests]


def test_an_answer_is_reused_as_the_beginning_of_the_next_prompt() -> None:
    """A second turn finds the first turn's prompt and answer in the cache, except the block in which it goes on."""
    bench = Bench(speculative=SPECULATIVE)
    first = bench.add(PROMPT, max_tokens=12)
    bench.run()
    second = bench.add([*PROMPT, *(out.token for out in bench.outputs[first]), 8, 8], max_tokens=5)
    bench.run()
    assert bench.started[second].cached_tokens == 20
    assert bench.answer(second) == bench.serial_answer(second)


def test_salts_keep_caches_apart() -> None:
    """The same prompt is found under the same salt only."""
    bench = Bench()
    found = []
    for salt in ("a", "b", "a"):
        request = bench.add(PROMPT, cache_salt=salt)
        bench.run()
        found.append(bench.started[request].cached_tokens)
    assert found == [0, 0, 8]


# ---- speculation -----------------------------------------------------------------------------------------------------


def circle(max_tokens: int, **more: Any) -> tuple[Bench, RequestId]:
    """A request whose answer goes round in a circle, 0 1 2 3 4, so that most guesses are right."""
    bench = Bench(speculative=SPECULATIVE)
    bias = SamplingParams(temperature=0.0, logprobs=1, logit_bias=dict.fromkeys(range(5), 4.0))
    request = bench.add([0, 1, 2, 3, 4, 0, 1, 2, 3, 4], bias, max_tokens=max_tokens, **more)
    bench.run()
    return bench, request


@pytest.mark.parametrize("max_tokens", range(1, 14))
def test_speculation_ends_exactly_at_max_tokens(max_tokens: int) -> None:
    """However the accepted runs fall, the answer has max_tokens tokens and one end."""
    bench, request = circle(max_tokens)
    assert len(bench.outputs[request]) == max_tokens
    assert bench.answer(request) == bench.serial_answer(request)


@pytest.mark.parametrize("stop", range(5))
def test_speculation_ends_exactly_at_a_stop_id(stop: int) -> None:
    """A stop id inside an accepted run ends the answer there; drafts behind it leave no token and no KV."""
    bench, request = circle(30, stop_ids=frozenset({stop}))
    assert bench.outputs[request][-1].token == stop
    assert bench.answer(request) == bench.serial_answer(request)
    assert bench.engine.stats().kv_blocks_used == 0


def test_right_guesses_save_steps() -> None:
    """A text that goes in circles takes far fewer forward passes than it has tokens."""
    bench, request = circle(60)
    stats = bench.engine.stats()
    assert len(bench.outputs[request]) == 60
    assert stats.steps_total < 40
    assert 0 < stats.accepted_tokens_total <= stats.drafted_tokens_total


def test_rejected_drafts_are_not_published() -> None:
    """A follow-up prompt that continues as a wrong guess did gets the right answer, not the guess's KV."""
    bench = Bench(FakeRunner(block_size=1), speculative=SPECULATIVE)
    first = bench.add([0, 1, 2, 3, 4, 0, 1, 2, 3, 4], SAMPLED, max_tokens=20)
    bench.run()
    stats = bench.engine.stats()
    assert stats.accepted_tokens_total < stats.drafted_tokens_total
    known = [*bench.requests[first].prompt, *(out.token for out in bench.outputs[first])]
    for end in range(10, len(known)):
        follow_up = bench.add([*known[:end], 1, 2], max_tokens=2)
        bench.run()
        assert bench.started[follow_up].cached_tokens <= end + 1
        assert bench.answer(follow_up) == bench.serial_answer(follow_up)


def test_method_off_drafts_nothing() -> None:
    """A table that says `off` is no speculation."""
    bench = Bench(speculative=SpeculativeConfig(method="off"))
    bench.add([1, 2, 3, 1, 2, 3, 1, 2, 3])
    bench.run()
    assert bench.engine.stats().drafted_tokens_total == 0


# ---- admission -------------------------------------------------------------------------------------------------------


def test_a_request_longer_than_the_context_is_refused() -> None:
    """With both numbers; one token less is served."""
    bench = Bench(FakeRunner(max_model_len=20))
    with pytest.raises(NeverFits, match=r"prompt \(9 tokens\) and max_tokens \(12\) exceed the context of 20"):
        bench.add(PROMPT, max_tokens=12)
    bench.add(PROMPT, max_tokens=11)
    bench.run()


def test_a_prompt_larger_than_the_pool_is_refused() -> None:
    """At once, and without harm to those that run; max_model_len says beforehand what fits."""
    bench = Bench(FakeRunner(num_blocks=4, block_size=4))
    other = bench.add(PROMPT, max_tokens=5)
    bench.step()
    with pytest.raises(NeverFits, match=r"need 5 KV blocks of 4 tokens; there are 4"):
        bench.add(range(16), max_tokens=2)
    bench.run()
    assert len(bench.outputs[other]) == 5
    assert bench.engine.max_model_len() == 16
    bench.add(range(12), max_tokens=4)
    bench.run()


def test_a_full_queue_refuses_until_somebody_starts() -> None:
    """The line holds as many as it may, whoever asks; a refused request leaves no trace."""
    bench = Bench(max_waiting=1, max_batch=1)
    running = bench.add(PROMPT)
    bench.step()
    queued = bench.add(PROMPT)
    with pytest.raises(QueueFull):
        bench.add(PROMPT, priority=100)
    assert bench.engine.stats().queue_depth == 1
    bench.run()
    assert bench.answer(queued) == bench.answer(running)


def test_the_same_id_twice_is_refused_while_the_first_lives() -> None:
    """The first goes on undisturbed; afterwards the id is free."""
    bench = Bench()
    bench.add(PROMPT, id=RequestId(5))
    bench.step()
    with pytest.raises(DuplicateRequest, match="request 5 is still alive"):
        bench.engine.add_request(bench.requests[RequestId(5)])
    bench.run()
    assert bench.answer(RequestId(5)) == bench.serial_answer(RequestId(5))
    assert bench.add(PROMPT, id=RequestId(5)) == 5


def test_given_ids_do_not_collide_with_chosen_ones() -> None:
    """The engine steps over ids that a caller has taken."""
    bench = Bench()
    names = [bench.add(PROMPT, id=RequestId(1)), bench.add(PROMPT), bench.add(PROMPT), bench.add(PROMPT)]
    assert len(set(names)) == 4


@pytest.mark.parametrize(
    "bad",
    [
        {"prompt": ()},
        {"max_tokens": 0},
        {"prompt": (1, 31)},
        {"prompt": (-1, 1)},
        {"stop_ids": frozenset({31})},
        {"params": SamplingParams(logit_bias={191222000: -100.0})},
        {"params": SamplingParams(logit_bias={-1: 5.0})},
        {"weight": 0},
    ],
)
def test_requests_that_make_no_sense_are_refused(bad: dict[str, Any]) -> None:
    """Ids outside the vocabulary never reach a kernel or the sampler, and a tenant without weight never a division."""
    usual: dict[str, Any] = {"prompt": (1,), "params": SamplingParams(), "seed": 0, "max_tokens": 1}
    with pytest.raises(AdmitError):
        Bench().submit(GenRequest(**{**usual, **bad}))


def test_tenants_take_turns() -> None:
    """One tenant's thirty requests are before another's three, which start after the first of them nonetheless."""
    bench = Bench(max_batch=1)
    for n in range(30):
        bench.add([n % 31, *PROMPT], max_tokens=4, tenant="many")
    few = [bench.add(PROMPT[n:], max_tokens=4, tenant="few") for n in range(3)]
    bench.run()
    order = sorted(bench.requests, key=lambda request: bench.started[request].at)
    assert [order.index(request) for request in few] == [1, 2, 4]


# ---- leaving early ---------------------------------------------------------------------------------------------------


def test_abort_in_mid_prefill_then_the_same_prompt() -> None:
    """Full blocks that were computed serve the second request, the rest is computed again, and the answer is right."""
    bench = Bench(prefill_chunk=6)
    gone = bench.add(PROMPT * 4)
    bench.step()
    bench.step()
    bench.abort(gone)
    stats = bench.engine.stats()
    assert (stats.kv_blocks_used, stats.kv_blocks_cached) == (0, 3)
    again = bench.add(PROMPT * 4)
    bench.run()
    assert bench.started[again].cached_tokens == 12
    assert bench.answer(again) == bench.serial_answer(again)


def test_abort_is_idempotent_and_knows_no_strangers() -> None:
    """Before the first step, between steps, after the end, twice, and for ids never given."""
    bench = Bench()
    waiting, running, ended = bench.add(PROMPT), bench.add(PROMPT), bench.add(PROMPT, max_tokens=1)
    bench.abort(waiting)
    bench.step()
    for request in (waiting, running, running, ended, RequestId(999)):
        bench.abort(request)
    bench.engine.check_integrity()
    assert not bench.engine.has_work()
    assert bench.step() == []
    assert len(bench.outputs[running]) == 1


def test_two_hundred_aborts_at_once() -> None:
    """Running and waiting ones alike: all blocks are back, nobody is heard of again, and the engine serves on."""
    bench = Bench(FakeRunner(num_blocks=100), max_batch=16)
    for n in range(200):
        bench.add([n % 31, *PROMPT], max_tokens=20)
    for _ in range(5):
        bench.step()
    bench.engine.abort_all()
    bench.engine.check_integrity()
    stats = bench.engine.stats()
    assert (stats.kv_blocks_used, stats.queue_depth, stats.active_sequences, stats.batch_tokens) == (0, 0, 0, 0)
    survivor = bench.add(PROMPT)
    bench.run()
    assert bench.answer(survivor) == bench.serial_answer(survivor)


def test_eviction_spares_the_prefix_of_a_running_request() -> None:
    """While a request runs on a cached prefix, a flood of other prompts evicts everything else, but not that."""
    bench = Bench(FakeRunner(num_blocks=16, block_size=2), max_batch=2)
    bench.add(PROMPT, max_tokens=1)
    bench.run()
    long = bench.add([*PROMPT, 7], max_tokens=14)
    for n in range(10, 20):
        bench.add([n] * 6, max_tokens=1)
    bench.run()
    assert bench.started[long].cached_tokens == 8
    assert bench.engine.stats().kv_evictions_total > 8
    assert bench.answer(long) == bench.serial_answer(long)


# ---- trouble ---------------------------------------------------------------------------------------------------------


def test_nan_fails_one_request_alone() -> None:
    """The others of the same batch get their tokens, and the failed one's blocks are back."""
    bench = Bench()
    bench.runner.poison = {30}
    good, bad, other = bench.add(PROMPT), bench.add([*PROMPT, 30]), bench.add(PROMPT[1:])
    bench.run()
    assert list(bench.failed) == [bad]
    assert isinstance(bench.failed[bad].error, BadLogits)
    assert bench.outputs[bad] == []
    assert bench.answer(good) == bench.serial_answer(good)
    assert bench.answer(other) == bench.serial_answer(other)


def test_a_failed_forward_fails_the_requests_of_its_step() -> None:
    """Each gets one StepFailed that says why; those that had no rows in the step, and later ones, are served."""
    bench = Bench(max_batch=2)
    hurt = [bench.add(PROMPT), bench.add(PROMPT[1:])]
    waiting = bench.add(PROMPT)
    bench.step()
    bench.runner.failures = [RuntimeError("the matrix is on fire")]
    assert bench.step() == []
    bench.run()
    assert list(bench.failed) == hurt
    error = bench.failed[hurt[0]].error
    assert isinstance(error, StepFailed)
    assert "RuntimeError: the matrix is on fire" in str(error)
    assert bench.answer(waiting) == bench.serial_answer(waiting)


def test_nothing_of_a_failed_step_is_cached() -> None:
    """What a failed pass has written is not trusted."""
    bench = Bench()
    bench.add(PROMPT)
    bench.runner.failures = [RuntimeError()]
    bench.step()
    assert bench.engine.stats().kv_blocks_cached == 0


def test_three_failed_forwards_in_a_row_are_the_end() -> None:
    """The third raises EngineDead; a success in between starts the count again."""
    bench = Bench()
    for _ in range(2):
        bench.runner.failures = [RuntimeError(), RuntimeError()]
        for _ in range(2):
            bench.add(PROMPT)
            bench.step()
        bench.add(PROMPT, max_tokens=1)
        bench.step()
    bench.runner.failures = [RuntimeError()] * 3
    for _ in range(2):
        bench.add(PROMPT)
        bench.step()
    last = bench.add(PROMPT)
    with pytest.raises(EngineDead, match="3 forward passes in a row"):
        bench.step()
    assert [notice.id for notice in bench.engine.take_notices() if isinstance(notice, Failed)] == [last]


# ---- observation -----------------------------------------------------------------------------------------------------


def test_started_tells_the_cached_tokens_once() -> None:
    """A notice comes when a request first leaves the line, not again when it returns from a preemption."""
    bench = Bench(FakeRunner(num_blocks=9, block_size=2))
    requests = [bench.add(PROMPT[n:], max_tokens=8) for n in range(3)]
    notices = []
    while bench.engine.has_work():
        bench.engine.step()
        notices += bench.engine.take_notices()
    assert bench.engine.stats().preemptions_total > 0
    assert [notice for notice in notices if isinstance(notice, Started)] == notices
    assert [notice.id for notice in notices] == requests


def test_stats_add_up() -> None:
    """Blocks are free, cached or used; the hit ratio is of tokens."""
    bench = Bench()
    bench.add(PROMPT, max_tokens=4)
    bench.step()
    stats = bench.engine.stats()
    assert (stats.batch_tokens, stats.active_sequences, stats.kv_blocks_used) == (9, 1, 3)
    bench.run()
    bench.add(PROMPT, max_tokens=1)
    bench.run()
    stats = bench.engine.stats()
    assert stats.kv_blocks_free + stats.kv_blocks_cached + stats.kv_blocks_used == stats.kv_blocks_total
    assert (stats.prefix_cache_queries, stats.prefix_cache_hits, stats.prefix_cache_hit_ratio) == (18, 8, 8 / 18)
    assert stats.batch_tokens == 0


def test_embeddings_use_no_block() -> None:
    """The mean of the fake's states, at length one, while a request runs."""
    bench = Bench()
    bench.add(PROMPT)
    bench.step()
    used = bench.engine.stats().kv_blocks_used
    assert bench.engine.embed([1, 3]) == pytest.approx([1 / 14**0.5, 2 / 14**0.5, 3 / 14**0.5])
    assert bench.engine.stats().kv_blocks_used == used
