"""Whole responses: OpenAI's own schemas accept them, and their numbers are those that went in."""

from __future__ import annotations

import base64
import json
import math
import struct
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tlserve.openai.documents import (
    Choice,
    Head,
    chat_completion,
    embedding_list,
    model_document,
    model_list,
    new_id,
    text_completion,
    tokenization,
)
from tlserve.openai.jsontext import to_json
from tlserve.openai.logprobs import CompletionLogprobs, chat_logprobs
from tlserve.openai.values import Alternative, TokenLogprob, Usage

from .conftest import Validate

HEAD = Head("chatcmpl-1", 1_700_000_000, "succ")
USAGE = Usage(prompt_tokens=1, completion_tokens=3)


def token(
    text: str, logprob: float = -0.5, *, data: bytes | None = None, top: tuple[Alternative, ...] = ()
) -> TokenLogprob:
    """A sampled token that adds its own text."""
    return TokenLogprob(text, logprob, text.encode() if data is None else data, top)


B = token("b", top=(Alternative("b", -0.5, b"b"), Alternative("x", -math.inf, b"x")))


def test_hand_example_chat_completion(validate: Validate) -> None:
    """The worked example: bcd, cut by length, usage 1 + 3, and every member of chat.completion."""
    document = chat_completion(HEAD, [Choice(index=0, text="bcd", finish="length")], USAGE)
    validate("CreateChatCompletionResponse", document)
    assert document == {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1_700_000_000,
        "model": "succ",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "bcd", "refusal": None},
                "logprobs": None,
                "finish_reason": "length",
            }
        ],
        "usage": {
            "prompt_tokens": 1,
            "completion_tokens": 3,
            "total_tokens": 4,
            "prompt_tokens_details": {"cached_tokens": 0},
        },
    }


def test_a_text_completion_has_its_own_shape(validate: Validate) -> None:
    """One choice for each prompt, in their order."""
    choices = [Choice(index=i, text=text, finish="stop") for i, text in enumerate(("x", "y"))]
    document = text_completion(HEAD, choices, USAGE)
    validate("CreateCompletionResponse", document)
    assert document["object"] == "text_completion"
    assert document["choices"] == [
        {"index": 0, "text": "x", "logprobs": None, "finish_reason": "stop"},
        {"index": 1, "text": "y", "logprobs": None, "finish_reason": "stop"},
    ]


def test_log_probabilities_validate_in_both_shapes(validate: Validate) -> None:
    """With alternatives, and with none."""
    for logprobs in ([B], [token("b")], []):
        choice = Choice(index=0, text="b", finish="stop", logprobs=logprobs, text_offset=4)
        validate("CreateChatCompletionResponse", chat_completion(HEAD, [choice], USAGE))
        document: Any = text_completion(HEAD, [choice], USAGE)
        validate("CreateCompletionResponse", document)
        assert len(document["choices"][0]["logprobs"]["tokens"]) == len(logprobs)


def test_chat_log_probabilities_tell_each_token_and_its_bytes() -> None:
    """One entry a token; alternatives as many as there are, an empty list when none were asked for."""
    assert chat_logprobs([B, token("c")]) == {
        "content": [
            {
                "token": "b",
                "logprob": -0.5,
                "bytes": [98],
                "top_logprobs": [
                    {"token": "b", "logprob": -0.5, "bytes": [98]},
                    {"token": "x", "logprob": -9999.0, "bytes": [120]},
                ],
            },
            {"token": "c", "logprob": -0.5, "bytes": [99], "top_logprobs": []},
        ],
        "refusal": None,
    }


def test_completion_log_probabilities_are_parallel_lists() -> None:
    """The sampled token is among the alternatives, and offsets count from the beginning of the prompt."""
    document = CompletionLogprobs(28).document([B, token("cc"), token("d")])
    assert document == {
        "tokens": ["b", "cc", "d"],
        "token_logprobs": [-0.5, -0.5, -0.5],
        "top_logprobs": [{"b": -0.5, "x": -9999.0}, {"cc": -0.5}, {"d": -0.5}],
        "text_offset": [28, 29, 31],
    }


@given(st.text(max_size=20), st.lists(st.integers(1, 3), max_size=60))
def test_offsets_point_into_the_text_however_it_is_cut(text: str, sizes: list[int]) -> None:
    """Tokens that end inside a character leave the next at the same offset; whole ones are found where they are."""
    data = text.encode()
    pieces: list[bytes] = []
    for size in [*sizes, len(data)]:
        pieces.append(data[:size])
        data = data[size:]
    logprobs = CompletionLogprobs(3)
    offsets: list[int] = []
    for piece in pieces:
        offsets += logprobs.document([token("?", data=piece)])["text_offset"]  # type: ignore[arg-type]
    done = b""
    for offset, piece in zip(offsets, pieces, strict=True):
        assert offset == 3 + len(done.decode("utf-8", "ignore"))
        done += piece


def test_nothing_infinite_reaches_the_wire() -> None:
    """JSON has no infinity; -9999.0 is what OpenAI writes for it."""
    text = to_json(chat_logprobs([token("b", -math.inf)]))
    assert json.loads(text)["content"][0]["logprob"] == -9999.0
    with pytest.raises(ValueError, match="Out of range"):
        to_json(math.nan)


def test_cached_tokens_are_part_of_the_prompt() -> None:
    """The prompt's count is the same with and without them."""
    document = Usage(prompt_tokens=600, completion_tokens=1, cached_tokens=592).document()
    assert document["prompt_tokens"] == 600
    assert document["total_tokens"] == 601
    assert document["prompt_tokens_details"] == {"cached_tokens": 592}


def test_embeddings_keep_the_order_of_their_inputs(validate: Validate) -> None:
    """``index`` is the place of the input."""
    vectors = [[0.6, 0.8], [1.0, 0.0]]
    document = embedding_list("m", vectors, prompt_tokens=5, encoding="float")
    validate("CreateEmbeddingResponse", document)
    assert document == {
        "object": "list",
        "data": [{"object": "embedding", "index": i, "embedding": vector} for i, vector in enumerate(vectors)],
        "model": "m",
        "usage": {"prompt_tokens": 5, "total_tokens": 5},
    }


@given(st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), max_size=9))
def test_base64_embeddings_are_the_same_numbers(vector: list[float]) -> None:
    """Four bytes each, little end first, as the official clients decode them."""
    document = embedding_list("m", [vector], prompt_tokens=1, encoding="base64")
    encoded = document["data"][0]["embedding"]  # type: ignore[index]
    assert list(struct.unpack(f"<{len(vector)}f", base64.b64decode(encoded))) == vector


def test_models_are_listed_as_they_are_described(validate: Validate) -> None:
    """The list holds the same objects that the single route answers."""
    model = model_document("org/model-x", created=1_700_000_000, max_model_len=2048)
    validate("Model", model)
    validate("ListModelsResponse", model_list([model]))
    assert model["max_model_len"] == 2048
    assert "max_model_len" not in model_document("m", created=1)


def test_a_tokenization_counts_what_it_lists() -> None:
    """The texts of the tokens only when asked for."""
    document = tokenization("m", (1, 2, 3), max_model_len=2048)
    assert document == {"object": "tokenization", "model": "m", "tokens": [1, 2, 3], "count": 3, "max_model_len": 2048}
    assert tokenization("m", [1], max_model_len=8, pieces=["a"])["token_strs"] == ["a"]


def test_ids_carry_their_prefix_and_differ() -> None:
    """Nobody can guess the next one."""
    ids = {new_id("cmpl") for _ in range(100)}
    assert len(ids) == 100
    assert all(one.startswith("cmpl-") for one in ids)


@given(st.text(st.characters(exclude_categories=["Cs"])))
@example("a\x85b\u2028c\u2029d\x0be\x1cf")
def test_json_text_is_one_line_for_every_way_to_cut_lines(text: str) -> None:
    """Compact, unescaped, and never torn by a client that uses ``splitlines``."""
    line = to_json({"text": text})
    assert json.loads(line) == {"text": text}
    assert len(line.splitlines()) == 1


def test_json_text_is_compact_utf8() -> None:
    """No blanks, no escapes that nobody needs."""
    assert to_json({"a": [1, "é"]}) == '{"a":[1,"é"]}'
