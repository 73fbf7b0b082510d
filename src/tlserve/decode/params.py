"""How a request wants its tokens chosen. Values only: the client's ranges are checked where requests are parsed."""

from __future__ import annotations

from collections.abc import Mapping

from attrs import field, frozen


@frozen(kw_only=True)
class SamplingParams:
    """The knobs of one request, in the order in which the sampler applies them.

    Attributes:
        repetition_penalty: > 0; divides positive and multiplies negative logits of every token in prompt or output.
        frequency_penalty: subtracted from a token's logit once per time that the output has it.
        presence_penalty: subtracted from a token's logit once if the output has it.
        logit_bias: added to the logits of these token ids.
        min_tokens: the request's stop ids cannot be chosen before the output has this many tokens.
        temperature: divides the logits; 0 (or anything below 1e-5) takes the likeliest token.
        top_k: keep this many likeliest tokens; 0 keeps all.
        min_p: drop tokens less likely than this share of the likeliest one's probability.
        top_p: keep the fewest likeliest tokens that together have at least this probability.
        logprobs: how many alternatives to report with each token; None when the client asked for no logprobs at all,
            0 for the chosen token's alone.

    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: Mapping[int, float] = field(factory=dict)
    min_tokens: int = 0
    logprobs: int | None = None
