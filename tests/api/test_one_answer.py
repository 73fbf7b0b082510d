"""One request has one answer, to the last bit of its log probabilities, whatever else the server does."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import pytest

from support import Serve, Server, chunks_of
from tlserve.config import SpeculativeConfig

pytestmark = pytest.mark.model

QUESTION = "List the numbers from 1 to 12, then say what a lighthouse is for. 1, 2, 3, 1, 2, 3, 1, 2, 3"
PARAMETERS: dict[str, dict[str, object]] = {
    "greedy": {"temperature": 0},
    "sampled": {"temperature": 0.9, "top_p": 0.95, "seed": 2**63 - 11},
    "penalised": {"temperature": 0.7, "seed": -3, "frequency_penalty": 0.4, "repetition_penalty": 1.1},
}


def ask(server: Server, parameters: dict[str, object], content: str = QUESTION, **fields: object) -> str:
    """The tokens of an answer with their log probabilities, as the JSON text that came over the wire."""
    response = server.chat(
        content, max_tokens=32, logprobs=True, top_logprobs=3, ignore_eos=True, **parameters, **fields
    )
    assert response.status_code == 200, response.text
    if fields.get("stream"):
        choices = [choice for chunk in chunks_of(response.text) for choice in chunk["choices"]]
        entries = [entry for choice in choices for entry in (choice.get("logprobs") or {}).get("content", [])]
    else:
        entries = response.json()["choices"][0]["logprobs"]["content"]
    return json.dumps(entries)


@pytest.fixture(params=PARAMETERS)
def parameters(request: pytest.FixtureRequest) -> dict[str, object]:
    return PARAMETERS[request.param]


@pytest.fixture(scope="module")
def alone(serve_shared: Serve, smollm2_path: Path) -> dict[str, str]:
    """What a server says that does nothing else and keeps nothing."""
    server = serve_shared(smollm2_path, engine={"prefix_cache": "off", "num_blocks": 256})
    return {json.dumps(parameters): ask(server, parameters) for parameters in PARAMETERS.values()}


@pytest.fixture
def expected(alone: dict[str, str], parameters: dict[str, object]) -> str:
    return alone[json.dumps(parameters)]


def test_from_the_prefix_cache(smollm2_server: Server, parameters: dict[str, object], expected: str) -> None:
    """Computed the first time or found the second time."""
    assert [ask(smollm2_server, parameters) for _ in range(2)] == [expected] * 2
    assert smollm2_server.metric("tl_engine_prefix_cache_hit_ratio") > 0


def test_streamed(smollm2_server: Server, parameters: dict[str, object], expected: str) -> None:
    """As events or as one document."""
    assert ask(smollm2_server, parameters, stream=True) == expected


def test_beside_others(smollm2_server: Server, parameters: dict[str, object], expected: str) -> None:
    """Among fifteen other requests of all lengths."""
    with ThreadPoolExecutor(18) as pool:
        others = [
            pool.submit(ask, smollm2_server, {"temperature": 1, "seed": i}, f"{i} " + "word " * 9 * i)
            for i in range(15)
        ]
        answers = [pool.submit(ask, smollm2_server, parameters) for _ in range(3)]
        assert [answer.result() for answer in answers] == [expected] * 3
        assert not wait(others).not_done
        assert all(other.result() for other in others)


OTHER_ENGINES: dict[str, dict[str, Any]] = {
    "one thread": {"threads": 1},
    "small chunks": {"prefill_chunk": 7, "prefix_cache": "off"},
    "small steps": {"max_batch_tokens": 3, "max_batch": 2},
    "speculation": {"speculative": SpeculativeConfig(num_tokens=5)},
}


@pytest.mark.parametrize("engine", OTHER_ENGINES)
def test_however_the_engine_is_set_up(serve: Serve, smollm2_path: Path, alone: dict[str, str], engine: str) -> None:
    """Threads, chunks, budgets and speculation decide how fast an answer comes, and nothing else."""
    server = serve(smollm2_path, engine={"num_blocks": 256, **OTHER_ENGINES[engine]})
    for parameters in PARAMETERS.values():
        assert ask(server, parameters) == alone[json.dumps(parameters)]
    if engine == "speculation":
        assert server.metric("tlserve_accepted_tokens_total") > 0


def test_after_preemption(serve: Serve, smollm2_path: Path, alone: dict[str, str]) -> None:
    """A pool that is too small for everybody sends requests back to wait, and their answers stay what they were."""
    server = serve(smollm2_path, engine={"num_blocks": 12, "prefix_cache": "off"})
    with ThreadPoolExecutor(6) as pool:
        for parameters in PARAMETERS.values():
            answers = [pool.submit(ask, server, parameters) for _ in range(6)]
            assert {answer.result() for answer in answers} == {alone[json.dumps(parameters)]}
    assert server.metric("tl_engine_preemptions_total") > 0
