"""From tokens to text: what a choice holds, what counts, and what comes too late."""

from __future__ import annotations

import trio

from tlserve.bridge.messages import Event
from tlserve.bridge.ticket import Ticket
from tlserve.engine.messages import Failed, FinishReason, Started, TokenOut
from tlserve.errors import StepFailed
from tlserve.names import RequestId
from tlserve.server.answer import Answer, CollectedChoice, collect
from tlserve.server.request_metrics import RequestMetrics
from tlserve.server.timing import Timing
from tlserve.text.byte_tokenizer import ByteTokenizer

ONE, TWO = RequestId(1), RequestId(2)


def tokens(request_id: RequestId, text: str, finish: FinishReason | None = None) -> list[Event]:
    """A token for each byte of ``text``, the last with the finish."""
    *rest, last = text.encode()
    return [*(TokenOut(request_id, token, -0.5, None) for token in rest), TokenOut(request_id, last, -0.5, finish)]


async def answered(
    events: list[Event], *, stops: tuple[str, ...] = (), share: int = 1
) -> tuple[Answer, list[CollectedChoice]]:
    """The answer to two generations whose events had all come before anybody looked, and its choices."""
    ticket = Ticket([ONE, TWO], max_events=100, abort=lambda _: None, on_start=lambda: None, on_close=lambda _: None)
    answer = Answer(
        ticket,
        ByteTokenizer(256),
        stops,
        wants_logprobs=True,
        timing=Timing(RequestMetrics(), asked_at=0.0, prompt_tokens=1),
        answers_per_prompt=share,
    )
    for event in events:
        ticket.deliver(event)
    with trio.fail_after(5):
        return answer, await collect(answer)


async def test_use_03_tokens_behind_a_stop_string_do_not_count() -> None:
    """The engine has made some before it heard of the stop: they are in no text, no usage and no log probabilities."""
    late = tokens(ONE, "bcdefgh", FinishReason.LENGTH)
    answer, (one, two) = await answered([*late, *tokens(TWO, "xy", FinishReason.LENGTH)], stops=("de",))

    assert ("".join(one.text), one.finish, len(one.logprobs)) == ("bc", "stop", 4)
    assert ("".join(two.text), two.finish) == ("xy", "length")
    assert answer.completion_tokens == 4 + 2


async def test_a_failure_behind_a_stop_string_fails_nobody() -> None:
    """Its choice is answered already, and the other goes on."""
    events = [*tokens(ONE, "bcd"), Failed(ONE, StepFailed("no memory")), *tokens(TWO, "xy", FinishReason.LENGTH)]
    _, choices = await answered(events, stops=("cd",))

    assert [("".join(choice.text), choice.finish) for choice in choices] == [("b", "stop"), ("xy", "length")]


async def test_an_end_token_has_no_text() -> None:
    """It ends the answer and counts; what was held back for a stop string is released before it."""
    events = [*tokens(ONE, "bcd!", FinishReason.STOP), *tokens(TWO, "!", FinishReason.STOP)]
    answer, (one, two) = await answered(events, stops=("dX",))

    assert ("".join(one.text), one.finish) == ("bcd", "stop")
    assert ("".join(two.text), two.finish, len(two.logprobs)) == ("", "stop", 1)
    assert answer.completion_tokens == 5


async def test_use_02_cached_tokens_count_once_a_prompt() -> None:
    """Two answers to one prompt share what was cached of it; two prompts have each their own."""
    ended = [*tokens(ONE, "b", FinishReason.LENGTH), *tokens(TWO, "b", FinishReason.LENGTH)]
    events: list[Event] = [Started(ONE, 16, at=1.0), Started(TWO, 32, at=1.0), *ended]

    assert (await answered(events, share=2))[0].cached_tokens == 16
    assert (await answered(events, share=1))[0].cached_tokens == 48
