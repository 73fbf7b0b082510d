"""tlserve: an OpenAI-compatible inference server for language models on the CPU.

The public names below are loaded when they are first used, so that ``import tlserve`` costs next to nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tlserve.config import EngineConfig as EngineConfig
    from tlserve.config import ServeConfig as ServeConfig
    from tlserve.config import SpeculativeConfig as SpeculativeConfig
    from tlserve.decode.params import SamplingParams as SamplingParams
    from tlserve.engine.embedding import pool_embedding as pool_embedding
    from tlserve.engine.engine import Engine as Engine
    from tlserve.engine.messages import EngineStats as EngineStats
    from tlserve.engine.messages import FinishReason as FinishReason
    from tlserve.engine.messages import GenRequest as GenRequest
    from tlserve.engine.messages import TokenOut as TokenOut
    from tlserve.errors import TlserveError as TlserveError
    from tlserve.openai.errors import ApiError as ApiError
    from tlserve.openai.requests import GenSpec as GenSpec
    from tlserve.openai.requests import parse_chat as parse_chat
    from tlserve.openai.requests import parse_completion as parse_completion
    from tlserve.openai.requests import parse_embeddings as parse_embeddings
    from tlserve.openai.requests import parse_tokenize as parse_tokenize
    from tlserve.openai.sse import DONE as DONE
    from tlserve.openai.sse import PING as PING
    from tlserve.openai.sse import event as event
    from tlserve.server.handle import ServerHandle as ServerHandle
    from tlserve.server.handle import run as run
    from tlserve.server.handle import spawn as spawn
    from tlserve.server.metrics import metrics_text as metrics_text
    from tlserve.text.stream import TextStream as TextStream
    from tlserve.text.template import DEFAULT_TEMPLATE as DEFAULT_TEMPLATE
    from tlserve.text.template import Template as Template

_HOMES = {
    "ApiError": "tlserve.openai.errors",
    "DEFAULT_TEMPLATE": "tlserve.text.template",
    "DONE": "tlserve.openai.sse",
    "Engine": "tlserve.engine.engine",
    "EngineConfig": "tlserve.config",
    "EngineStats": "tlserve.engine.messages",
    "FinishReason": "tlserve.engine.messages",
    "GenRequest": "tlserve.engine.messages",
    "GenSpec": "tlserve.openai.requests",
    "PING": "tlserve.openai.sse",
    "SamplingParams": "tlserve.decode.params",
    "ServeConfig": "tlserve.config",
    "ServerHandle": "tlserve.server.handle",
    "SpeculativeConfig": "tlserve.config",
    "Template": "tlserve.text.template",
    "TextStream": "tlserve.text.stream",
    "TlserveError": "tlserve.errors",
    "TokenOut": "tlserve.engine.messages",
    "event": "tlserve.openai.sse",
    "metrics_text": "tlserve.server.metrics",
    "parse_chat": "tlserve.openai.requests",
    "parse_completion": "tlserve.openai.requests",
    "parse_embeddings": "tlserve.openai.requests",
    "parse_tokenize": "tlserve.openai.requests",
    "pool_embedding": "tlserve.engine.embedding",
    "run": "tlserve.server.handle",
    "spawn": "tlserve.server.handle",
}

__all__ = list(_HOMES)


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'tlserve' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
