"""Whole responses: plain values in, the v1 documents out.

Nothing here counts, decodes or decides; what a member says was settled before. Streams are in
:mod:`tlserve.openai.chunks`.
"""

from __future__ import annotations

import base64
import secrets
import struct
from collections.abc import Iterable, Sequence
from typing import Literal

from attrs import field, frozen

from tlserve.openai.logprobs import CompletionLogprobs, chat_logprobs
from tlserve.openai.values import Finish, TokenLogprob, Usage

Document = dict[str, object]
Prefix = Literal["chatcmpl", "cmpl"]


def new_id(prefix: Prefix) -> str:
    """A response id nobody can guess or choose: ``chatcmpl-`` and 24 hexadecimal digits."""
    return f"{prefix}-{secrets.token_hex(12)}"


@frozen
class Head:
    """What all documents of one response have in common. ``created`` is in seconds since 1970."""

    id: str
    created: int
    model: str
    fingerprint: str | None = None

    def members(self, kind: str) -> Document:
        """The members before ``choices``; ``kind`` is the ``object``."""
        members: Document = {"id": self.id, "object": kind, "created": self.created, "model": self.model}
        if self.fingerprint is not None:
            members["system_fingerprint"] = self.fingerprint
        return members


@frozen(kw_only=True)
class Choice:
    """One finished answer. ``logprobs`` None means they were not asked for; ``text_offset`` is where it begins."""

    index: int
    text: str
    finish: Finish
    logprobs: Sequence[TokenLogprob] | None = None
    text_offset: int = field(default=0)


def chat_completion(head: Head, choices: Iterable[Choice], usage: Usage) -> Document:
    """A ``chat.completion``."""
    return {
        **head.members("chat.completion"),
        "choices": [_chat_choice(choice) for choice in choices],
        "usage": usage.document(),
    }


def _chat_choice(choice: Choice) -> Document:
    return {
        "index": choice.index,
        "message": {"role": "assistant", "content": choice.text, "refusal": None},
        "logprobs": None if choice.logprobs is None else chat_logprobs(choice.logprobs),
        "finish_reason": choice.finish,
    }


def text_completion(head: Head, choices: Iterable[Choice], usage: Usage) -> Document:
    """A ``text_completion``."""
    return {
        **head.members("text_completion"),
        "choices": [_text_choice(choice) for choice in choices],
        "usage": usage.document(),
    }


def _text_choice(choice: Choice) -> Document:
    offsets = CompletionLogprobs(choice.text_offset)
    return {
        "index": choice.index,
        "text": choice.text,
        "logprobs": None if choice.logprobs is None else offsets.document(choice.logprobs),
        "finish_reason": choice.finish,
    }


def embedding_list(
    model: str, vectors: Iterable[Sequence[float]], *, prompt_tokens: int, encoding: Literal["float", "base64"]
) -> Document:
    """The embeddings of the inputs, in their order; ``base64`` is of little-endian float32."""
    write = _base64 if encoding == "base64" else list
    data = [{"object": "embedding", "index": i, "embedding": write(vector)} for i, vector in enumerate(vectors)]
    usage = {"prompt_tokens": prompt_tokens, "total_tokens": prompt_tokens}
    return {"object": "list", "data": data, "model": model, "usage": usage}


def _base64(vector: Sequence[float]) -> str:
    return base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode("ascii")


def model_document(model: str, *, created: int, max_model_len: int | None = None) -> Document:
    """One entry of the model list; ``max_model_len`` is in tokens."""
    document: Document = {"id": model, "object": "model", "created": created, "owned_by": "tlserve"}
    return document if max_model_len is None else {**document, "max_model_len": max_model_len}


def model_list(models: Iterable[Document]) -> Document:
    """The answer to GET /v1/models."""
    return {"object": "list", "data": list(models)}


def tokenization(
    model: str, tokens: Sequence[int], *, max_model_len: int, pieces: Sequence[str] | None = None
) -> Document:
    """The answer to POST /v1/tokenize; ``pieces`` are the texts of the tokens, when asked for."""
    document: Document = {
        "object": "tokenization",
        "model": model,
        "tokens": list(tokens),
        "count": len(tokens),
        "max_model_len": max_model_len,
    }
    return document if pieces is None else {**document, "token_strs": list(pieces)}
