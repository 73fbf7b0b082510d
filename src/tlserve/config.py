"""What the operator decides: runtime.toml and its environment overrides, as frozen values.

Only reads and checks; finding out what the machine has (threads, memory) is left to those who use the values.
Every key is declared once, here, with its default, its limits and its line of documentation.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

import attrs
import tomli
from attrs import frozen

from tlserve.address import ListenAddress
from tlserve.errors import ConfigError
from tlserve.options import option, options_of, refuse_unknown, structure_table, value_of_text

ENV_PREFIX = "TL_ENGINE__"

_VERSION_FOLDER = re.compile(r"v\d+(\.\d+)*")


@frozen(kw_only=True)
class SpeculativeConfig:
    """``[engine.speculative]``: drafts that one forward pass verifies."""

    method: Literal["prompt_lookup", "off"] = option(
        "prompt_lookup", doc="where drafts come from; `off` turns speculation off"
    )
    num_tokens: int = option(4, ge=1, le=32, doc="the longest draft, in tokens")
    ngram_max: int = option(3, ge=1, le=16, doc="the longest run of tokens looked up in what is known so far")
    ngram_min: int = option(2, ge=1, le=16, doc="the shortest run of tokens looked up")


@frozen(kw_only=True)
class EngineConfig:
    """How the engine runs: batching, KV blocks, kernels."""

    prefix_cache: Literal["off", "radix"] = option(
        "radix", doc="whether requests with the same beginning share KV blocks"
    )
    block_size: int = option(16, ge=1, le=512, doc="tokens in a KV block")
    prefill_chunk: int = option(512, ge=1, doc="the most prompt tokens of one request in one step")
    max_batch: int = option(32, ge=1, le=1024, doc="the most requests that run at once")
    max_batch_tokens: int = option(128, ge=1, doc="token budget of one step: decodes first, then prefill chunks")
    num_blocks: int | None = option(None, ge=1, doc="KV blocks in the pool; unset: as many as `kv_memory` holds")
    kv_memory: int | None = option(
        None, ge=1, size=True, doc="memory for KV blocks, such as `512MiB`; unset: sized from the memory limit"
    )
    max_model_len: int | None = option(None, ge=1, doc="longest prompt plus answer, in tokens; unset: the model's own")
    threads: int | None = option(None, ge=1, le=256, doc="threads of a forward pass; unset: what the CPU quota allows")
    kernels: Literal["numba", "numpy"] = option(
        "numba", doc="`numba` is compiled and fast; `numpy` is the plain reference"
    )
    weights: Literal["auto", "q4", "q8", "f32"] = option("auto", doc="`auto` keeps the file's own precision")
    speculative: SpeculativeConfig | None = option(None, doc="a table of its own; absent: no speculation")


@frozen(kw_only=True)
class ServeConfig:
    """Everything that ``[engine]`` of runtime.toml says, and what embedding code may add."""

    model_dir: Path = option(doc="a GGUF file, a Hugging Face folder or a bigram folder")
    model_id: str = option(
        attrs.Factory(lambda self: default_model_id(self.model_dir), takes_self=True),
        doc="the name that clients ask for; unset: the folder's name, or its parent's for a version folder like `v3`",
    )
    engine: EngineConfig = attrs.field(factory=EngineConfig)
    model_source: str | None = option(None, doc="where to fetch the model from when `model_dir` is not there yet")
    api_tier: Literal["engine", "full"] = option(
        "engine", doc="`full` also serves n > 1, echo, text content parts, and values that ask for nothing"
    )
    http_listen: str = option(":8000", check=ListenAddress.parse, doc="address of the API")
    health_listen: str = option(":9464", check=ListenAddress.parse, doc="address of health, readiness and metrics")
    queue_capacity: int = option(64, ge=1, le=100_000, doc="requests that may wait; one more is answered 429")
    queue_deadline_ms: int = option(30_000, ge=1, doc="longest wait for KV blocks, in milliseconds; then 503")
    quiesce_s: float = option(
        0.0, ge=0, doc="how long a stopping server still takes requests while /readyz says 503, for slow probes"
    )
    drain_timeout_s: float = option(30.0, ge=0, doc="how long a stopping server lets running requests finish")
    keep_alive_s: float = option(75.0, ge=1, doc="how long an idle connection stays open; above your proxy's idle time")
    send_timeout_s: float = option(20.0, ge=1, doc="how long a client may stop reading before it is cut off")
    ping_interval_s: float = option(15.0, ge=0.1, doc="a stream without a token for this long gets a comment line")
    max_body_bytes: int = option(
        4 * 1024**2, ge=1024, size=True, doc="largest request body; a larger one is answered 413"
    )
    read_timeout_s: float = option(
        20.0, ge=0.1, doc="how long the head of a request may take to arrive, and then its body"
    )
    max_connections: int = option(
        2048, ge=1, doc="open connections of the API; one more closes the one that has idled for longest"
    )
    api_keys_file: Path | None = option(
        None, doc="a file of API keys; with it every request but probes needs one; unset: anybody may ask"
    )
    tls_certfile: Path | None = option(None, doc="certificate chain of the API port, PEM; unset: plain HTTP")
    tls_keyfile: Path | None = option(None, doc="private key of `tls_certfile`, PEM")
    step_watchdog_s: float = option(
        60.0, ge=0.1, doc="a step that takes longer than this makes /readyz say 503 `stalled` until it ends"
    )
    metrics_compat: Literal["off", "vllm"] = option(
        "off", doc="`vllm` adds the metric names that endpoint pickers and scalers know, also on the API port"
    )
    tracing: Literal["off", "otlp"] = option(
        "off",
        doc="`otlp` sends a trace of each request to the collector that the `OTEL_*` variables name; needs `tlserve[otel]`",
    )
    step_delay: float = option(
        0.0, ge=0, le=10, doc="seconds slept after every step; for rehearsals, never in production"
    )
    handle_signals: bool = True

    @classmethod
    def for_model(cls, directory: Path | str) -> ServeConfig:
        """Defaults for one model, on ports of the system's choosing on the loopback interface: for tests and notebooks."""
        path = Path(directory)
        return cls(model_dir=path, http_listen="127.0.0.1:0", health_listen="127.0.0.1:0")

    @classmethod
    def from_toml(cls, text: str, env: Iterable[tuple[str, str]] | Mapping[str, str] = ()) -> ServeConfig:
        """Read the text of a runtime.toml; variables named ``TL_ENGINE__<KEY>`` override its keys.

        Raises:
            ConfigError: the text is not TOML, or a key or value is not allowed.
        """
        try:
            document = tomli.loads(text)
        except tomli.TOMLDecodeError as error:
            raise ConfigError(f"not valid TOML: {error}") from None
        refuse_unknown(document, ["engine"], where="")
        table = document.get("engine", {})
        if not isinstance(table, dict):
            raise ConfigError(f"engine = {table!r} is not a table; write [engine]")
        variables = env.items() if isinstance(env, Mapping) else env
        for name, value in sorted(variables):
            if name.startswith(ENV_PREFIX):
                _override(table, name, value)
        return _from_table(table)

    @classmethod
    def load(cls, path: Path | str) -> ServeConfig:
        """Read a file, with the overrides of this process's environment.

        Raises:
            ConfigError: the file cannot be read, or says something that is not allowed.
        """
        try:
            text = Path(path).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
            raise ConfigError(f"cannot read the configuration file {path}: {reason}") from None
        try:
            return cls.from_toml(text, os.environ)
        except ConfigError as error:
            raise ConfigError(f"{path}: {error}") from None


def engine_keys() -> dict[str, attrs.Attribute[Any]]:
    """Every key of ``[engine]`` with its declaration, in the order of the documentation."""
    return options_of(ServeConfig) | options_of(EngineConfig)


def default_model_id(model_dir: Path) -> str:
    """The folder's name, its parent's when the folder is a version such as ``v3``; a file's name without its ending."""
    path = model_dir.absolute()
    if path.suffix == ".gguf":
        return path.stem
    return path.parent.name if _VERSION_FOLDER.fullmatch(path.name) else path.name


def default_model_dir(source: str) -> Path:
    """Where a model goes that is fetched without being told where: ``models/<name>`` under the working directory."""
    name = re.split(r"[=#@]", source.partition(":")[2] or source)[0].strip("/")
    return Path("models") / (name.rsplit("/", 1)[-1] or "model")


def _override(table: dict[str, Any], name: str, text: str) -> None:
    """Set the key that the environment variable ``name`` stands for; two underscores lead into a table."""
    key, _, inner = name.removeprefix(ENV_PREFIX).lower().partition("__")
    target, known, where = table, engine_keys(), "engine."
    if inner and key == "speculative" and isinstance(table.get(key, {}), dict):
        target, known, where = table.setdefault(key, {}), options_of(SpeculativeConfig), "engine.speculative."
        key = inner
    try:
        refuse_unknown({key: text}, known, where=where)
        target[key] = value_of_text(known[key], text)
    except ConfigError as error:
        raise ConfigError(f"environment variable {name}: {error}") from None


def _from_table(table: dict[str, Any]) -> ServeConfig:
    refuse_unknown(table, engine_keys(), where="engine.")
    if "model_dir" not in table and isinstance(source := table.get("model_source"), str):
        table = {"model_dir": str(default_model_dir(source)), **table}
    names = options_of(EngineConfig)
    engine = structure_table(EngineConfig, {k: v for k, v in table.items() if k in names}, where="engine.")
    rest = {k: v for k, v in table.items() if k not in names}
    config = structure_table(ServeConfig, rest, where="engine.", engine=engine)
    _check_together(config)
    return config


def _check_together(config: ServeConfig) -> None:
    """Refuse values that are fine one by one and wrong together."""
    api, health = ListenAddress.parse(config.http_listen), ListenAddress.parse(config.health_listen)
    if api.port == health.port != 0 and api.host == health.host:
        raise ConfigError(
            f"engine.http_listen and engine.health_listen are both {api}; give the health server a port of its own"
        )
    speculative = config.engine.speculative
    if speculative is not None and speculative.ngram_min > speculative.ngram_max:
        raise ConfigError(
            f"engine.speculative.ngram_min = {speculative.ngram_min} is above ngram_max = {speculative.ngram_max}"
        )
    if (config.tls_certfile is None) != (config.tls_keyfile is None):
        missing = "tls_keyfile" if config.tls_keyfile is None else "tls_certfile"
        raise ConfigError(
            f"engine.{missing} is not set, but the other half of the pair is; TLS needs both, plain HTTP neither"
        )
    if config.engine.num_blocks is not None and config.engine.kv_memory is not None:
        raise ConfigError("engine.num_blocks and engine.kv_memory both size the KV pool; set one of them")
