"""POST /v1/completions, on the way in."""

from __future__ import annotations

from typing import Annotated

from attrs import frozen

from tlserve.openai.errors import invalid, unsupported
from tlserve.openai.fields import Flag, Integer
from tlserve.openai.generation import MAX_CHOICES, Generation
from tlserve.openai.prompts import TextsOrIds
from tlserve.openai.spec import GenSpec, Prompt, Prompts
from tlserve.openai.structure import read_request
from tlserve.openai.tiers import TIERS, Tier, TierName, Unserved

DEFAULT_MAX_TOKENS = 16


@frozen(kw_only=True)
class CompletionRequest(Generation):
    """A text completion request."""

    prompt: Annotated[tuple[Prompt, ...], TextsOrIds("The text to continue.", max_items=MAX_CHOICES)]
    max_tokens: Annotated[int, Integer("The most tokens to generate.", ge=1)] = DEFAULT_MAX_TOKENS
    logprobs: Annotated[int | None, Integer("Report log probabilities, and so many alternatives.", ge=0, le=5)] = None
    echo: Annotated[bool, Flag("Whether the answer begins with the prompt.")] = False
    best_of: Annotated[int | None, Integer("Candidates to choose from; only n is served.", ge=1, le=128)] = None
    suffix: Annotated[object, Unserved("gaps are not filled.")] = None

    def lower(self, tier: Tier, ignored: tuple[str, ...]) -> GenSpec:
        """What this request asks for; raises ApiError 400 or 422."""
        self.check_consistent(max_tokens=self.max_tokens)
        self._check_choices()
        self.check_served(tier)
        self._check_extras(tier)
        return GenSpec(
            **self.shared(),
            prompt=Prompts(self.prompt),
            params=self.sampling(logprobs=self.logprobs),
            max_tokens=self.max_tokens,
            echo=self.echo,
            ignored=ignored,
        )

    def _check_choices(self) -> None:
        choices = len(self.prompt) * self.n
        if choices > MAX_CHOICES:
            message = f"{len(self.prompt)} prompts with n={self.n} make {choices} choices; at most {MAX_CHOICES}"
            raise invalid(message, param="n")

    def _check_extras(self, tier: Tier) -> None:
        if self.best_of is not None and self.best_of != self.n:
            raise unsupported(f"best_of is {self.best_of}; only best_of equal to n is served", param="best_of")
        if self.echo and not tier.echo:
            raise unsupported("echo is not served by this server; leave it out", param="echo")
        if self.echo and self.logprobs is not None:
            raise unsupported("echo with logprobs is not served: prompts are not scored", param="echo")


def parse_completion(body: bytes, *, tier: TierName = "engine") -> GenSpec:
    """What the body of a completion request asks for: 16 tokens for each prompt unless it says otherwise.

    Raises:
        ApiError: 400 for what is wrong, 422 for what ``tier`` does not serve; ``param`` is the member's path.
    """
    request, ignored = read_request(body, CompletionRequest)
    return request.lower(TIERS[tier], ignored)
