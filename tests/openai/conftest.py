"""OpenAI's own schemas, and short ways to send a request body to a parser."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from tlserve.openai.errors import ApiError

CONTRACT = Path(__file__).resolve().parents[1] / "data" / "openai-subset.json"
Validate = Callable[[str, object], None]
Refusal = Callable[..., ApiError]


def without_nullable(schema: Any) -> Any:
    """OpenAPI's older ``nullable: true`` said in the words of JSON Schema, which knows no such keyword."""
    if isinstance(schema, list):
        return [without_nullable(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    plain = {name: without_nullable(member) for name, member in schema.items()}
    return {"anyOf": [plain, {"type": "null"}]} if plain.pop("nullable", False) is True else plain


@pytest.fixture(scope="session")
def validate() -> Validate:
    """Hold a document against a schema of OpenAI's API description; raises jsonschema's ValidationError."""
    contract = without_nullable(json.loads(CONTRACT.read_text("utf-8")))

    def check(name: str, document: object) -> None:
        root = {"$ref": f"#/components/schemas/{name}", **contract}
        Draft202012Validator(root).validate(json.loads(json.dumps(document, allow_nan=False)))

    return check


@pytest.fixture(scope="session")
def refusal() -> Refusal:
    """The ApiError that a parser raises for the members given; fails the test when it accepts them."""

    def send(parse: Callable[..., object], body: dict[str, object] | bytes, **options: str) -> ApiError:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        with pytest.raises(ApiError) as caught:
            parse(data, **options)
        return caught.value

    return send
