"""What the documents are made of: token counts and log probabilities, as plain values from the rooms below."""

from __future__ import annotations

from typing import Literal

from attrs import frozen

Finish = Literal["stop", "length"]
"""Why a choice ended: an end token or stop string, or the last token it may have."""

LEAST_LOGPROB = -9999.0
"""What is written for minus infinity, which JSON cannot say; OpenAI's number."""


@frozen(kw_only=True)
class Usage:
    """The token counts of one request.

    ``prompt_tokens`` counts the rendered prompt, each prompt once; ``completion_tokens`` every sampled token of every
    choice, the end token and those of a stop string included; ``cached_tokens`` the part of the prompt that the prefix
    cache knew.
    """

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0

    def document(self) -> dict[str, object]:
        """The ``usage`` member."""
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
            "prompt_tokens_details": {"cached_tokens": self.cached_tokens},
        }


@frozen
class Alternative:
    """A token that could have been: how it is shown, its natural log probability, the bytes it adds to the text."""

    text: str
    logprob: float
    data: bytes


@frozen
class TokenLogprob:
    """A sampled token with the likeliest alternatives at its position, best first."""

    text: str
    logprob: float
    data: bytes
    top: tuple[Alternative, ...] = ()


def finite(logprob: float) -> float:
    """``logprob``, or :data:`LEAST_LOGPROB` where it is lower or minus infinity."""
    return logprob if logprob > LEAST_LOGPROB else LEAST_LOGPROB
