"""Vectors: encodings, inputs in four forms, order, and independence of company."""

from __future__ import annotations

import base64
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import numpy as np
import pytest
from numpy.typing import NDArray

from support import Server


def post(server: Server, given: object, **fields: object) -> httpx.Response:
    """An embeddings request."""
    return server.api.post("/v1/embeddings", json={"model": server.model, "input": given, **fields})


def vectors(server: Server, given: object) -> NDArray[Any]:
    """The vectors [inputs, dim] in the order of their indices, which must be the order of the list."""
    document = post(server, given).json()
    assert [item["index"] for item in document["data"]] == list(range(len(document["data"])))
    return np.array([item["embedding"] for item in document["data"]], dtype=np.float32)


def test_emb_01_the_encodings_hold_the_same_numbers(llama: Server) -> None:
    """base64 is little-endian float32; a list is the default; anything else is a 400."""
    as_list = vectors(llama, "hello")[0]
    packed = post(llama, "hello", encoding_format="base64").json()["data"][0]["embedding"]
    np.testing.assert_array_equal(np.frombuffer(base64.b64decode(packed), dtype="<f4"), as_list)
    assert np.linalg.norm(as_list) == pytest.approx(1, abs=1e-5)
    np.testing.assert_array_equal(vectors(llama, "hello"), [as_list])
    for wrong in ("hex", "", 5, ["float"]):
        assert post(llama, "hello", encoding_format=wrong).json()["error"]["param"] == "encoding_format"


@pytest.mark.parametrize("given", [[15, 27, 100], [[15, 27], [100]], "\x0f\x1b", ["\x0f\x1b", "d"]], ids=str)
def test_emb_02_texts_and_ids_are_the_same(llama: Server, given: Any) -> None:
    """A list of ids is one input, a list of lists is several; a text is its tokens."""
    document = post(llama, given).json()
    nested = [given] if isinstance(given, str) or isinstance(given[0], int) else given
    assert len(document["data"]) == len(nested)
    ids = [list(item.encode()) if isinstance(item, str) else item for item in nested]
    assert document["usage"] == {"prompt_tokens": sum(map(len, ids)), "total_tokens": sum(map(len, ids))}
    np.testing.assert_array_equal(vectors(llama, given), vectors(llama, ids))


@pytest.mark.parametrize(
    "given",
    [
        *("", [], ["a", ""], [""], [[]], [[15], []], [15, "a"], ["a", 15]),
        *([99999999], [[15], [99999999]], [-1], [1.5], [True], None, {}, 5, [None], [{}], ["a"] * 2049),
    ],
    ids=lambda value: str(value)[:20],
)
def test_emb_02_emb_06_other_inputs_are_refused(llama: Server, given: object) -> None:
    """400 that names the input, and the next request is served."""
    error = (answer := post(llama, given)).json()["error"]
    assert (answer.status_code, error["param"]) == (400, "input")
    assert post(llama, "ok").status_code == 200


def test_emb_02_an_input_longer_than_the_context_is_refused(llama: Server) -> None:
    """With both numbers."""
    limit = llama.api.get("/v1/models").json()["data"][0]["max_model_len"]
    error = (answer := post(llama, ["a", "a" * (limit + 1)])).json()["error"]
    assert (answer.status_code, error["code"], error["param"]) == (400, "context_length_exceeded", "input")
    assert str(limit) in error["message"]
    assert str(limit + 1) in error["message"]


def test_emb_03_emb_04_order_and_batch_do_not_matter(llama: Server) -> None:
    """Each vector is the one that its text gets alone, at its own place, however many share a request; equal texts agree."""
    texts = [f"{number} " + "word " * (number * 7 % 40) for number in range(70)] + ["same", "same"]
    alone = np.concatenate([vectors(llama, text) for text in texts])
    np.testing.assert_array_equal(alone[-1], alone[-2])
    for size in (2, 16, 72):
        batches = [vectors(llama, texts[first : first + size]) for first in range(0, len(texts), size)]
        np.testing.assert_allclose(np.concatenate(batches), alone, atol=1e-6)


def test_emb_04_streams_beside_them_do_not_matter(llama: Server) -> None:
    """Vectors computed between the steps of running answers are the same, and so are the answers."""
    alone = vectors(llama, "the text")
    answer = llama.chat("a", max_tokens=40, temperature=0, ignore_eos=True).json()["choices"]
    with ThreadPoolExecutor(4) as pool:
        running = [pool.submit(llama.chat, "a", max_tokens=40, temperature=0, ignore_eos=True) for _ in range(4)]
        for _ in range(5):
            np.testing.assert_array_equal(vectors(llama, "the text"), alone)
    assert all(future.result().json()["choices"] == answer for future in running)


@pytest.mark.parametrize(("dimensions", "status"), [(16, 422), (1_000_000, 422), (0, 400), (-1, 400), ("16", 400)])
def test_emb_05_dimensions_are_refused(llama: Server, dimensions: object, status: int) -> None:
    """Never ignored: a vector of another length than asked for would poison an index."""
    error = (answer := post(llama, "x", dimensions=dimensions)).json()["error"]
    assert (answer.status_code, error["param"]) == (status, "dimensions")


def test_emb_other_models_are_not_found(llama: Server) -> None:
    """404, as on the other routes."""
    answer = llama.api.post("/v1/embeddings", json={"model": "nope", "input": "x"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "model_not_found")
