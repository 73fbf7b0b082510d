"""POST /v1/embeddings, on the way in."""

from __future__ import annotations

import json

import pytest

from tlserve.openai.errors import ApiError
from tlserve.openai.requests import parse_embeddings

from .conftest import Refusal


def body(value: object = "Hi", **members: object) -> bytes:
    """A minimal embeddings request with ``members`` added."""
    return json.dumps({"model": "m", "input": value, **members}).encode()


def test_model_and_inputs_unpack() -> None:
    """The two things every embedder needs."""
    model, inputs = parse_embeddings(body(["a", "b"]))
    assert (model, inputs) == ("m", ("a", "b"))


@pytest.mark.parametrize(
    ("value", "inputs"),
    [("a", ("a",)), (["a", "a"], ("a", "a")), ([15, 27], ((15, 27),)), ([[15, 27], [301]], ((15, 27), (301,)))],
)
def test_inputs_come_in_four_forms(value: object, inputs: object) -> None:
    """Order and duplicates are kept."""
    assert parse_embeddings(body(value)).inputs == inputs


@pytest.mark.parametrize("value", [None, "", [], ["a", ""], [15, "a"], [[15], []], [True], 5, {}, ["a"] * 2049])
def test_other_inputs_are_refused(value: object, refusal: Refusal) -> None:
    """Nothing to embed, or too much."""
    error = refusal(parse_embeddings, body(value))
    assert (error.status, error.param) == (400, "input")


def test_numbers_are_the_default_encoding(refusal: Refusal) -> None:
    """The official clients ask for base64 themselves."""
    assert parse_embeddings(body()).encoding_format == "float"
    assert parse_embeddings(body(encoding_format="base64")).encoding_format == "base64"
    assert refusal(parse_embeddings, body(encoding_format="hex")).param == "encoding_format"


@pytest.mark.parametrize(("dimensions", "status"), [(16, 422), (0, 400), ("16", 400)])
def test_dimensions_are_not_served(dimensions: object, status: int, refusal: Refusal) -> None:
    """Never ignored: a vector of another length would break the client's index."""
    error = refusal(parse_embeddings, body(dimensions=dimensions))
    assert (error.status, error.param) == (status, "dimensions")


def test_token_ids_are_held_against_the_vocabulary() -> None:
    """Once the model is known."""
    with pytest.raises(ApiError) as caught:
        parse_embeddings(body([[1], [99_999_999]])).check_vocabulary(49_152)
    assert (caught.value.status, caught.value.param) == (400, "input")


def test_members_without_effect_are_collected() -> None:
    """As everywhere."""
    assert parse_embeddings(body(user="u", foo=1)).ignored == ("foo",)
