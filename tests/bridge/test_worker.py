"""The engine thread's loop, driven by hand: what it says, and in which order."""

from __future__ import annotations

import queue
from pathlib import Path

import attrs
import pytest

from support import shift_logits, write_bigram
from tlserve.bridge.messages import Command, Delivery, Embed, Embedded, Stop, Submit
from tlserve.bridge.worker import EngineLoop
from tlserve.config import ServeConfig
from tlserve.decode.params import SamplingParams
from tlserve.engine.engine import Engine
from tlserve.engine.load import load_engine
from tlserve.engine.messages import Failed, GenRequest, TokenOut
from tlserve.errors import EngineDead, StepFailed
from tlserve.names import RequestId

TEXT, ANSWER = RequestId(1), RequestId(2)


class Pieces:
    """The bigram, embedding four tokens at a time; may fail in the middle."""

    def __init__(self, engine: Engine, *, fails_at: int | None = None) -> None:
        self._inner = engine.runner
        self._fails_at = fails_at

    def __getattr__(self, name: str) -> object:
        return getattr(self._inner, name)

    def run_pieces(self, tokens: tuple[int, ...]) -> object:
        for start in range(0, len(tokens), 4):
            if start == self._fails_at:
                raise MemoryError("no memory")
            yield self._inner.run_once(tokens[start : start + 4])


class Broken(Pieces):
    """The bigram, whose forward pass only ever raises."""

    def forward(self, _batch: object) -> object:
        raise OSError("the memory is gone")


@pytest.fixture
def engine(tmp_path: Path) -> Engine:
    config = ServeConfig.for_model(write_bigram(tmp_path / "succ", shift_logits(1)))
    return load_engine(config, lambda _: None).engine


def play(engine: Engine, *commands: Command) -> list[Delivery]:
    """Everything that is posted until the engine has nothing to do."""
    inbox: queue.SimpleQueue[Command] = queue.SimpleQueue()
    for command in commands:
        inbox.put(command)
    deliveries: list[Delivery] = []

    def post(delivery: Delivery) -> None:
        deliveries.append(delivery)
        ended = {event.id for d in deliveries for event in d.events if is_end(event)}
        if ended == {TEXT, ANSWER}:
            inbox.put(Stop())

    EngineLoop(engine, inbox, post).run()
    return deliveries


def is_end(event: object) -> bool:
    return isinstance(event, Embedded | Failed) or (isinstance(event, TokenOut) and event.finish is not None)


def submit() -> Submit:
    request = GenRequest(prompt=(97,), params=SamplingParams(temperature=0.0), seed=0, max_tokens=6, id=ANSWER)
    return Submit(request)


def test_a_long_text_stalls_no_stream(engine: Engine) -> None:
    """A text of five pieces takes five turns, and each of them brings the running answer a token."""
    expected = engine.embed(range(20))
    engine._runner = Pieces(engine)  # type: ignore[assignment]
    deliveries = play(engine, submit(), Embed(TEXT, tuple(range(20))))
    kinds = [[type(event).__name__ for event in delivery.events if isinstance(event, TokenOut | Embedded)]
             for delivery in deliveries]  # fmt: skip
    assert kinds == [[], *[["TokenOut"]] * 5, ["Embedded", "TokenOut"]]
    vector = next(event.vector for delivery in deliveries for event in delivery.events if isinstance(event, Embedded))
    assert vector == pytest.approx(expected)


def test_a_text_that_fails_fails_alone(engine: Engine) -> None:
    """Whatever the model raises over a text is that request's error, and the answer beside it goes on."""
    engine._runner = Pieces(engine, fails_at=8)  # type: ignore[assignment]
    events = [event for delivery in play(engine, submit(), Embed(TEXT, tuple(range(20)))) for event in delivery.events]
    failure = next(event for event in events if isinstance(event, Failed))
    assert failure.id == TEXT
    assert isinstance(failure.error, StepFailed)
    assert "MemoryError: no memory" in str(failure.error)
    assert [event.token for event in events if isinstance(event, TokenOut)] == list(b"bcdefg")


def test_the_last_words_of_an_engine_that_gives_up(engine: Engine) -> None:
    """The requests of the third failed step get their own error, with its cause, before the engine's end is known."""
    engine._runner = Broken(engine)  # type: ignore[assignment]
    for number in (11, 12):
        engine.add_request(attrs.evolve(submit().request, id=RequestId(number)))
        engine.step()
    engine.take_notices()
    deliveries: list[Delivery] = []
    inbox: queue.SimpleQueue[Command] = queue.SimpleQueue()
    inbox.put(submit())
    with pytest.raises(EngineDead):
        EngineLoop(engine, inbox, deliveries.append).run()
    [failure] = [event for event in deliveries[-1].events if isinstance(event, Failed)]
    assert failure.id == ANSWER
    assert isinstance(failure.error, StepFailed)
    assert "OSError: the memory is gone" in str(failure.error)
