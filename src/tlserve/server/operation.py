"""What a request asks of the model, in the words of OpenTelemetry's conventions for generative AI.

Numbers and switches only: no prompt, no stop string, nothing that a client has written.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from attrs import frozen

from tlserve.openai.requests import EmbeddingSpec, GenSpec

Value = str | int | float | bool


@frozen
class Operation:
    """One request of the model.

    Attributes:
        name: as ``gen_ai.operation.name`` has it.
        model: as the client named it; it is the served one.
        attributes: the rest of ``gen_ai.request.*``, those that the request has.
    """

    name: Literal["chat", "text_completion", "embeddings"]
    model: str
    attributes: Mapping[str, Value]


def generation(name: Literal["chat", "text_completion"], spec: GenSpec) -> Operation:
    """What a generation asks for."""
    params = spec.params
    asked = {
        "max_tokens": spec.max_tokens,
        "temperature": params.temperature,
        "top_p": params.top_p,
        "top_k": params.top_k or None,
        "frequency_penalty": params.frequency_penalty,
        "presence_penalty": params.presence_penalty,
        "seed": spec.seed,
        "choice.count": spec.n if spec.n > 1 else None,
        "stream": spec.stream,
    }
    attributes = {f"gen_ai.request.{name}": value for name, value in asked.items() if value is not None}
    return Operation(name, spec.model, {**attributes, "gen_ai.output.type": "text"})


def embedding(spec: EmbeddingSpec) -> Operation:
    """What an embeddings request asks for."""
    return Operation("embeddings", spec.model, {})
