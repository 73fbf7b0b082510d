"""The words between the engine and whoever drives it: requests in, tokens and notices out.

Plain values without arrays, so that this file may be imported on both sides of the wall.
"""

from __future__ import annotations

from attrs import field, frozen

from tlserve.decode.finish import FinishReason
from tlserve.decode.params import SamplingParams
from tlserve.errors import EngineError
from tlserve.names import RequestId

__all__ = ["EngineStats", "Failed", "FinishReason", "GenRequest", "Started", "TokenOut"]


@frozen(kw_only=True)
class GenRequest:
    """One generation.

    Attributes:
        prompt: token ids, at least one.
        params: how tokens are chosen.
        seed: any integer; it counts modulo 2**64. Requests without a wish of their own get a drawn one.
        max_tokens: tokens of the answer at most, at least one.
        stop_ids: tokens that end the answer with STOP; the one that did is part of the output.
        priority: higher goes first.
        id: a name that no live request has; the engine gives one if None.
        cache_salt: only requests with the same salt share cached KV, so tenants cannot time each other's prompts.
        tenant: on whose account it runs; those of one priority take turns in starting, by tokens.
        weight: this tenant's share beside others of the same priority, >= 1.

    """

    prompt: tuple[int, ...] = field(repr=False)
    params: SamplingParams
    seed: int
    max_tokens: int
    stop_ids: frozenset[int] = frozenset()
    priority: int = 0
    id: RequestId | None = None
    cache_salt: str = field(default="", repr=False)
    tenant: str = ""
    weight: int = 1


@frozen
class TokenOut:
    """One token of an answer.

    Attributes:
        id: whose.
        token: its id.
        logprob: natural log-probability in the model's own distribution, before temperature and all other parameters;
            -inf when the model excludes the token.
        finish: set on the last token of an answer.
        top: with ``params.logprobs`` > 0, the likeliest tokens of that distribution and theirs, best first.

    """

    id: RequestId
    token: int
    logprob: float
    finish: FinishReason | None
    top: tuple[tuple[int, float], ...] = ()


@frozen
class Started:
    """A request has left the waiting line for the first time.

    Attributes:
        id: which.
        cached_tokens: leading tokens of its prompt whose KV was found in the prefix cache.
        at: when, on the clock of ``time.perf_counter``; the notice itself comes with the step's first tokens.

    """

    id: RequestId
    cached_tokens: int
    at: float


@frozen
class Failed:
    """A request has ended without finishing; no further token of it comes.

    Attributes:
        id: which.
        error: BadLogits or SamplingFailed for this request's own trouble, StepFailed for a step's.

    """

    id: RequestId
    error: EngineError


@frozen(kw_only=True)
class EngineStats:
    """A snapshot for metrics and tests. kv_blocks_free + kv_blocks_cached + kv_blocks_used == kv_blocks_total.

    Attributes:
        kv_blocks_total: blocks in the pool.
        kv_blocks_free: holding nothing.
        kv_blocks_cached: held by no request, kept for later prompts.
        kv_blocks_used: held by requests.
        queue_depth: requests that wait, preempted ones included.
        active_sequences: requests that hold blocks.
        batch_tokens: rows of the last step; 0 when there is nothing to do.
        prefix_cache_queries: prompt tokens of all started requests.
        prefix_cache_hits: those of them that were found in the cache.
        prefix_cache_hit_ratio: hits / queries, 0.0 before the first.
        preemptions_total: times that a running request gave up its blocks.
        kv_evictions_total: cached blocks given up for others.
        drafted_tokens_total: guesses computed.
        accepted_tokens_total: those of them that were right.
        steps_total: forward passes begun.

    """

    kv_blocks_total: int
    kv_blocks_free: int
    kv_blocks_cached: int
    kv_blocks_used: int
    queue_depth: int
    active_sequences: int
    batch_tokens: int
    prefix_cache_queries: int
    prefix_cache_hits: int
    prefix_cache_hit_ratio: float
    preemptions_total: int
    kv_evictions_total: int
    drafted_tokens_total: int
    accepted_tokens_total: int
    steps_total: int

    @property
    def kv_used_share(self) -> float:
        """The part of the pool that requests hold, 0.0 to 1.0; 0.0 where there is no pool."""
        return self.kv_blocks_used / self.kv_blocks_total if self.kv_blocks_total else 0.0
