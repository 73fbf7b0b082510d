"""The routes of the v1 API, as one table: who registers them and who describes them read the same rows."""

from __future__ import annotations

from typing import Literal

from attrs import frozen

from tlserve.openai.chat import ChatRequest
from tlserve.openai.completions import CompletionRequest
from tlserve.openai.embeddings import EmbeddingRequest
from tlserve.openai.tokenize import TokenizeRequest


@frozen(kw_only=True)
class Route:
    """One route. ``path`` is in OpenAPI's spelling; ``errors`` are the statuses beyond 500 that it may answer."""

    method: Literal["GET", "POST"]
    path: str
    name: str
    summary: str
    response: str
    request: type | None = None
    chunk: str | None = None
    errors: tuple[int, ...] = ()


_BODY_ERRORS = (400, 401, 404, 408, 413, 415, 422)
_WORK_ERRORS = (*_BODY_ERRORS, 429, 503, 504)

ROUTES: tuple[Route, ...] = (
    Route(
        method="POST",
        path="/v1/chat/completions",
        name="createChatCompletion",
        summary="Answer a conversation",
        request=ChatRequest,
        response="ChatCompletion",
        chunk="ChatCompletionChunk",
        errors=_WORK_ERRORS,
    ),
    Route(
        method="POST",
        path="/v1/completions",
        name="createCompletion",
        summary="Continue texts",
        request=CompletionRequest,
        response="TextCompletion",
        chunk="TextCompletionChunk",
        errors=_WORK_ERRORS,
    ),
    Route(
        method="POST",
        path="/v1/embeddings",
        name="createEmbedding",
        summary="Embed texts",
        request=EmbeddingRequest,
        response="EmbeddingList",
        errors=_WORK_ERRORS,
    ),
    Route(
        method="POST",
        path="/v1/tokenize",
        name="tokenize",
        summary="Count and list the tokens of a text or a conversation",
        request=TokenizeRequest,
        response="Tokenization",
        errors=_WORK_ERRORS,
    ),
    Route(
        method="GET",
        path="/v1/models",
        name="listModels",
        summary="List the served models",
        response="ModelList",
        errors=(401,),
    ),
    Route(
        method="GET",
        path="/v1/models/{id}",
        name="retrieveModel",
        summary="Describe a served model",
        response="Model",
        errors=(401, 404),
    ),
    Route(
        method="GET",
        path="/healthz",
        name="health",
        summary="Tell that the process lives",
        response="Health",
    ),
    Route(
        method="GET",
        path="/openapi.json",
        name="describe",
        summary="This description",
        response="Description",
    ),
)
