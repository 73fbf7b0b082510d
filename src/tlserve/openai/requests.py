"""Request bodies in: the four parsers, by one name.

Each takes the bytes of a body and returns a frozen spec, or raises :class:`~tlserve.openai.errors.ApiError`.
"""

from __future__ import annotations

from tlserve.openai.chat import parse_chat
from tlserve.openai.completions import parse_completion
from tlserve.openai.embeddings import parse_embeddings
from tlserve.openai.spec import Conversation, EmbeddingSpec, GenSpec, Message, Prompt, Prompts, TokenizeSpec
from tlserve.openai.tokenize import parse_tokenize

__all__ = [
    "Conversation",
    "EmbeddingSpec",
    "GenSpec",
    "Message",
    "Prompt",
    "Prompts",
    "TokenizeSpec",
    "parse_chat",
    "parse_completion",
    "parse_embeddings",
    "parse_tokenize",
]
