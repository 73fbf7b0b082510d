"""What tests of the running server share: a model that counts, a server with its clients, readers for its streams."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Protocol

import attrs
import httpx
import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file

from contract_check import CheckedTransport
from tlserve.bridge.client import Loader
from tlserve.config import EngineConfig, ServeConfig
from tlserve.engine.load import LoadedEngine, load_engine
from tlserve.engine.progress import Report
from tlserve.model.batch import ForwardBatch
from tlserve.model.runner import ModelRunner
from tlserve.server.handle import ServerHandle, spawn

SUCC_TEMPLATE = "{% for m in messages %}{{ m.content }}{% endfor %}"


def shift_logits(step: int) -> NDArray[Any]:
    """Logits [256, 256] of a bigram whose byte i is followed by i + step."""
    return np.roll(np.eye(256, dtype=np.float32) * 50, step, axis=1)


def write_bigram(directory: Path, logits: NDArray[Any], template: str | None = SUCC_TEMPLATE) -> Path:
    """A bigram folder; without a template it gets the default one."""
    directory.mkdir(parents=True)
    (directory / "config.json").write_text(json.dumps({"model_type": "bigram", "vocab_size": 256}))
    if template is not None:
        (directory / "generation_config.json").write_text(json.dumps({"chat_template": template}))
    save_file({"logits": np.ascontiguousarray(logits, dtype=np.float32)}, directory / "model.safetensors")
    return directory


Serve = Callable[..., "Server"]


@attrs.frozen
class Server:
    """A running server and a client for each of its ports, which holds every answer against the API description."""

    handle: ServerHandle
    model: str
    api: httpx.Client
    health: httpx.Client

    @property
    def base_url(self) -> str:
        """Where the openai client goes."""
        return f"http://{self.handle.http_addr}/v1"

    def chat(self, content: str, **fields: object) -> httpx.Response:
        """POST a chat of one user message."""
        body = {"model": self.model, "messages": [{"role": "user", "content": content}], **fields}
        return self.api.post("/v1/chat/completions", json=body)

    def complete(self, prompt: object, **fields: object) -> httpx.Response:
        """POST a text completion."""
        return self.api.post("/v1/completions", json={"model": self.model, "prompt": prompt, **fields})

    def metric(self, name: str) -> float:
        """The value of one series, such as ``tl_engine_kv_blocks{state="used"}``."""
        return series(self.health.get("/metrics").text, name)


def start_server(
    stack: ExitStack,
    directory: Path,
    *,
    engine: dict[str, Any] | None = None,
    wait: bool = True,
    load: Loader = load_engine,
    is_joined: bool = True,
    **fields: Any,
) -> Server:
    """Start a server on free ports of the loopback interface; ``stack`` drains and joins it.

    A test of a server that fails joins it itself, with ``is_joined=False``.
    """
    config = attrs.evolve(ServeConfig.for_model(directory), engine=EngineConfig(**(engine or {})), drain_timeout_s=5.0)
    config = attrs.evolve(config, **fields)
    handle = spawn(config, wait=wait, load=load)
    if is_joined:
        stack.callback(handle.join)
    stack.callback(handle.drain)
    api, health = (stack.enter_context(checked_client(address)) for address in (handle.http_addr, handle.health_addr))
    return Server(handle, config.model_id, api, health)


def checked_client(address: str) -> httpx.Client:
    """A client for ``host:port`` that holds every answer against the API description."""
    return httpx.Client(base_url=f"http://{address}", timeout=60, transport=CheckedTransport())


def events_of(body: str) -> list[str]:
    """The payloads of an SSE body, checking its framing to the byte."""
    assert body.endswith("\n\n")
    events = [event for event in body.removesuffix("\n\n").split("\n\n") if event != ": ping"]
    assert all(event.startswith("data: ") and "\n" not in event for event in events)
    return [event.removeprefix("data: ") for event in events]


def chunks_of(body: str) -> list[dict[str, Any]]:
    """The chunks of an SSE body, which must end with [DONE]."""
    *chunks, done = events_of(body)
    assert done == "[DONE]"
    return [json.loads(chunk) for chunk in chunks]


def text_of(body: str) -> str:
    """The concatenated deltas of a chat stream."""
    return "".join(choice["delta"].get("content", "") for chunk in chunks_of(body) for choice in chunk["choices"])


def series(exposition: str, name: str) -> float:
    """The value of one series in the text of /metrics."""
    for line in exposition.splitlines():
        if line.startswith(f"{name} "):
            return float(line.rpartition(" ")[2])
    raise AssertionError(f"no series {name}")


class Measured(Protocol):
    """A server whose series can be read."""

    def metric(self, name: str) -> float:
        """The value of one series."""


def is_quiet(server: Measured) -> bool:
    """Whether the engine holds nothing for anybody: nothing runs, waits, or has a block."""
    names = ("tl_engine_active_sequences", "tl_engine_queue_depth", 'tl_engine_kv_blocks{state="used"}')
    return all(server.metric(name) == 0 for name in names)


def wait_until(condition: Callable[[], bool], seconds: float = 5.0) -> None:
    """Poll, since a scrape is the only way to look into another thread's server."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        threading.Event().wait(0.005)


class Gate:
    """Loads an engine whose forward passes can be held up, or made to fail, by the test."""

    def __init__(self) -> None:
        self.is_broken = False
        self.is_open = threading.Event()
        self.is_open.set()
        self.is_in_step = threading.Event()

    def __call__(self, config: ServeConfig, report: Report) -> LoadedEngine:
        loaded = load_engine(config, report)
        engine: Any = loaded.engine
        engine._runner = GatedRunner(loaded.engine.runner, self)
        return loaded


class GatedRunner:
    """A runner in front of a real one."""

    def __init__(self, runner: ModelRunner, gate: Gate) -> None:
        self._inner = runner
        self._gate = gate

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def forward(self, batch: ForwardBatch) -> NDArray[np.float32]:
        """Wait at the gate, then compute."""
        self._gate.is_in_step.set()
        assert self._gate.is_open.wait(30)
        if self._gate.is_broken:
            raise MemoryError("no memory for this batch")
        return self._inner.forward(batch)
