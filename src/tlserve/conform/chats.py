"""Cases about chats: answers, usage, limits, seeds, stop strings, log probabilities."""

from __future__ import annotations

from functools import partial

from tlserve.conform.case import Case, Skipped, expect, member, shown
from tlserve.conform.reading import FINISHES, content_of, ok, stream_of, usage_of
from tlserve.conform.target import Answer, NoAnswer, Target

QUESTION = "Tell me about the sea, in a few sentences."


def _basic(target: Target) -> str:
    document = ok(target.chat(QUESTION, max_tokens=16, temperature=0))
    expect(member(document, "object") == "chat.completion", f"object is {shown(document['object'])}")
    expect(isinstance(member(document, "id"), str) and document["id"], "id is empty")
    expect(isinstance(member(document, "created"), int), f"created is {shown(document['created'])}")
    expect(member(document, "choices", 0, "message", "role") == "assistant", "the message is not the assistant's")
    finish = member(document, "choices", 0, "finish_reason")
    expect(finish in FINISHES, f"finish_reason is {shown(finish)}")
    return f"{document['id']}, finish_reason {finish}"


def _usage(target: Target) -> str:
    short, longer = (
        usage_of(ok(target.chat(text, max_tokens=4, temperature=0))) for text in ("Hi", "Hi " + "there " * 20)
    )
    expect(short[0] > 0, "a prompt of no tokens")
    expect(longer[0] > short[0], f"{longer[0]} tokens for a longer prompt, {short[0]} for a shorter one")
    expect(0 < short[1] <= 4, f"{short[1]} completion tokens, max_tokens is 4")
    return f"{short[0]} and {longer[0]} prompt tokens"


def _length(target: Target) -> str:
    document = ok(target.chat(QUESTION, max_tokens=2, temperature=0))
    written, finish = usage_of(document)[1], member(document, "choices", 0, "finish_reason")
    expect(written <= 2, f"{written} tokens, max_tokens is 2")
    wanted = "length" if written == 2 else "stop"
    expect(finish in (wanted, "stop"), f"finish_reason is {shown(finish)} after {written} tokens")
    whole = ok(target.chat(QUESTION, max_completion_tokens=24, temperature=0))
    if usage_of(whole)[1] == 24:  # So there is more than twelve to say.
        cut = ok(target.chat(QUESTION, max_completion_tokens=12, temperature=0))
        finish = member(cut, "choices", 0, "finish_reason")
        expect(finish == "length", f"an answer cut at 12 tokens ends with {shown(finish)}")
    return f"{written} tokens, {finish}"


def _greedy(target: Target) -> str:
    answers = {content_of(target.chat(QUESTION, max_tokens=24, temperature=0)) for _ in range(3)}
    expect(len(answers) == 1, f"temperature 0 gave {len(answers)} answers to one question")
    return shown(answers.pop(), 60)


def _seed(target: Target) -> str:
    def ask(seed: int) -> str:
        return content_of(target.chat(QUESTION, max_tokens=24, temperature=1.5, seed=seed))

    for seed in (7, 2**31):
        expect(ask(seed) == ask(seed), f"seed {seed} gave two answers")
    different = len({ask(seed) for seed in range(4)})
    expect(different > 1 or _is_sure(target), "four seeds gave one answer, of a model that is not sure of it")
    return f"each seed repeats; four seeds gave {different} answers"


def _is_sure(target: Target) -> bool:
    """Whether sampling has no choice: hardly a token of the best answer is less likely than one in three."""
    document = ok(target.chat(QUESTION, max_tokens=24, temperature=0, logprobs=True))
    entries = member(document, "choices", 0, "logprobs", "content")
    return len([entry for entry in entries if member(entry, "logprob") < -1]) < 4


def _stop(target: Target) -> str:
    whole = content_of(target.chat(QUESTION, max_tokens=32, temperature=0))
    stop = _middle(whole)
    expected = whole[: whole.index(stop)]
    plain = ok(target.chat(QUESTION, max_tokens=32, temperature=0, stop=[stop]))
    content, finish = (member(plain, "choices", 0, *path) for path in (("message", "content"), ("finish_reason",)))
    expect(stop not in content, f"the answer shows the stop string {stop!r}")
    expect(content == expected, f"cut at {stop!r} it is {shown(content)}, not {shown(expected)}")
    expect(finish == "stop", f"finish_reason is {shown(finish)}")
    stream = stream_of(target.stream_chat(QUESTION, max_tokens=32, temperature=0, stop=[stop]))
    expect(stream.text == expected, f"streamed it is {shown(stream.text)}, not {shown(expected)}")
    expect(stream.finishes == ["stop"], f"the stream finishes with {stream.finishes}")
    return f"cut at {stop!r}"


def _middle(text: str) -> str:
    """Three characters out of the middle: as a rule parts of two tokens."""
    if len(text) < 6:
        raise Skipped(f"the model has too little to say: {text!r}")
    return text[len(text) // 2 - 1 :][:3]


def _logprobs(target: Target) -> str:
    document = ok(target.chat(QUESTION, max_tokens=4, temperature=0, logprobs=True, top_logprobs=2))
    entries = member(document, "choices", 0, "logprobs", "content")
    expect(isinstance(entries, list) and entries, "logprobs.content is empty")
    for entry in entries:
        alternatives = member(entry, "top_logprobs")
        expect(len(alternatives) == 2, f"{len(alternatives)} alternatives instead of 2")
        expect(member(entry, "logprob") <= 1e-6, f"a log probability above 0: {entry['logprob']}")
        expect(alternatives[0]["logprob"] >= alternatives[1]["logprob"], "alternatives are not best first")
        _check_bytes(entry)
    return f"{len(entries)} tokens, best {shown(entries[0]['token'], 20)!r}"


def _check_bytes(entry: object) -> None:
    data = member(entry, "bytes")
    expect(data is None or all(isinstance(byte, int) and 0 <= byte <= 255 for byte in data), f"bytes are {shown(data)}")


def _roles(target: Target) -> str:
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Hello."},
        {"role": "user", "content": "Bye"},
    ]
    answer = target.post("chat/completions", {"messages": messages, "max_tokens": 4})
    usage = usage_of(ok(answer))
    return f"{usage[0]} prompt tokens"


def _concurrency(target: Target) -> str:
    fields = {"max_tokens": 16, "temperature": 0}
    questions = [f"Question {number}: what is {number} and {number}?" for number in range(16)]
    serial = [content_of(target.chat(question, **fields)) for question in questions]
    together = target.all_at_once([partial(target.stream_chat, question, **fields) for question in questions])
    wrong = [number for number, answer in enumerate(together) if _text(answer) != serial[number]]
    expect(not wrong, f"{len(wrong)} of 16 answers changed when asked at once, first that of question {wrong[:1]}")
    return "16 streams at once, 16 answers as before"


def _text(answer: Answer | NoAnswer) -> str:
    if isinstance(answer, NoAnswer):
        raise answer
    return stream_of(answer).text


CASES = (
    Case("chat.basic", _basic),
    Case("chat.roles", _roles),
    Case("chat.usage", _usage),
    Case("chat.length", _length),
    Case("chat.greedy", _greedy),
    Case("chat.seed", _seed),
    Case("chat.stop", _stop),
    Case("chat.logprobs", _logprobs),
    Case("concurrency.16", _concurrency),
)
