"""What chat and completions requests share: every member that steers sampling, length, stopping and streaming."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from attrs import field, frozen

from tlserve.decode.params import SamplingParams
from tlserve.openai.errors import invalid, unsupported
from tlserve.openai.fields import Flag, Integer, Number, Text
from tlserve.openai.stops import Stops
from tlserve.openai.tiers import Tier, refuse_unserved
from tlserve.openai.token_ids import LogitBias, TokenIds

MAX_CHOICES = 128
MAX_STOP_TOKENS = 128
_INT32, _INT64 = 2**31, 2**63


@frozen(kw_only=True)
class StreamOptions:
    """How a stream reports."""

    include_usage: Annotated[bool, Flag("Whether a last chunk, without choices, carries the usage.")] = False


@frozen(kw_only=True)
class Generation:
    """The members that a chat request and a completions request have in common."""

    model: Annotated[str, Text("The id of the served model, as GET /v1/models lists it.", min_length=1)]
    temperature: Annotated[float, Number("0 takes the likeliest token; higher is more random.", ge=0, le=2)] = 1.0
    top_p: Annotated[float, Number("Keep the likeliest tokens up to this probability.", gt=0, le=1)] = 1.0
    top_k: Annotated[int, Integer("Keep the k likeliest tokens; 0 or -1 keeps all.", ge=-1, le=_INT32 - 1)] = 0
    min_p: Annotated[float, Number("Drop tokens less likely than this share of the likeliest.", ge=0, le=1)] = 0.0
    presence_penalty: Annotated[float, Number("Taken from the logit of each token so far.", ge=-2, le=2)] = 0.0
    frequency_penalty: Annotated[float, Number("Taken from a logit for each occurrence.", ge=-2, le=2)] = 0.0
    repetition_penalty: Annotated[float, Number("Divides logits of known tokens; 1 is off.", ge=0.01, le=100)] = 1.0
    logit_bias: Annotated[Mapping[int, float], LogitBias("Added to the logits of these token ids.")] = field(
        factory=dict
    )
    min_tokens: Annotated[int, Integer("The answer may not end before so many tokens.", ge=0, le=_INT32 - 1)] = 0
    seed: Annotated[int | None, Integer("The same seed repeats the same draws.", ge=-_INT64, le=_INT64 - 1)] = None
    stop: Annotated[tuple[str, ...], Stops("Texts that end the answer and are no part of it.")] = ()
    stop_token_ids: Annotated[tuple[int, ...], TokenIds("Tokens that end the answer.", max_items=MAX_STOP_TOKENS)] = ()
    ignore_eos: Annotated[bool, Flag("Whether to go on past the model's end-of-text tokens.")] = False
    n: Annotated[int, Integer("Answers to each prompt.", ge=1, le=MAX_CHOICES)] = 1
    stream: Annotated[bool, Flag("Whether to answer with server-sent events.")] = False
    stream_options: StreamOptions | None = None
    user: Annotated[str | None, Text("Who asks, for the operator's log.", max_length=512)] = None

    def check_consistent(self, *, max_tokens: int | None) -> None:
        """Raise ApiError 400 for members that contradict each other."""
        if self.stream_options is not None and not self.stream:
            raise invalid("stream_options needs stream to be true", param="stream_options")
        if max_tokens is not None and self.min_tokens > max_tokens:
            message = f"min_tokens is {self.min_tokens}, but at most {max_tokens} tokens are allowed"
            raise invalid(message, param="min_tokens")

    def check_served(self, tier: Tier) -> None:
        """Raise ApiError 422 for what ``tier`` does not serve."""
        if self.n > tier.max_n:
            raise unsupported(f"n is {self.n}; this server serves n up to {tier.max_n}", param="n")
        refuse_unserved(self, tier)

    def sampling(self, *, logprobs: int | None) -> SamplingParams:
        """The sampler's parameters; ``logprobs`` is how many alternatives to report, None for no logprobs at all."""
        return SamplingParams(
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=max(self.top_k, 0),
            min_p=self.min_p,
            presence_penalty=self.presence_penalty,
            frequency_penalty=self.frequency_penalty,
            repetition_penalty=self.repetition_penalty,
            logit_bias=self.logit_bias,
            min_tokens=self.min_tokens,
            logprobs=logprobs,
        )

    def shared(self) -> dict[str, Any]:
        """The members of a GenSpec that both endpoints fill alike."""
        return {
            "model": self.model,
            "seed": self.seed,
            "stop": self.stop,
            "stop_token_ids": self.stop_token_ids,
            "ignore_eos": self.ignore_eos,
            "stream": self.stream,
            "include_usage": self.stream_options is not None and self.stream_options.include_usage,
            "n": self.n,
            "user": self.user,
        }
