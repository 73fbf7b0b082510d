"""Stop strings are found above the engine, in the text; here is what the engine owes them, whatever it does below."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from engine.bench import SPECULATIVE, Bench, FakeRunner
from tlserve.config import SpeculativeConfig
from tlserve.decode.params import SamplingParams
from tlserve.names import RequestId
from tlserve.schedule.sequence import SequenceState
from tlserve.text.stream import TextStream

CIRCLE = [0, 1, 2, 3, 4, 0, 1, 2, 3, 4]
CIRCLING = SamplingParams(temperature=0.0, logit_bias=dict.fromkeys(range(5), 4.0))
SAMPLED = SamplingParams(temperature=0.9, frequency_penalty=0.4, presence_penalty=0.3, repetition_penalty=1.2)


def letters(tokens: list[int]) -> str:
    """A letter for each token."""
    return "".join(chr(ord("A") + token) for token in tokens)


def answer_text(bench: Bench, request: RequestId) -> str:
    return letters([out.token for out in bench.outputs[request]])


class Reader:
    """Reads answers as a server does: token by token, and it aborts a request when its stop string is there."""

    def __init__(self, bench: Bench, stops: Mapping[RequestId, str]) -> None:
        self.bench = bench
        self.streams = {request: TextStream([stop]) for request, stop in stops.items()}
        self.texts = dict.fromkeys(stops, "")
        self.preempted_while_holding = False

    def read(self) -> dict[RequestId, str]:
        while self.bench.engine.has_work():
            for out in self.bench.step():
                stream = self.streams[out.id]
                self.texts[out.id] += stream.push(letters([out.token]).encode())
                self.texts[out.id] += stream.finish() if out.finish else ""
                if stream.stopped():
                    self.bench.abort(out.id)
            self.preempted_while_holding |= any(map(self.is_preempted_while_holding, self.bench.live()))
        return self.texts

    def is_preempted_while_holding(self, request: RequestId) -> bool:
        sequence = self.bench.engine._scheduler._live[request]
        is_preempted = sequence.state is SequenceState.WAITING and sequence.num_starts > 0
        return is_preempted and bool(self.streams[request]._held)


@pytest.mark.parametrize("speculative", [None, SPECULATIVE])
def test_a_stop_string_across_accepted_drafts(speculative: SpeculativeConfig | None) -> None:
    """Wherever in a run of guessed tokens it begins and ends, the text is cut before it and the blocks are back."""
    whole = Bench()
    free = whole.add(CIRCLE, CIRCLING, max_tokens=24)
    whole.run()
    text = answer_text(whole, free)
    for start in range(20):
        for length in (2, 3, 4):
            stop = text[start : start + length]
            bench = Bench(speculative=speculative)
            request = bench.add(CIRCLE, CIRCLING, max_tokens=24)
            assert Reader(bench, {request: stop}).read() == {request: text[: text.index(stop)]}
            assert bench.engine.stats().kv_blocks_used == 0
            if speculative and start > 10:
                assert bench.engine.stats().accepted_tokens_total > 0


def test_preemption_with_half_a_stop_string_penalties_and_a_seed() -> None:
    """Requests that are computed again while the beginning of their stop string is held back go on as if nothing was."""
    alone = Bench()
    free = [alone.add(CIRCLE, SAMPLED, max_tokens=16, seed=seed) for seed in range(6)]
    alone.run()
    texts = [answer_text(alone, request) for request in free]
    crowded = Bench(FakeRunner(num_blocks=18, block_size=2), prefix_cache="off")
    requests = [crowded.add(CIRCLE, SAMPLED, max_tokens=16, seed=seed) for seed in range(6)]
    # Each answer's own end, so that half of it is held while the others take its blocks; the last one never comes.
    stops = [text[-6:] for text in texts[:-1]] + [texts[-1][5:8] + "?"]
    reader = Reader(crowded, dict(zip(requests, stops, strict=True)))
    expected = [text.partition(stop)[0] for text, stop in zip(texts, stops, strict=True)]
    assert list(reader.read().values()) == expected
    assert reader.preempted_while_holding
