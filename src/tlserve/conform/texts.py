"""Cases about the other routes: models, text completions, embeddings, tokens."""

from __future__ import annotations

import base64
import math
import struct

from tlserve.conform.case import Case, Skipped, expect, member, shown
from tlserve.conform.reading import FINISHES, error_of, ok, stream_of, usage_of
from tlserve.conform.target import Target

TEXT = "The quick brown fox"


def _list(target: Target) -> str:
    document = ok(target.get("models"))
    expect(member(document, "object") == "list", f"object is {shown(document['object'])}")
    names = [member(model, "id") for model in member(document, "data")]
    expect(target.model in names, f"{target.model} is not among {shown(names)}")
    return f"{len(names)}: {shown(names)}"


def _retrieve(target: Target) -> str:
    document = ok(target.get(target.model_path))
    expect(member(document, "id") == target.model, f"id is {shown(document['id'])}")
    expect(member(document, "object") == "model", f"object is {shown(document['object'])}")
    error_of(target.get("models/no-such-model"), 404, "an unknown model")
    return f"created {member(document, 'created')}"


def _completion(target: Target) -> str:
    document = ok(target.post("completions", {"prompt": TEXT, "max_tokens": 8, "temperature": 0}))
    expect(member(document, "object") == "text_completion", f"object is {shown(document['object'])}")
    text, finish = member(document, "choices", 0, "text"), member(document, "choices", 0, "finish_reason")
    expect(isinstance(text, str), f"text is {shown(text)}")
    expect(finish in FINISHES, f"finish_reason is {shown(finish)}")
    written = usage_of(ok(target.post("completions", {"prompt": TEXT, "temperature": 0})))[1]
    expect(written <= 16, f"{written} tokens without max_tokens; the default is 16")
    return f"{shown(text, 40)!r}, {finish}"


def _completion_stream(target: Target) -> str:
    body = {"prompt": TEXT, "max_tokens": 8, "temperature": 0}
    plain = member(ok(target.post("completions", body)), "choices", 0, "text")
    stream = stream_of(target.post("completions", {**body, "stream": True}))
    expect(stream.text == plain, f"streamed {shown(stream.text, 40)!r}, plain {shown(plain, 40)!r}")
    expect(len(stream.finishes) == 1, f"finish_reason is set {len(stream.finishes)} times")
    return f"{len(stream.chunks)} chunks"


def _completion_batch(target: Target) -> str:
    prompts = [TEXT, "One, two,"]
    fields = {"max_tokens": 8, "temperature": 0}
    alone = [member(ok(target.post("completions", {"prompt": p, **fields})), "choices", 0, "text") for p in prompts]
    choices = member(ok(target.post("completions", {"prompt": prompts, **fields})), "choices")
    together = [choice["text"] for choice in sorted(choices, key=lambda choice: int(choice["index"]))]
    expect(together == alone, f"together {shown(together)}, alone {shown(alone)}")
    return "two prompts, two choices, as alone"


def _completion_logprobs(target: Target) -> str:
    body = {"prompt": TEXT, "max_tokens": 3, "temperature": 0, "logprobs": 2}
    logprobs = member(ok(target.post("completions", body)), "choices", 0, "logprobs")
    tokens = member(logprobs, "tokens")
    for name in ("token_logprobs", "top_logprobs", "text_offset"):
        expect(len(member(logprobs, name)) == len(tokens), f"{name} and tokens differ in length")
    return f"tokens {shown(tokens, 60)}"


def _embeddings(target: Target) -> str:
    texts = [TEXT, "something else", TEXT]
    document = ok(target.post("embeddings", {"input": texts, "encoding_format": "float"}))
    data = member(document, "data")
    expect([member(item, "index") for item in data] == [0, 1, 2], "the vectors are not in the order of the inputs")
    first, other, again = (member(item, "embedding") for item in data)
    expect(first == again, "the same text has two vectors")
    expect(first != other, "different texts have the same vector")
    expect(all(map(math.isfinite, first)), "a vector has numbers that are none")
    norm = math.sqrt(sum(number * number for number in first))
    expect(abs(norm - 1) < 1e-3, f"the vector has length {norm:.4f}, not 1")
    expect(member(document, "usage", "prompt_tokens") > 0, "no prompt tokens")
    return f"{len(first)} numbers, length {norm:.5f}"


def _base64(target: Target) -> str:
    plain = member(ok(target.post("embeddings", {"input": TEXT, "encoding_format": "float"})), "data", 0, "embedding")
    packed = member(ok(target.post("embeddings", {"input": TEXT, "encoding_format": "base64"})), "data", 0, "embedding")
    expect(isinstance(packed, str), f"the embedding is not base64: {shown(packed, 40)}")
    data = base64.b64decode(packed)
    numbers = struct.unpack(f"<{len(data) // 4}f", data)
    expect(len(numbers) == len(plain), f"{len(numbers)} numbers in base64, {len(plain)} plain")
    apart = max(abs(one - other) for one, other in zip(numbers, plain, strict=True))
    expect(apart < 1e-5, f"base64 and plain are {apart} apart")
    return f"{len(numbers)} float32"


def _tokenize(target: Target) -> str:
    answer = target.post("tokenize", {"text": TEXT})
    if answer.status in (404, 405):
        raise Skipped("no such route; it is not one of OpenAI's")
    document = ok(answer)
    tokens, count = member(document, "tokens"), member(document, "count")
    expect(count == len(tokens), f"count is {count}, there are {len(tokens)} tokens")
    counted = usage_of(ok(target.post("completions", {"prompt": TEXT, "max_tokens": 1})))[0]
    expect(counted == count, f"{count} tokens here, {counted} in the usage of a completion")
    return f"{count} tokens"


CASES = (
    Case("models.list", _list),
    Case("models.retrieve", _retrieve),
    Case("completions.basic", _completion),
    Case("completions.stream", _completion_stream),
    Case("completions.batch", _completion_batch),
    Case("completions.logprobs", _completion_logprobs),
    Case("embeddings.float", _embeddings),
    Case("embeddings.base64", _base64),
    Case("tokenize.count", _tokenize),
)
