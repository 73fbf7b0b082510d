"""What the schema of runtime.toml accepts is what the server accepts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jsonschema
import pytest
import tomli
from hypothesis import assume, given
from hypothesis import strategies as st

from tlserve.config import ServeConfig, engine_keys
from tlserve.errors import ConfigError
from tlserve.schema import config_schema

ROOT = Path(__file__).resolve().parents[1]

VALIDATOR = jsonschema.Draft202012Validator(config_schema())


def test_the_shipped_file_is_valid() -> None:
    """An editor that knows the schema has nothing to say about our own runtime.toml."""
    VALIDATOR.check_schema(config_schema())
    VALIDATOR.validate(tomli.loads((ROOT / "runtime.toml").read_text()))


def test_every_key_is_described() -> None:
    """An editor can show what each key does."""
    properties = config_schema()["properties"]["engine"]["properties"]
    assert set(properties) == set(engine_keys())
    assert all(schema["description"] for schema in properties.values())


@pytest.mark.parametrize(
    "table",
    [
        {"engine": {}},
        {"engine": {"model_dir": "m", "max_batc": 3}},
        {"engine": {"model_dir": "m", "kernels": "cuda"}},
        {"engine": {"model_dir": "m", "queue_capacity": "8"}},
        {"engine": {"model_dir": "m", "block_size": 0}},
        {"engine": {"model_dir": "m", "kv_memory": "lots"}},
        {"engine": {"model_dir": "m", "speculative": {"num_tokens": 99}}},
        {"engines": {"model_dir": "m"}},
    ],
)
def test_mistakes_are_found(table: dict[str, Any]) -> None:
    """What the server would refuse at its start is refused before the rollout."""
    assert not VALIDATOR.is_valid(table)


NUMBERS = [name for name, field in engine_keys().items() if field.type in (int, float, int | None)]


@given(name=st.sampled_from(NUMBERS), value=st.integers(-2, 2000) | st.floats(-2, 2000) | st.booleans())
def test_numbers_agree_with_the_server(name: str, value: float) -> None:
    """For every numeric key, the schema and the loader draw the same line."""
    assume(not repr(value).endswith(".0"))  # To JSON 2.0 is a whole number, to TOML it is not.
    assert is_loaded(f"{name} = {str(value).lower()}") == VALIDATOR.is_valid(
        {"engine": {"model_dir": "m", name: value}}
    )


def is_loaded(line: str) -> bool:
    try:
        ServeConfig.from_toml(f"[engine]\nmodel_dir = 'm'\n{line}")
    except ConfigError:
        return False
    return True
