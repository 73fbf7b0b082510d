"""What a request asks for, once it is known to be right: the values that leave this room on the way in.

Parsed, checked against the API's ranges and the tier, but not yet against the model: whether the name is served,
whether token ids are inside the vocabulary and whether the prompt fits the context is asked by who holds the model.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Literal

from attrs import frozen

from tlserve.decode.params import SamplingParams
from tlserve.openai.errors import ApiError, invalid

Prompt = str | tuple[int, ...]
"""Text, or the token ids of it."""


@frozen
class Message:
    """One turn. ``developer`` messages are ``system`` messages here: the models we serve know no other name."""

    role: str
    content: str
    name: str | None = None
    tool_call_id: str | None = None

    def as_dict(self) -> dict[str, str]:
        """The message as chat templates expect it; absent members are absent."""
        members = {"role": self.role, "content": self.content, "name": self.name, "tool_call_id": self.tool_call_id}
        return {name: value for name, value in members.items() if value is not None}


@frozen
class Conversation:
    """Messages to render through the model's chat template, with the generation prompt."""

    messages: tuple[Message, ...]

    def as_dicts(self) -> list[dict[str, str]]:
        """The ``messages`` variable of the template."""
        return [message.as_dict() for message in self.messages]


@frozen
class Prompts:
    """Raw prompts, each of which gets its own choice (or ``n`` of them)."""

    items: tuple[Prompt, ...]


@frozen(kw_only=True)
class GenSpec:
    """One generation request.

    ``max_tokens`` None means the rest of the context. ``seed`` None means one is drawn. Choice ``i * n + j`` is the
    ``j``-th answer to prompt ``i``. ``ignored`` names the members of the body that had no effect.
    """

    model: str
    prompt: Conversation | Prompts
    params: SamplingParams
    seed: int | None = None
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    stream: bool = False
    include_usage: bool = False
    n: int = 1
    echo: bool = False
    user: str | None = None
    ignored: tuple[str, ...] = ()

    def check_vocabulary(self, vocab_size: int) -> None:
        """Raise ApiError 400 if the prompt, ``logit_bias`` or ``stop_token_ids`` name a token the model lacks."""
        if isinstance(self.prompt, Prompts):
            check_token_ids(self.prompt.items, vocab_size, param="prompt")
        check_token_ids([tuple(self.params.logit_bias)], vocab_size, param="logit_bias")
        check_token_ids([self.stop_token_ids], vocab_size, param="stop_token_ids")


@frozen(kw_only=True)
class EmbeddingSpec:
    """One embeddings request; unpacks as ``(model, inputs)``."""

    model: str
    inputs: tuple[Prompt, ...]
    encoding_format: Literal["float", "base64"] = "float"
    user: str | None = None
    ignored: tuple[str, ...] = ()

    def __iter__(self) -> Iterator[object]:
        return iter((self.model, self.inputs))

    def check_vocabulary(self, vocab_size: int) -> None:
        """Raise ApiError 400 if an input names a token the model lacks."""
        check_token_ids(self.inputs, vocab_size, param="input")


@frozen(kw_only=True)
class TokenizeSpec:
    """One tokenize request; unpacks as ``(model, text, add_special)``.

    ``text`` is a string, tokenized as a completions prompt, or a conversation, rendered as a chat is.
    """

    model: str
    text: str | Conversation
    add_special: bool = True
    with_pieces: bool = False
    ignored: tuple[str, ...] = ()

    def __iter__(self) -> Iterator[object]:
        return iter((self.model, self.text, self.add_special))


def check_token_ids(prompts: Iterable[Prompt], vocab_size: int, *, param: str) -> None:
    """Raise ApiError 400 for the first token id that is not in ``[0, vocab_size)``."""
    for prompt in prompts:
        if not isinstance(prompt, str) and prompt and max(prompt) >= vocab_size:
            raise _outside_vocabulary(max(prompt), vocab_size, param)


def _outside_vocabulary(token: int, vocab_size: int, param: str) -> ApiError:
    return invalid(f"{param} names token {token}; the model's vocabulary ends at {vocab_size - 1}", param=param)
