"""The engine tier of the v1 API over real sockets: the worked example and what every client relies on."""

from __future__ import annotations

import json
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import attrs
import httpx
import numpy as np
import pytest

from support import Gate, Serve, Server, chunks_of, events_of, shift_logits, text_of, wait_until, write_bigram
from tlserve.config import ServeConfig

LONG = {"max_tokens": 200, "temperature": 0}


def test_hand_example_chat_completion(serve: Serve, succ_dir: Path) -> None:
    """The worked example, field for field: bcd, finish length, usage 1 + 3."""
    before = int(time.time())

    response = serve(succ_dir).chat("a", max_tokens=3, temperature=0)

    document = response.json()
    assert response.status_code == 200
    assert response.headers["content-type"] == "application/json"
    assert document.pop("id").startswith("chatcmpl-")
    assert before <= document.pop("created") <= time.time()
    assert document == {
        "object": "chat.completion",
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


def test_stream_framing_role_first_then_done(serve: Serve, succ_dir: Path) -> None:
    """Six events: the role, b, c, d with the finish, the usage, [DONE]; one id, one model, no role twice."""
    response = serve(succ_dir).chat(
        "a", max_tokens=3, temperature=0, stream=True, stream_options={"include_usage": True}
    )

    assert response.headers["content-type"].startswith("text/event-stream")
    assert len(events_of(response.text)) == 6
    chunks = chunks_of(response.text)
    assert {chunk["id"] for chunk in chunks} == {chunks[0]["id"]}
    assert all(chunk["object"] == "chat.completion.chunk" and chunk["model"] == "succ" for chunk in chunks)
    *content, usage = chunks
    deltas = [chunk["choices"][0]["delta"] for chunk in content]
    assert deltas == [{"role": "assistant", "content": ""}, {"content": "b"}, {"content": "c"}, {"content": "d"}]
    assert [chunk["choices"][0]["finish_reason"] for chunk in content] == [None, None, None, "length"]
    assert usage["choices"] == []
    assert usage["usage"]["completion_tokens"] == 3


def test_stream_equals_nonstream_at_temperature_0(serve: Serve, tiny_models: Path) -> None:
    """On a real architecture the deltas concatenate to the plain content."""
    server = serve(tiny_models / "tiny-llama")
    fields = {"max_tokens": 40, "temperature": 0}

    plain = server.chat("Hello there", **fields).json()["choices"][0]["message"]["content"]
    streamed = text_of(server.chat("Hello there", stream=True, **fields).text)

    assert streamed == plain
    assert plain


def test_seed_reproduces_sampling(serve: Serve, tiny_models: Path) -> None:
    """The same seed repeats the answer; other seeds give others."""
    server = serve(tiny_models / "tiny-llama")

    def answer(seed: int) -> str:
        fields = {"max_tokens": 24, "temperature": 1.5, "seed": seed, "ignore_eos": True}
        content: str = server.chat("Hi", **fields).json()["choices"][0]["message"]["content"]
        return content

    assert answer(7) == answer(7)
    assert len({answer(seed) for seed in range(-3, 3)}) > 1


def test_stop_strings_end_generation_across_tokens(serve: Serve, succ_dir: Path) -> None:
    """``de`` arrives as two tokens and stops at bc, plainly and streamed, and no byte of it is shown."""
    server = serve(succ_dir)
    fields = {"max_tokens": 10, "temperature": 0, "stop": ["de"]}

    plain = server.chat("a", **fields).json()["choices"][0]
    stream = server.chat("a", stream=True, **fields).text

    assert (plain["message"]["content"], plain["finish_reason"]) == ("bc", "stop")
    assert text_of(stream) == "bc"
    assert chunks_of(stream)[-1]["choices"][0]["finish_reason"] == "stop"


BAD_REQUESTS: list[tuple[dict[str, Any], int, str | None, str]] = [
    ({"temperature": -1}, 400, "temperature", "invalid_request_error"),
    ({"temperature": 2.5}, 400, "temperature", "invalid_request_error"),
    ({"top_p": 0}, 400, "top_p", "invalid_request_error"),
    ({"max_tokens": 0}, 400, "max_tokens", "invalid_request_error"),
    ({"stop": ["a", "b", "c", "d", "e"]}, 400, "stop", "invalid_request_error"),
    ({"messages": []}, 400, "messages", "invalid_request_error"),
    ({"messages": "hello"}, 400, "messages", "invalid_request_error"),
    ({"messages": [{"role": "nobody", "content": "x"}]}, 400, "messages[0].role", "invalid_request_error"),
    ({"stream": "yes"}, 400, "stream", "invalid_request_error"),
    ({"n": 2}, 422, "n", "unsupported_parameter"),
    (
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "x"}]}]},
        422,
        "messages[0].content",
        "unsupported_parameter",
    ),
    ({"tools": [{"type": "function", "function": {"name": "f"}}]}, 422, "tools", "unsupported_parameter"),
    ({"response_format": {"type": "json_object"}}, 422, "response_format", "unsupported_parameter"),
    ({"model": "other"}, 404, "model", "model_not_found"),
    ({"max_tokens": 10**6}, 400, None, "context_length_exceeded"),
]


def test_errors_use_the_openai_shape(serve: Serve, succ_dir: Path) -> None:
    """Each bad request gets its status, the four members, the field's name and its code."""
    server = serve(succ_dir)
    for fields, status, param, code in BAD_REQUESTS:
        body = {"model": "succ", "messages": [{"role": "user", "content": "a"}], **fields}
        response = server.api.post("/v1/chat/completions", json=body)

        error = response.json()["error"]
        assert response.status_code == status, fields
        assert response.headers["content-type"] == "application/json"
        assert set(error) == {"message", "type", "param", "code"}
        assert error["message"]
        assert param is None or error["param"] == param
        assert code in (error["code"], error["type"]), fields
    assert server.api.post("/v1/chat/completions", content=b"{nonsense").status_code == 400
    assert server.api.get("/v1/nothing").json()["error"]["type"] == "invalid_request_error"
    assert server.api.get("/v1/chat/completions").status_code == 405


def test_completions_endpoint_and_usage(serve: Serve, succ_dir: Path) -> None:
    """/v1/completions continues the text itself, by 16 tokens unless told otherwise."""
    document = (
        serve(succ_dir).api.post("/v1/completions", json={"model": "succ", "prompt": "AB", "temperature": 0}).json()
    )

    assert document["object"] == "text_completion"
    assert document["choices"][0]["text"] == "CDEFGHIJKLMNOPQR"
    assert document["choices"][0]["finish_reason"] == "length"
    assert document["usage"]["prompt_tokens"] == 2
    assert document["usage"]["completion_tokens"] == 16


def test_usage_counts_the_templated_prompt(serve: Serve, tmp_path: Path) -> None:
    """A model without a template gets the default one, generation prompt included, and prompt_tokens counts it all."""
    server = serve(write_bigram(tmp_path / "plain", np.zeros((256, 256)), template=None))

    usage = server.chat("Hi", max_tokens=1).json()["usage"]

    assert usage["prompt_tokens"] == len(b"<|user|>\nHi\n<|assistant|>\n")


def test_full_queue_answers_429_with_retry_after(serve: Serve, succ_dir: Path) -> None:
    """One runs, one waits, the third is refused at once and told when to come back.

    When the first one's client leaves, the one that waits is served: it would take the first minutes to end by itself.
    """
    server = serve(succ_dir, engine={"max_batch": 1}, queue_capacity=1, step_delay=0.02, queue_deadline_ms=5000)
    body = {"model": "succ", "messages": [{"role": "user", "content": "a"}], "stream": True, "max_tokens": 8000}
    with ThreadPoolExecutor() as pool:
        with httpx.stream("POST", f"{server.base_url}/chat/completions", json=body) as first:
            lines = first.iter_lines()
            next(lines)
            second = pool.submit(server.chat, "b", max_tokens=2, temperature=0)
            wait_until(lambda: server.metric("tl_engine_queue_depth") == 1)

            third = server.chat("c", max_tokens=2)

            assert third.status_code == 429
            assert third.json()["error"]["code"] == "rate_limit_exceeded"
            assert int(third.headers["retry-after"]) >= 1
            assert not second.done()
        assert second.result().json()["choices"][0]["message"]["content"] == "cd"


def test_disconnect_frees_blocks_within_a_step(serve: Serve, succ_dir: Path) -> None:
    """A client that leaves in the middle of a stream holds nothing any more."""
    server = serve(succ_dir, step_delay=0.02)
    body = {"model": "succ", "messages": [{"role": "user", "content": "a"}], "stream": True, "max_tokens": 2000}
    with httpx.stream("POST", f"{server.base_url}/chat/completions", json=body) as response:
        lines = response.iter_lines()
        next(lines)
        assert server.metric("tl_engine_active_sequences") == 1

    wait_until(lambda: server.metric("tl_engine_active_sequences") == 0, seconds=2)
    assert server.metric('tl_engine_kv_blocks{state="used"}') == 0


def test_drain_finishes_in_flight_and_refuses_new(serve: Serve, succ_dir: Path) -> None:
    """Draining: /readyz 503, /healthz 200, no new connection, and the open stream reaches [DONE]."""
    server = serve(succ_dir, step_delay=0.01)
    body = {"model": "succ", "messages": [{"role": "user", "content": "a"}], "stream": True, **LONG}
    with httpx.stream("POST", f"{server.base_url}/chat/completions", json=body) as response:
        lines = response.iter_lines()
        next(lines)
        assert server.health.get("/readyz").status_code == 200

        server.handle.drain()

        wait_until(lambda: server.health.get("/readyz").status_code == 503)
        assert server.health.get("/healthz").status_code == 200
        with pytest.raises(httpx.ConnectError):
            httpx.get(f"{server.base_url}/models")
        rest = list(lines)
    assert rest[-2] == "data: [DONE]"
    finishes = [json.loads(line[6:])["choices"][0]["finish_reason"] for line in rest if line.startswith("data: {")]
    assert finishes[-1] == "length"
    server.handle.join(5)


def test_embeddings_are_mean_pooled_and_normalized(serve: Serve, succ_dir: Path, tiny_models: Path) -> None:
    """Each vector is the normalized mean of the hidden states, in the order of the inputs; a bigram's states are its rows."""
    rows = shift_logits(1)
    texts = ["ab", "zzz", "a"]

    answer = serve(succ_dir).api.post("/v1/embeddings", json={"model": "succ", "input": texts}).json()

    assert [item["index"] for item in answer["data"]] == [0, 1, 2]
    for text, item in zip(texts, answer["data"], strict=True):
        mean = rows[list(text.encode())].mean(axis=0)
        np.testing.assert_allclose(item["embedding"], mean / np.linalg.norm(mean), atol=1e-6)
    assert answer["usage"] == {"prompt_tokens": 6, "total_tokens": 6}

    reference = json.loads((tiny_models / "tiny-llama" / "reference.json").read_text())
    body = {"model": "tiny-llama", "input": reference["ids"]}
    vector = serve(tiny_models / "tiny-llama").api.post("/v1/embeddings", json=body).json()["data"][0]["embedding"]
    np.testing.assert_allclose(vector, reference["embedding"], atol=1e-5)


def test_tokenize_models_health_and_request_id(serve: Serve, succ_dir: Path) -> None:
    """The model list, one model, health on both ports, and an id on every response, the client's own where it is sane."""
    server = serve(succ_dir)

    tokens = server.api.post("/v1/tokenize", json={"model": "succ", "text": "aé"}).json()
    assert tokens["tokens"] == list("aé".encode())
    assert tokens["count"] == 3
    models = server.api.get("/v1/models").json()
    assert [model["id"] for model in models["data"]] == ["succ"]
    assert server.api.get("/v1/models/succ").json() == models["data"][0]
    assert server.api.get("/v1/models/other").json()["error"]["code"] == "model_not_found"
    assert server.api.get("/healthz").status_code == 200
    assert server.health.get("/healthz").status_code == 200
    echoed = server.api.get("/v1/models", headers={"X-Request-Id": "my-id.1"})
    assert echoed.headers["x-request-id"] == "my-id.1"
    made = server.api.get("/v1/nothing", headers={"X-Request-Id": "no\tid"})
    assert len(made.headers["x-request-id"]) == 32


def test_concurrent_streams_equal_serial(serve: Serve, tiny_models: Path) -> None:
    """Sixteen parallel streams give the answers that each gives alone; and a step that takes long stalls no connection."""
    gate = Gate()
    server = serve(tiny_models / "tiny-llama", engine={"max_batch": 16, "prefill_chunk": 8}, load=gate)
    prompts = [f"Prompt number {i}, " + "word " * i for i in range(16)]
    fields = {"max_tokens": 24, "temperature": 0, "stream": True, "ignore_eos": True}
    serial = [text_of(server.chat(prompt, **fields).text) for prompt in prompts]

    with ThreadPoolExecutor(16) as pool:
        parallel = list(pool.map(lambda prompt: text_of(server.chat(prompt, **fields).text), prompts))

        gate.is_in_step.clear()
        gate.is_open.clear()
        held_up = pool.submit(server.chat, "a", max_tokens=1)
        try:
            assert gate.is_in_step.wait(10)
            assert server.health.get("/healthz", timeout=5).status_code == 200
            assert server.api.get("/v1/models", timeout=5).status_code == 200
            assert not held_up.done()
        finally:
            gate.is_open.set()
        assert held_up.result().status_code == 200

    assert parallel == serial
    assert len(set(serial)) > 1


def test_speculative_runtime_config_drives_the_serving_path(serve: Serve, tiny_models: Path) -> None:
    """``[engine.speculative]`` switches prompt lookup on: drafts are made and accepted, and no answer changes."""
    text = f'[engine]\nmodel_dir = "{tiny_models / "tiny-llama"}"\n'
    plain = serve(tiny_models / "tiny-llama", engine={})
    config = ServeConfig.from_toml(text + "[engine.speculative]\nnum_tokens = 4\n")
    speculating = serve(tiny_models / "tiny-llama", engine=attrs.asdict(config.engine, recurse=False))

    for content in ("abcabcabcabcabc", "Hello there", "1 2 3 1 2 3 1 2 3"):
        for fields in ({"temperature": 0}, {"temperature": 0.9, "seed": 5}, {"temperature": 0, "stop": ["e"]}):
            request = {"max_tokens": 48, "ignore_eos": True, **fields}
            expected = plain.chat(content, **request).json()
            answer = speculating.chat(content, **request).json()
            assert answer["choices"] == expected["choices"]
            assert answer["usage"]["completion_tokens"] == expected["usage"]["completion_tokens"]

    assert plain.metric("tlserve_drafted_tokens_total") == 0
    assert speculating.metric("tlserve_accepted_tokens_total") > 0


def test_server_is_described(serve: Serve, succ_dir: Path) -> None:
    """The seven metric names are in a live scrape."""
    server: Server = serve(succ_dir)
    exposition = server.health.get("/metrics").text

    for name in (
        "tl_engine_kv_blocks",
        "tl_engine_queue_depth",
        "tl_engine_active_sequences",
        "tl_engine_batch_tokens",
        "tl_engine_prefix_cache_hit_ratio",
        "tl_engine_preemptions_total",
        "tl_engine_kv_evictions_total",
    ):
        assert f"\n# TYPE {name} " in f"\n{exposition}"
