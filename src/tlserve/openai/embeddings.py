"""POST /v1/embeddings, on the way in."""

from __future__ import annotations

from typing import Annotated, Literal

from attrs import frozen

from tlserve.openai.errors import unsupported
from tlserve.openai.fields import Integer, Text
from tlserve.openai.prompts import TextsOrIds
from tlserve.openai.spec import EmbeddingSpec, Prompt
from tlserve.openai.structure import read_request

MAX_INPUTS = 2048


@frozen(kw_only=True)
class EmbeddingRequest:
    """An embeddings request."""

    model: Annotated[str, Text("The id of the served model, as GET /v1/models lists it.", min_length=1)]
    input: Annotated[tuple[Prompt, ...], TextsOrIds("What to embed.", max_items=MAX_INPUTS, min_length=1)]
    encoding_format: Annotated[
        Literal["float", "base64"],
        Text("A list of numbers, or base64 of little-endian float32.", choices=("float", "base64")),
    ] = "float"
    dimensions: Annotated[int | None, Integer("Shorter vectors are not served.", ge=1)] = None
    user: Annotated[str | None, Text("Who asks, for the operator's log.", max_length=512)] = None

    def lower(self, ignored: tuple[str, ...]) -> EmbeddingSpec:
        """What this request asks for; raises ApiError 422 for ``dimensions``."""
        if self.dimensions is not None:
            raise unsupported("dimensions is not served: vectors have the model's own length", param="dimensions")
        return EmbeddingSpec(
            model=self.model,
            inputs=self.input,
            encoding_format=self.encoding_format,
            user=self.user,
            ignored=ignored,
        )


def parse_embeddings(body: bytes) -> EmbeddingSpec:
    """What the body of an embeddings request asks for.

    Raises:
        ApiError: 400 for what is wrong, 422 for ``dimensions``.
    """
    request, ignored = read_request(body, EmbeddingRequest)
    return request.lower(ignored)
