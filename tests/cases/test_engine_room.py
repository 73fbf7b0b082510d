"""What happens below the API, as far as a client can tell: caches, queues, long prompts, speculation, drains."""

from __future__ import annotations

import ast
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from support import Gate, Serve, Server, text_of, wait_until
from tlserve.config import SpeculativeConfig

from .asking import WAYS, Way

SOURCES = Path(__file__).resolve().parents[2] / "src" / "tlserve"
PLAIN = {"temperature": 0, "max_tokens": 12, "ignore_eos": True, "logprobs": 1}


def test_kv_01_a_cached_answer_is_the_cold_one(serve: Serve, tiny_models: Path) -> None:
    """Prompts around the edges of blocks, four times in a row: the same text and, to the last digit, log probabilities."""
    server = serve(tiny_models / "tiny-llama", engine={"block_size": 16, "prefill_chunk": 24})
    for length in (15, 16, 17, 48, 53):
        answers = [server.complete("x" * length, **PLAIN).json() for _ in range(4)]
        assert all(answer["choices"] == answers[0]["choices"] for answer in answers)
        cached = [answer["usage"]["prompt_tokens_details"]["cached_tokens"] for answer in answers]
        assert cached[-1] == (length - 1) // 16 * 16


def test_kv_05_nothing_behind_a_stop_is_reused(serve: Serve, tiny_models: Path) -> None:
    """Answers that ended at stop strings, under speculation, leave the next turns what they are without a cache."""
    cached = serve(tiny_models / "tiny-llama", engine={"speculative": SpeculativeConfig()})
    plain = serve(tiny_models / "tiny-llama", engine={"prefix_cache": "off"})
    for number in range(8):
        ask = f"Question {number}: abcabcabcabc"
        first = [server.complete(ask, stop=["e", "\n\n"], **PLAIN).json()["choices"][0] for server in (cached, plain)]
        assert first[0] == first[1]
        turn = ask + first[0]["text"] + "Q: and then?"
        second = [server.complete(turn, **PLAIN).json()["choices"][0] for server in (cached, plain)]
        assert second[0] == second[1]


def test_kv_08_a_prompt_that_just_fits_without_a_cache(serve: Serve, tiny_models: Path) -> None:
    """Five chunks that fill the pool to its last block are served; one token more never could be and is a 400."""
    engine = {"prefix_cache": "off", "num_blocks": 6, "block_size": 16, "prefill_chunk": 16}
    server = serve(tiny_models / "tiny-llama", engine=engine)
    for _ in range(3):
        answer = server.complete("a" * 92, max_tokens=4, ignore_eos=True)
        assert answer.json()["usage"]["total_tokens"] == 96
    assert server.complete("a" * 93, max_tokens=4).json()["error"]["code"] == "context_length_exceeded"
    assert server.metric('tl_engine_kv_blocks{state="used"}') == 0


def test_spc_24_caching_goes_by_ids(smollm2: Server) -> None:
    """A text and its ids share; a chat shares with the ids that it renders to; other ids at the front share nothing."""
    text = "An uncommon sentence, zebra by zebra, for caching alone. " * 4

    def ask(prompt: object) -> int:
        usage = smollm2.complete(prompt, max_tokens=1).json()["usage"]
        cached: int = usage["prompt_tokens_details"]["cached_tokens"]
        return cached

    ids = smollm2.api.post("/v1/tokenize", json={"model": smollm2.model, "text": text}).json()["tokens"]
    messages = [{"role": "user", "content": text}]
    rendered = smollm2.api.post("/v1/tokenize", json={"model": smollm2.model, "messages": messages}).json()["tokens"]
    assert ask(text) == 0
    assert ask(ids) > 16
    assert ask([5, *ids]) == 0
    smollm2.chat(text, max_tokens=1)
    assert ask(rendered) > len(ids)


def test_sch_04_a_long_prompt_does_not_freeze_a_stream(serve: Serve, succ_dir: Path) -> None:
    """While a prompt of a hundred chunks is computed, a running stream gets a token with each of them."""
    server = serve(succ_dir, engine={"prefill_chunk": 16, "prefix_cache": "off"}, step_delay=0.005)
    body = {"model": "succ", "messages": [{"role": "user", "content": "!"}], "stream": True, "max_tokens": 4000}
    with (
        ThreadPoolExecutor(1) as pool,
        httpx.stream("POST", f"{server.base_url}/chat/completions", json=body) as running,
    ):
        events = (line for line in running.iter_lines() if line)
        next(events)
        long = pool.submit(server.complete, "a" * 1600, max_tokens=1)
        meanwhile = 0
        while not long.done():
            next(events)
            meanwhile += 1
        assert long.result().status_code == 200
    assert meanwhile > 90


def test_sch_02_preempted_streams_are_whole(serve: Serve, tiny_models: Path) -> None:
    """Six streams in a pool for two: preempted again and again, each is what it is alone, with its usage."""
    alone = serve(tiny_models / "tiny-llama")
    server = serve(tiny_models / "tiny-llama", engine={"num_blocks": 12, "block_size": 16, "max_batch": 6})
    fields = {"max_tokens": 60, "temperature": 0, "ignore_eos": True}
    way = Way("completions", stream=True)
    prompts = [f"Prompt number {number}" for number in range(6)]
    with ThreadPoolExecutor(6) as pool:
        answers = list(pool.map(lambda prompt: way.ask(server, prompt, **fields), prompts))
    for prompt, answer in zip(prompts, answers, strict=True):
        assert answer.told == way.ask(alone, prompt, **fields).told
        assert answer.usage["completion_tokens"] == 60
    assert server.metric("tl_engine_preemptions_total") > 0


PENALISED: list[dict[str, object]] = [
    {"temperature": 0},
    {"temperature": 0, "frequency_penalty": 1.5, "presence_penalty": 1},
    {"temperature": 0, "repetition_penalty": 1.3, "logit_bias": {"97": 2}},
    {"temperature": 0.8, "seed": 9},
    {"temperature": 0.9, "seed": 9, "top_p": 0.9, "frequency_penalty": 0.5},
]


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_spec_01_spec_03_spec_04_speculation_changes_nothing(serve: Serve, tiny_models: Path, way: Way) -> None:
    """With penalties, biases and seeds, alone and in company: the texts and log probabilities are those without drafts."""
    off = serve(tiny_models / "tiny-llama")
    on = serve(tiny_models / "tiny-llama", engine={"speculative": SpeculativeConfig(num_tokens=6)})
    asks = [(ask, fields) for ask in ("blue blue blue blue", "1 2 3 1 2 3 1 2") for fields in PENALISED]

    def answers(server: Server) -> list[object]:
        with ThreadPoolExecutor(5) as pool:
            extra = {"max_tokens": 40, "ignore_eos": True, **way.logprobs(top=1)}
            told = list(pool.map(lambda one: way.ask(server, one[0], **one[1], **extra).only, asks))
        return [(choice.text, choice.finish) for choice in told]

    assert answers(on) == answers(off)
    assert on.metric("tlserve_accepted_tokens_total") > 0


def test_q_03_the_queue_recovers_from_bursts(serve: Serve, succ_dir: Path) -> None:
    """Of twelve at once as many are served as fit, the same number in each burst, and the rest is told 429 with a time."""
    gate = Gate()
    server = serve(succ_dir, engine={"max_batch": 2}, queue_capacity=3, load=gate)
    served = []
    for _ in range(10):
        gate.is_open.clear()
        with ThreadPoolExecutor(12) as pool:
            burst = [pool.submit(server.chat, "a", max_tokens=2) for _ in range(12)]
            wait_until(lambda burst=burst: sum(future.done() for future in burst) == 9)  # type: ignore[misc]
            assert server.health.get("/metrics").status_code == server.api.get("/v1/models").status_code == 200
            gate.is_open.set()
        statuses = Counter(future.result().status_code for future in burst)
        served.append(statuses[200])
        assert statuses[200] + statuses[429] == 12
        wait_until(lambda: server.metric("tl_engine_queue_depth") == 0)
        assert server.chat("a", max_tokens=1).status_code == 200
    assert set(served) == {3}


def test_drn_06_who_waits_is_served_before_the_end(serve: Serve, succ_dir: Path) -> None:
    """One runs and three wait when the drain begins: all four get their whole answers."""
    server = serve(succ_dir, engine={"max_batch": 1}, step_delay=0.01)
    with ThreadPoolExecutor(4) as pool:
        asked = [
            pool.submit(server.chat, "a", max_tokens=15, temperature=0, stream=number % 2 == 0) for number in range(4)
        ]
        wait_until(lambda: server.metric("tl_engine_queue_depth") == 3)
        server.handle.drain()
        answers = [future.result() for future in asked]
    for number, answer in enumerate(answers):
        text = text_of(answer.text) if number % 2 == 0 else answer.json()["choices"][0]["message"]["content"]
        assert text == "bcdefghijklmnop"
    server.handle.join(5)


def test_hlt_01_probes_are_answered_under_load(smollm2: Server) -> None:
    """While long texts are tokenized and answers generated, no probe waits as long as Kubernetes would."""
    long = "lorem ipsum dolor sit amet " * 40_000
    slowest, is_over = 0.0, threading.Event()
    with ThreadPoolExecutor(8) as pool:
        busy: list[Any] = [pool.submit(smollm2.complete, long, max_tokens=1) for _ in range(4)]
        busy += [pool.submit(smollm2.chat, f"Story {number}", max_tokens=20) for number in range(4)]
        while not all(future.done() for future in busy):
            for client, path in ((smollm2.health, "/healthz"), (smollm2.health, "/readyz"), (smollm2.api, "/healthz")):
                started = time.monotonic()
                assert client.get(path, timeout=5).status_code == 200
                slowest = max(slowest, time.monotonic() - started)
            is_over.wait(0.02)
    assert {future.result().status_code for future in busy} == {200, 400}
    assert slowest < 1


def async_generators() -> Iterator[str]:
    """Every asynchronous generator of the sources that is no context manager."""
    for path in SOURCES.rglob("*.py"):
        for function in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(function, ast.AsyncFunctionDef):
                yields = any(isinstance(node, ast.Yield) for node in ast.walk(function))
                names = [ast.unparse(decorator) for decorator in function.decorator_list]
                if yields and "asynccontextmanager" not in names:
                    yield f"{path.name}:{function.lineno} {function.name}"


def test_trio_02_there_are_no_asynchronous_generators() -> None:
    """So none can hold a nursery or a cancel scope open over a yield, or wait for the garbage collector to be cleaned up."""
    assert list(async_generators()) == []
