"""POST /v1/tokenize: the tokens that the model would read, without asking the engine."""

from __future__ import annotations

from functools import partial

from quart import Response

from tlserve.engine.load import ServedModel
from tlserve.openai.documents import Document, tokenization
from tlserve.openai.requests import Conversation, TokenizeSpec
from tlserve.server.api import Api
from tlserve.server.prompt import chat_tokens
from tlserve.server.responses import json_response, tell_ignored


async def tokenize(api: Api, spec: TokenizeSpec, *, body_bytes: int) -> Response:
    """Answer a tokenize request.

    Raises:
        ApiError: the model is another one.
        TemplateRenderError: the chat template refuses the messages.
    """
    model = api.model_for(spec.model)
    document = await api.work(partial(_tokenize, spec, model), body_bytes=body_bytes)
    return tell_ignored(json_response(document), spec.ignored)


def _tokenize(spec: TokenizeSpec, model: ServedModel) -> Document:
    tokens = _tokens(spec, model)
    pieces = [model.tokenizer.token_text(token) for token in tokens] if spec.with_pieces else None
    return tokenization(model.id, tokens, max_model_len=model.max_model_len, pieces=pieces)


def _tokens(spec: TokenizeSpec, model: ServedModel) -> list[int]:
    """Special tokens in a text are parsed as a completion would parse them; ``add_special`` is about the begin token only."""
    if isinstance(spec.text, Conversation):
        return list(chat_tokens(spec.text, model))
    tokens = model.tokenizer.encode(spec.text, parse_special=True)
    added = "".join(map(model.tokenizer.token_text, model.tokenizer.bos_ids))
    if spec.add_special or spec.text.startswith(added):
        return tokens
    return tokens[len(model.tokenizer.bos_ids) :]
