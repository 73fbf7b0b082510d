"""The official openai client, as users hold it, against a server on real sockets."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import openai
import pytest
from openai import AsyncOpenAI, OpenAI
from openai.types.chat import ChatCompletionMessageParam

from support import Serve, Server, shift_logits, wait_until

ASK: list[ChatCompletionMessageParam] = [{"role": "user", "content": "a"}]


@pytest.fixture(scope="module")
def server(serve_shared: Serve, succ_dir: Path) -> Server:
    """The model that counts."""
    return serve_shared(succ_dir)


@pytest.fixture
def client(server: Server) -> Iterator[OpenAI]:
    with OpenAI(base_url=server.base_url, api_key="none", max_retries=0) as client:
        yield client


def test_models_are_listed_and_retrieved(client: OpenAI) -> None:
    """With everything that the client's types promise."""
    (model,) = client.models.list().data
    assert model.id == "succ"
    assert model.object == "model"
    assert client.models.retrieve("succ").id == "succ"
    with pytest.raises(openai.NotFoundError) as refusal:
        client.models.retrieve("gpt-4o")
    assert refusal.value.code == "model_not_found"


def test_a_chat(client: OpenAI) -> None:
    """A whole answer with its usage and its request id."""
    answer = client.chat.completions.create(model="succ", messages=ASK, max_completion_tokens=3, temperature=0)
    assert answer.choices[0].message.content == "bcd"
    assert answer.choices[0].message.role == "assistant"
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (1, 3)
    assert answer._request_id


def test_a_streamed_chat(client: OpenAI) -> None:
    """Chunks that concatenate to the answer, and the usage when asked for."""
    chunks = list(
        client.chat.completions.create(
            model="succ", messages=ASK, max_tokens=3, temperature=0, stream=True, stream_options={"include_usage": True}
        )
    )
    *content, usage = chunks
    assert "".join(chunk.choices[0].delta.content or "" for chunk in content) == "bcd"
    assert [chunk.choices[0].finish_reason for chunk in content] == [None, None, None, "length"]
    assert usage.usage is not None
    assert usage.usage.total_tokens == 4


def test_the_clients_own_stream_helper(client: OpenAI) -> None:
    """``chat.completions.stream`` assembles the same message."""
    with client.chat.completions.stream(model="succ", messages=ASK, max_tokens=3, temperature=0, stop=["d"]) as stream:
        final = stream.get_final_completion()
    assert final.choices[0].message.content == "bc"
    assert final.choices[0].finish_reason == "stop"


def test_log_probabilities(client: OpenAI) -> None:
    """In both shapes, with the alternatives."""
    chat = client.chat.completions.create(
        model="succ", messages=ASK, max_tokens=2, temperature=0, logprobs=True, top_logprobs=2
    )
    logprobs = chat.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.content is not None
    assert [entry.token for entry in logprobs.content] == ["b", "c"]
    assert all(entry.top_logprobs[0].bytes == entry.bytes for entry in logprobs.content)
    text = client.completions.create(model="succ", prompt="a", max_tokens=2, temperature=0, logprobs=2)
    assert text.choices[0].logprobs is not None
    assert text.choices[0].logprobs.tokens == ["b", "c"]


def test_completions(client: OpenAI) -> None:
    """Texts, token ids, several prompts, and a stream."""
    answer = client.completions.create(model="succ", prompt=["a", "x"], max_tokens=2, temperature=0)
    assert [choice.text for choice in answer.choices] == ["bc", "yz"]
    ids = client.completions.create(model="succ", prompt=[97], max_tokens=2, temperature=0)
    assert ids.choices[0].text == "bc"
    stream = client.completions.create(model="succ", prompt="a", max_tokens=3, temperature=0, stream=True)
    assert "".join(chunk.choices[0].text for chunk in stream if chunk.choices) == "bcd"


def test_embeddings(client: OpenAI) -> None:
    """The client asks for base64 by itself and decodes it; floats are the same numbers."""
    texts = ["ab", "z"]
    packed = client.embeddings.create(model="succ", input=texts)
    plain = client.embeddings.create(model="succ", input=texts, encoding_format="float")
    for text, one, other in zip(texts, packed.data, plain.data, strict=True):
        mean = shift_logits(1)[list(text.encode())].mean(axis=0)
        np.testing.assert_allclose(one.embedding, mean / np.linalg.norm(mean), atol=1e-6)
        np.testing.assert_allclose(one.embedding, other.embedding, atol=1e-7)


def test_mistakes_become_the_clients_errors(client: OpenAI) -> None:
    """Each with the field that is wrong."""
    with pytest.raises(openai.BadRequestError) as bad:
        client.chat.completions.create(model="succ", messages=ASK, temperature=3)
    assert bad.value.param == "temperature"
    with pytest.raises(openai.UnprocessableEntityError) as unserved:
        client.chat.completions.create(model="succ", messages=ASK, n=2)
    assert unserved.value.param == "n"
    with pytest.raises(openai.BadRequestError) as long:
        client.completions.create(model="succ", prompt="a" * 9000, max_tokens=1)
    assert long.value.code == "context_length_exceeded"


def test_a_full_queue_is_a_rate_limit(serve: Serve, succ_dir: Path) -> None:
    """The client knows it as an error that passes, and its own retries get through in the end."""
    server = serve(succ_dir, engine={"max_batch": 1}, queue_capacity=1, step_delay=0.02)
    with OpenAI(base_url=server.base_url, api_key="none", max_retries=0) as client, ThreadPoolExecutor(2) as pool:
        with client.completions.create(model="succ", prompt="a", max_tokens=8000, stream=True) as running:
            next(running)
            waiting = pool.submit(client.completions.create, model="succ", prompt="a", max_tokens=1)
            wait_until(lambda: server.metric("tl_engine_queue_depth") == 1)
            with pytest.raises(openai.RateLimitError) as refusal:
                client.completions.create(model="succ", prompt="a", max_tokens=1)
            assert int(refusal.value.response.headers["retry-after"]) >= 1
            patient = client.with_options(max_retries=5)
            retried = pool.submit(patient.completions.create, model="succ", prompt="a", max_tokens=1)
        assert waiting.result().choices[0].text
        assert retried.result().choices[0].text


def test_async_chats(server: Server) -> None:
    """Plain and streamed, from the asynchronous client."""

    async def ask() -> tuple[str | None, str, list[str]]:
        async with AsyncOpenAI(base_url=server.base_url, api_key="none", max_retries=0) as client:
            create = client.chat.completions.create
            answer = await create(model="succ", messages=ASK, max_tokens=3, temperature=0)
            stream = await create(model="succ", messages=ASK, max_tokens=3, temperature=0, stream=True)
            streamed = "".join([chunk.choices[0].delta.content or "" async for chunk in stream])
            return answer.choices[0].message.content, streamed, [model.id async for model in client.models.list()]

    assert asyncio.run(ask()) == ("bcd", "bcd", ["succ"])


def test_a_stream_that_is_left_is_over(server: Server) -> None:
    """Leaving the block hangs up, and the server stops computing."""

    async def leave() -> None:
        async with AsyncOpenAI(base_url=server.base_url, api_key="none", max_retries=0) as client:
            stream = await client.chat.completions.create(model="succ", messages=ASK, max_tokens=8000, stream=True)
            async with stream:
                await anext(stream)

    asyncio.run(leave())
    wait_until(lambda: server.metric("tl_engine_active_sequences") == 0)
    assert server.metric('tl_engine_kv_blocks{state="used"}') == 0
