"""The real model over real sockets, against what torch in float32 makes of the same file."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support import Serve, Server, text_of

pytestmark = pytest.mark.model

DATA = Path(__file__).resolve().parents[1] / "data"
CHATS = json.loads((DATA / "golden" / "smollm2-greedy.json").read_text())["greedy"]
EMBEDDINGS = json.loads((DATA / "golden" / "smollm2-embeddings.json").read_text())
TOKENISATIONS = json.loads((DATA / "text" / "smollm2-tokenize.json").read_text())
FORCED = json.loads((DATA / "golden" / "smollm2-teacher-forced.json").read_text())


@pytest.fixture(scope="module", params=["numba", "numpy"])
def server(request: pytest.FixtureRequest, smollm2_server: Server, serve_shared: Serve, smollm2_path: Path) -> Server:
    """The model behind each kind of kernels."""
    if request.param == "numba":
        return smollm2_server
    return serve_shared(smollm2_path, engine={"kernels": "numpy", "num_blocks": 256})


def post_chat(server: Server, messages: list[dict[str, str]], **fields: object) -> Any:
    response = server.api.post("/v1/chat/completions", json={"model": server.model, "messages": messages, **fields})
    assert response.status_code == 200, response.text
    return response.json()


@pytest.mark.parametrize("chat", CHATS, ids=range(len(CHATS)))
def test_greedy_answers_are_those_of_torch(
    request: pytest.FixtureRequest, server: Server, chat: dict[str, Any]
) -> None:
    """Text, prompt tokens, and every listed probability; in float32 the logarithms too, also of what is all but impossible."""
    is_float32 = request.node.callspec.params["server"] == "numpy"
    steps = chat["steps"]

    answer = post_chat(
        server, chat["messages"], temperature=0, max_tokens=len(steps), logprobs=True, top_logprobs=len(steps[0]["top"])
    )

    choice = answer["choices"][0]
    assert choice["message"]["content"] == chat["text"]
    assert answer["usage"]["prompt_tokens"] == len(chat["prompt_ids"])
    assert answer["usage"]["completion_tokens"] == len(steps)
    for step, entry in zip(steps, choice["logprobs"]["content"], strict=False):
        ours = [alternative["logprob"] for alternative in entry["top_logprobs"]]
        theirs = [logprob for _, logprob in step["top"]]
        np.testing.assert_allclose(np.exp(ours), np.exp(theirs), atol=1e-3)
        if is_float32:
            np.testing.assert_allclose(ours, theirs, atol=1e-3)


def test_the_capital_of_france(server: Server) -> None:
    """The first question that everybody asks."""
    answer = post_chat(server, [{"role": "user", "content": "What is the capital of France?"}], temperature=0)
    assert "Paris" in answer["choices"][0]["message"]["content"]
    assert answer["choices"][0]["finish_reason"] == "stop"


@pytest.mark.parametrize("engine", [{"kernels": "numpy"}, {"weights": "f32"}], ids=["numpy", "numba in float32"])
def test_a_given_text_has_the_logprobs_of_torch(serve: Serve, smollm2_path: Path, engine: dict[str, Any]) -> None:
    """The next token's log probabilities after parts of a text, within 0.001."""
    server = serve(smollm2_path, engine={"num_blocks": 64, **engine})
    for cut in (5, 60, len(FORCED["ids"]) - 1):
        body = {"model": server.model, "prompt": FORCED["ids"][:cut], "max_tokens": 1, "logprobs": 5, "temperature": 0}
        top = server.api.post("/v1/completions", json=body).json()["choices"][0]["logprobs"]["top_logprobs"][0]
        expected = [logprob for _, logprob in FORCED["positions"][cut - 1]["top"]]
        np.testing.assert_allclose(sorted(top.values(), reverse=True)[:5], expected, atol=1e-3)


@pytest.mark.parametrize("case", TOKENISATIONS, ids=range(len(TOKENISATIONS)))
def test_tokenisations_are_those_of_the_reference(smollm2_server: Server, case: dict[str, Any]) -> None:
    """What a gateway counts is what the model sees."""
    body = {"model": smollm2_server.model, "text": case["text"]}
    document = smollm2_server.api.post("/v1/tokenize", json=body).json()
    assert (document["tokens"], document["count"]) == (case["ids"], len(case["ids"]))


def test_embeddings_are_those_of_torch(server: Server) -> None:
    """The first numbers and the sum of each vector, within 0.0001."""
    body = {"model": server.model, "input": [entry["input"] for entry in EMBEDDINGS]}
    answer = server.api.post("/v1/embeddings", json=body).json()
    for entry, item in zip(EMBEDDINGS, answer["data"], strict=True):
        np.testing.assert_allclose(item["embedding"][:16], entry["embedding_first_16"], atol=1e-4)
        assert sum(item["embedding"]) == pytest.approx(entry["sum"], abs=1e-4)


def test_eight_streams_equal_the_serial_answers(smollm2_server: Server) -> None:
    """All conversations at once, streamed, give what each gives alone."""

    def stream(chat: dict[str, Any]) -> str:
        fields = {"temperature": 0, "max_tokens": len(chat["steps"]), "stream": True}
        body = {"model": smollm2_server.model, "messages": chat["messages"], **fields}
        return text_of(smollm2_server.api.post("/v1/chat/completions", json=body).text)

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(stream, CHATS)) == [chat["text"] for chat in CHATS]
