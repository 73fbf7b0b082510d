"""POST /v1/chat/completions, on the way in."""

from __future__ import annotations

from typing import Annotated

from attrs import frozen

from tlserve.openai.errors import invalid
from tlserve.openai.fields import Flag, Integer, Several
from tlserve.openai.generation import Generation
from tlserve.openai.messages import MAX_MESSAGES, ChatMessage, lower_messages
from tlserve.openai.spec import GenSpec
from tlserve.openai.structure import read_request
from tlserve.openai.tiers import TIERS, Tier, TierName, Unserved


@frozen(kw_only=True)
class ChatRequest(Generation):
    """A chat completion request."""

    messages: Annotated[tuple[ChatMessage, ...], Several("The conversation.", min_items=1, max_items=MAX_MESSAGES)]
    max_tokens: Annotated[int | None, Integer("The most tokens to generate; older name.", ge=1)] = None
    max_completion_tokens: Annotated[int | None, Integer("The most tokens to generate.", ge=1)] = None
    logprobs: Annotated[bool, Flag("Whether to report the log probability of each token.")] = False
    top_logprobs: Annotated[int, Integer("Alternatives to report at each position.", ge=0, le=20)] = 0
    tools: Annotated[object, Unserved("there are no tool calls.")] = None
    tool_choice: Annotated[object, Unserved("there are no tool calls.")] = None
    functions: Annotated[object, Unserved("there are no tool calls.")] = None
    function_call: Annotated[object, Unserved("there are no tool calls.")] = None
    response_format: Annotated[object, Unserved("answers are free text.")] = None
    modalities: Annotated[object, Unserved("answers are text.")] = None
    audio: Annotated[object, Unserved("answers are text.")] = None
    web_search_options: Annotated[object, Unserved("there is no web search.")] = None

    def lower(self, tier: Tier, ignored: tuple[str, ...]) -> GenSpec:
        """What this request asks for; raises ApiError 400 or 422."""
        max_tokens = self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens
        self.check_consistent(max_tokens=max_tokens)
        if self.top_logprobs and not self.logprobs:
            raise invalid("top_logprobs needs logprobs to be true", param="top_logprobs")
        self.check_served(tier)
        return GenSpec(
            **self.shared(),
            prompt=lower_messages(self.messages, tier),
            params=self.sampling(logprobs=self.top_logprobs if self.logprobs else None),
            max_tokens=max_tokens,
            ignored=ignored + self._overruled(),
        )

    def _overruled(self) -> tuple[str, ...]:
        """``max_tokens``, when ``max_completion_tokens`` says something else."""
        both = self.max_tokens is not None and self.max_completion_tokens is not None
        return ("max_tokens",) if both and self.max_tokens != self.max_completion_tokens else ()


def parse_chat(body: bytes, *, tier: TierName = "engine") -> GenSpec:
    """What the body of a chat completion request asks for.

    ``max_completion_tokens`` wins over ``max_tokens``; neither means the rest of the context.

    Raises:
        ApiError: 400 for what is wrong, 422 for what ``tier`` does not serve; ``param`` is the member's path.
    """
    request, ignored = read_request(body, ChatRequest)
    return request.lower(TIERS[tier], ignored)
