"""POST /v1/tokenize, on the way in: the tokens that a completion or a chat with the same text would read."""

from __future__ import annotations

from typing import Annotated

from attrs import frozen

from tlserve.openai.errors import invalid
from tlserve.openai.fields import Flag, Several, Text, missing
from tlserve.openai.messages import MAX_MESSAGES, ChatMessage, lower_messages
from tlserve.openai.spec import Conversation, TokenizeSpec
from tlserve.openai.structure import read_request
from tlserve.openai.tiers import TIERS, Tier, TierName


@frozen(kw_only=True)
class TokenizeRequest:
    """A tokenize request: exactly one of ``text``, ``prompt`` (the same) and ``messages``."""

    model: Annotated[str, Text("The id of the served model, as GET /v1/models lists it.", min_length=1)]
    text: Annotated[str | None, Text("A text, tokenized as a completions prompt.")] = None
    prompt: Annotated[str | None, Text("Another name of text.")] = None
    messages: Annotated[
        tuple[ChatMessage, ...] | None,
        Several("A conversation, rendered as a chat completion would.", min_items=1, max_items=MAX_MESSAGES),
    ] = None
    add_special_tokens: Annotated[bool, Flag("Whether a text gets the model's begin-of-text token.")] = True
    return_token_strs: Annotated[bool, Flag("Whether to return the text of each token.")] = False

    def lower(self, tier: Tier, ignored: tuple[str, ...]) -> TokenizeSpec:
        """What this request asks for; raises ApiError 400 or 422."""
        return TokenizeSpec(
            model=self.model,
            text=self._source(tier),
            add_special=self.add_special_tokens,
            with_pieces=self.return_token_strs,
            ignored=ignored,
        )

    def _source(self, tier: Tier) -> str | Conversation:
        given = [source for source in (self.text, self.prompt, self.messages) if source is not None]
        if not given:
            raise missing().under("text").answer()
        if len(given) > 1:
            raise invalid("give one of text, prompt and messages, not several", param="text")
        return given[0] if isinstance(given[0], str) else lower_messages(given[0], tier)


def parse_tokenize(body: bytes, *, tier: TierName = "engine") -> TokenizeSpec:
    """What the body of a tokenize request asks for.

    Raises:
        ApiError: 400 for what is wrong, 422 for messages that ``tier`` does not serve.
    """
    request, ignored = read_request(body, TokenizeRequest)
    return request.lower(TIERS[tier], ignored)
