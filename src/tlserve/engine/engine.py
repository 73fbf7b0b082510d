"""The engine: continuous batching over a runner, a scheduler, a block manager and one sampler per request.

Joins the rooms below and adds no policy of its own: who computes what is the scheduler's, which token comes next the
sampler's. Wholly synchronous; whoever owns the engine calls it from one thread and decides when.
Invariant: an admitted request ends exactly once: by its last TokenOut, by a Failed notice, or by abort.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from collections.abc import Sequence as Items

import numpy as np
from numpy.typing import NDArray

from tlserve.cache.manager import BlockManager
from tlserve.config import EngineConfig
from tlserve.decode.sampler import RequestSampler
from tlserve.decode.speculative import PromptLookup
from tlserve.engine.assemble import assemble
from tlserve.engine.embedding import pool_embedding
from tlserve.engine.messages import EngineStats, Failed, GenRequest, Started, TokenOut
from tlserve.engine.verify import verify
from tlserve.errors import AdmitError, EngineDead, EngineError, NeverFits, SamplingFailed, StepFailed
from tlserve.model.runner import ModelRunner
from tlserve.names import RequestId
from tlserve.schedule.plan import Outcome, Plan
from tlserve.schedule.scheduler import Limits, Scheduler
from tlserve.schedule.sequence import Sequence

MAX_FAILED_STEPS = 3
"""Forward passes that may fail in a row: one may be a request's fault, three are the machine's."""


class Engine:
    """Generates tokens for many requests at once.

    Args:
        runner: the model and its KV pool; its ``num_blocks`` and ``block_size`` size the block manager.
        cfg: the limits of a step, the prefix cache's mode, speculation.
        max_waiting: requests that may wait to be started.

    """

    def __init__(self, runner: ModelRunner, cfg: EngineConfig, max_waiting: int) -> None:
        self._runner = runner
        self._speculative = None if cfg.speculative is None or cfg.speculative.method == "off" else cfg.speculative
        self._blocks = BlockManager(runner.num_blocks, runner.block_size, cfg.prefix_cache)
        limits = Limits(
            max_batch=cfg.max_batch,
            max_batch_tokens=cfg.max_batch_tokens,
            prefill_chunk=cfg.prefill_chunk,
            max_waiting=max_waiting,
        )
        self._scheduler = Scheduler(self._blocks, limits)
        self._samplers: dict[RequestId, RequestSampler] = {}
        self._notices: list[Started | Failed] = []
        self._num_arrivals = 0
        self._num_steps = 0
        self._num_failed_steps = 0  # in a row
        self._batch_tokens = 0

    @property
    def runner(self) -> ModelRunner:
        """The model."""
        return self._runner

    def max_model_len(self) -> int:
        """The most tokens that prompt and answer of one request may have together."""
        return min(self._runner.max_model_len, self._runner.num_blocks * self._runner.block_size)

    def has_work(self) -> bool:
        """Whether any request is alive, so that a step would do something."""
        return bool(self._samplers)

    # ---- the step ------------------------------------------------------------------------------------------------

    def step(self) -> list[TokenOut]:
        """Advance every request that fits by one forward pass, and return the tokens that this yields.

        Raises:
            EngineDead: the third forward pass in a row has failed.

        """
        plan = self._schedule()
        if not plan.chunks:
            return []
        logits = self._forward(plan)
        if logits is None:
            return []
        outcomes, tokens = self._sample(plan, logits)
        self._scheduler.on_step(outcomes)
        return tokens

    def _schedule(self) -> Plan:
        plan = self._scheduler.schedule()
        self._batch_tokens = plan.num_rows
        if plan.started:
            now = time.perf_counter()
            self._notices.extend(Started(sequence.id, sequence.num_computed, now) for sequence in plan.started)
        return plan

    def _forward(self, plan: Plan) -> NDArray[np.float32] | None:
        """The logits of a plan: a row for each token to choose or draft to verify, or None when the runner raised."""
        self._num_steps += 1
        try:
            logits = self._runner.forward(assemble(plan, self._runner))
        except Exception as error:  # noqa: BLE001 - whatever a model raises must not end requests of other steps
            self._fail_step(plan, error)
            return None
        self._num_failed_steps = 0
        return logits

    def _sample(self, plan: Plan, logits: NDArray[np.float32]) -> tuple[list[Outcome], list[TokenOut]]:
        """What each chunk led to, and all new tokens; a request whose rows cannot be sampled fails here, alone."""
        outcomes: list[Outcome] = []
        tokens: list[TokenOut] = []
        first = 0
        for chunk in plan.chunks:
            rows = logits[first : first + chunk.num_logits]
            first += chunk.num_logits
            request = chunk.sequence.id
            try:
                new = verify(chunk, rows, self._samplers[request])
            except Exception as error:  # noqa: BLE001 - whatever sampling raises must not end requests beside it
                self._fail_sampling(request, rows, error)
                continue
            finish = new[-1].finish if new else None
            if finish is not None:
                del self._samplers[request]
            outcomes.append(Outcome(chunk, tuple(token.token for token in new), finish))
            tokens.extend(new)
        return outcomes, tokens

    def _fail_step(self, plan: Plan, error: Exception) -> None:
        self._num_failed_steps += 1
        for chunk in plan.chunks:
            failure = StepFailed(f"the forward pass of {plan.num_rows} tokens failed: {type(error).__name__}: {error}")
            failure.__cause__ = error
            self._fail(chunk.sequence.id, failure)
        if self._num_failed_steps >= MAX_FAILED_STEPS:
            raise EngineDead(
                f"{self._num_failed_steps} forward passes in a row have failed; restart the server"
            ) from error

    def _fail_sampling(self, request: RequestId, rows: NDArray[np.float32], error: Exception) -> None:
        if isinstance(error, EngineError):
            failure = error
        else:
            failure = SamplingFailed(f"choosing a token of request {request} failed: {type(error).__name__}: {error}")
            failure.__cause__ = error
        # A NaN may stem from the KV that the request has computed, or found: that must not spoil later ones.
        self._fail(request, failure, distrusted=bool(np.isnan(rows).any()))

    def _fail(self, request: RequestId, error: EngineError, *, distrusted: bool = False) -> None:
        self._scheduler.fail(request, distrusted=distrusted)
        del self._samplers[request]
        self._notices.append(Failed(request, error))

    # ---- requests ------------------------------------------------------------------------------------------------

    def add_request(self, r: GenRequest) -> RequestId:
        """Admit a request; its tokens come from later steps.

        Raises:
            NeverFits: it is longer than the context or needs more KV blocks than there are.
            DuplicateRequest: its id is alive.
            QueueFull: too many wait.
            AdmitError: it has no prompt, asks for no token, names one that the model does not have, or has no weight.

        """
        self._check(r)
        sequence = Sequence(
            id=self._new_id() if r.id is None else r.id,
            tokens=r.prompt,
            max_tokens=r.max_tokens,
            arrival=self._num_arrivals,
            stop_ids=r.stop_ids,
            priority=r.priority,
            salt=r.cache_salt,
            tenant=r.tenant,
            weight=r.weight,
            drafter=self._new_drafter(),
        )
        sampler = RequestSampler(r.params, prompt=r.prompt, seed=r.seed, stop_ids=r.stop_ids)
        self._scheduler.add(sequence)
        self._samplers[sequence.id] = sampler
        self._num_arrivals += 1
        return sequence.id

    def abort(self, request: RequestId) -> None:
        """End a request without a word; its blocks are free, or cached, at once. Unknown and ended ids are ignored."""
        self._scheduler.abort(request)
        self._samplers.pop(request, None)

    def abort_all(self) -> None:
        """End every request."""
        for request in list(self._samplers):
            self.abort(request)

    def take_notices(self) -> list[Started | Failed]:
        """What happened to requests since the last call, besides tokens, in order."""
        notices, self._notices = self._notices, []
        return notices

    def embed(self, tokens: Items[int]) -> list[float]:
        """The embedding of a text, ``runner.hidden_size`` numbers. Call it between steps; it touches no KV block.

        Raises:
            EngineError: no tokens, more than the context holds, or one outside the vocabulary.

        """
        *_, embedding = self.embed_in_pieces(tokens)
        return embedding or []

    def embed_in_pieces(self, tokens: Items[int]) -> Iterator[list[float] | None]:
        """The same, for long texts: None after each piece, then the embedding. There may be steps in between.

        Raises:
            EngineError: as ``embed``; StepFailed for whatever else the model raises.

        """
        pieces = []
        try:
            for piece in self._runner.run_pieces(tokens):
                pieces.append(piece)
                yield None
        except EngineError:
            raise
        except Exception as error:
            raise StepFailed(f"embedding {len(tokens)} tokens failed: {type(error).__name__}: {error}") from error
        yield pool_embedding(np.concatenate(pieces), self._runner.hidden_size).tolist()

    def close(self) -> None:
        """End every request and what the runner keeps running."""
        self.abort_all()
        self._runner.close()

    def _check(self, r: GenRequest) -> None:
        """Whether the request can be served at all, whatever else runs."""
        if not r.prompt or r.max_tokens < 1:
            raise AdmitError(f"a request needs a prompt and max_tokens >= 1, not {len(r.prompt)} and {r.max_tokens}")
        if r.weight < 1:
            raise AdmitError(f"a tenant's weight is 1 or more, not {r.weight}")
        if len(r.prompt) + r.max_tokens > self._runner.max_model_len:
            raise NeverFits(
                f"prompt ({len(r.prompt)} tokens) and max_tokens ({r.max_tokens}) exceed the context of"
                f" {self._runner.max_model_len} tokens: shorten one of the two"
            )
        for token in (min(r.prompt), max(r.prompt), *r.params.logit_bias, *r.stop_ids):
            if not 0 <= token < self._runner.vocab_size:
                raise AdmitError(f"token id {token} is outside the vocabulary, 0 to {self._runner.vocab_size - 1}")

    def _new_drafter(self) -> PromptLookup | None:
        if self._speculative is None or self._speculative.method == "off":
            return None
        return PromptLookup(self._speculative)

    def _new_id(self) -> RequestId:
        """The number of the arrival, or the next one that no caller has taken for itself."""
        number = self._num_arrivals
        while number in self._samplers:
            number += 1
        return RequestId(number)

    # ---- observation ---------------------------------------------------------------------------------------------

    def stats(self) -> EngineStats:
        """A snapshot of counts, O(1)."""
        counters = self._scheduler.counters
        return EngineStats(
            kv_blocks_total=self._blocks.num_blocks,
            kv_blocks_free=self._blocks.num_free,
            kv_blocks_cached=self._blocks.num_cached,
            kv_blocks_used=self._blocks.num_used,
            queue_depth=self._scheduler.num_waiting,
            active_sequences=self._scheduler.num_running,
            batch_tokens=self._batch_tokens if self.has_work() else 0,
            prefix_cache_queries=counters.num_queried,
            prefix_cache_hits=counters.num_hit,
            prefix_cache_hit_ratio=counters.num_hit / counters.num_queried if counters.num_queried else 0.0,
            preemptions_total=counters.num_preemptions,
            kv_evictions_total=self._blocks.num_evictions,
            drafted_tokens_total=counters.num_drafted,
            accepted_tokens_total=counters.num_accepted,
            steps_total=self._num_steps,
        )

    def check_integrity(self) -> None:
        """Count blocks and requests again; O(blocks), for idle moments and tests.

        Raises:
            EngineError: a block or a request is lost, doubled, or counted wrongly.

        """
        self._scheduler.check_integrity()
        if set(self._scheduler.live_ids) != set(self._samplers):
            raise EngineError(f"{len(self._scheduler.live_ids)} live requests have {len(self._samplers)} samplers")
