"""What a client asks for, in the engine's words: rendered, tokenized, checked against the model.

Pure and synchronous; safe in any thread. Long texts are prepared in a worker thread, see ``Api.work``.
"""

from __future__ import annotations

import secrets

from attrs import frozen

from tlserve.engine.load import ServedModel
from tlserve.engine.messages import GenRequest
from tlserve.openai.errors import context_length_exceeded, invalid
from tlserve.openai.requests import Conversation, GenSpec, Prompt
from tlserve.server.terms import Terms

_CHOICE_STRIDE = 0x9E3779B97F4A7C15
"""Spreads the seeds of a request's further answers; odd, so that no two meet modulo 2**64."""


@frozen
class Prepared:
    """A generation request that is ready to be submitted.

    Attributes:
        requests: one per choice, in the order of the choices.
        prompt_tokens: how many tokens the model reads, each prompt counted once.
        text_offsets: for each choice, the length in characters of the prompt's text.
        echoes: for each choice, the prompt's text where it is to be part of the answer, else nothing.
    """

    requests: tuple[GenRequest, ...]
    prompt_tokens: int
    text_offsets: tuple[int, ...]
    echoes: tuple[str, ...]


def prepare(spec: GenSpec, model: ServedModel, *, terms: Terms) -> Prepared:
    """Turn ``spec`` into engine requests.

    Raises:
        ApiError: the prompt is empty, too long, or names tokens that the model does not have.
        TemplateRenderError: the chat template refuses the messages.
    """
    spec.check_vocabulary(model.vocab_size)
    prompts = prompt_tokens(spec, model)
    seed = secrets.randbits(63) if spec.seed is None else spec.seed
    stop_ids = frozenset(spec.stop_token_ids) | (frozenset() if spec.ignore_eos else model.eos_token_ids)
    requests = [
        GenRequest(
            prompt=tokens,
            params=spec.params,
            seed=seed + answer * _CHOICE_STRIDE,
            max_tokens=_max_tokens(spec, len(tokens), model),
            stop_ids=stop_ids,
            priority=terms.priority,
            cache_salt=terms.cache_salt,
            tenant=terms.tenant.name,
            weight=terms.tenant.weight,
        )
        for tokens in prompts
        for answer in range(spec.n)
    ]
    texts = [_text(prompt, model) for prompt in _raw_prompts(spec) for _ in range(spec.n)]
    return Prepared(
        requests=tuple(requests),
        prompt_tokens=sum(map(len, prompts)),
        text_offsets=tuple(map(len, texts)),
        echoes=tuple(texts if spec.echo else [""] * len(texts)),
    )


def prompt_tokens(spec: GenSpec, model: ServedModel) -> list[tuple[int, ...]]:
    """The token ids of each prompt; a chat has one, rendered through the model's template.

    Raises:
        ApiError: a prompt has no tokens.
        TemplateRenderError: the chat template refuses the messages.
    """
    if isinstance(spec.prompt, Conversation):
        return [chat_tokens(spec.prompt, model)]
    return [text_tokens(prompt, model, param="prompt") for prompt in spec.prompt.items]


def chat_tokens(conversation: Conversation, model: ServedModel) -> tuple[int, ...]:
    """The tokens of a conversation with the generation prompt. What a user typed never becomes a control token."""
    rendered = model.prompts.render(conversation.as_dicts(), add_generation_prompt=True)
    return _not_empty(tuple(model.tokenizer.encode_rendered(rendered)), "messages")


def text_tokens(prompt: Prompt, model: ServedModel, *, param: str) -> tuple[int, ...]:
    """The tokens of a raw prompt, control tokens in its text included; token ids as they are."""
    if isinstance(prompt, str):
        return _not_empty(tuple(model.tokenizer.encode(prompt, parse_special=True)), param)
    return _not_empty(prompt, param)


def _not_empty(tokens: tuple[int, ...], param: str) -> tuple[int, ...]:
    if not tokens:
        raise invalid(f"{param} is empty: this model needs at least one token to go on from", param=param)
    return tokens


def _max_tokens(spec: GenSpec, num_prompt_tokens: int, model: ServedModel) -> int:
    """What the request asks for, or the rest of the context."""
    rest = model.max_model_len - num_prompt_tokens
    wanted = rest if spec.max_tokens is None else spec.max_tokens
    if rest < max(wanted, 1):
        raise context_length_exceeded(
            prompt_tokens=num_prompt_tokens,
            max_tokens=spec.max_tokens,
            limit=model.max_model_len,
            param="messages" if isinstance(spec.prompt, Conversation) else "prompt",
        )
    return wanted


def _raw_prompts(spec: GenSpec) -> tuple[Prompt, ...]:
    return ("",) if isinstance(spec.prompt, Conversation) else spec.prompt.items


def _text(prompt: Prompt, model: ServedModel) -> str:
    return prompt if isinstance(prompt, str) else model.tokenizer.decode(prompt)
