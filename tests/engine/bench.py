"""A runner whose logits depend on every token in the KV blocks, and a bench that drives an engine over it."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from attrs import evolve
from numpy.typing import NDArray

from tlserve.config import EngineConfig, SpeculativeConfig
from tlserve.decode.params import SamplingParams
from tlserve.engine.engine import Engine
from tlserve.engine.messages import Failed, GenRequest, Started, TokenOut
from tlserve.model.batch import ForwardBatch
from tlserve.names import RequestId

VOCAB = 31
GREEDY = SamplingParams(temperature=0.0, logprobs=2)
SPECULATIVE = SpeculativeConfig(num_tokens=4, ngram_max=3, ngram_min=1)


class FakeRunner:
    """Keeps token ids where a model keeps keys and values, and hashes the whole context into logits.

    So a row read from a wrong, stale or missing block changes the answer. The token after the last one, modulo 5, is
    favoured: answers run in circles, which prompt lookup guesses often, but not always.
    """

    def __init__(self, *, num_blocks: int = 64, block_size: int = 4, max_model_len: int = 256) -> None:
        self.description = "fake"
        self.vocab_size = VOCAB
        self.hidden_size = 3
        self.max_model_len = max_model_len
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.kv_bytes_per_block = 4 * block_size
        self.kv = np.full((num_blocks, block_size), -1, dtype=np.int32)
        self.failures: list[Exception] = []
        self.poison: set[int] = set()
        self.batches: list[ForwardBatch] = []
        self.spoils = False  # whether what is written now is NaN, and so every row that attends to it
        self.has_spoilt = False
        self._spoilt = np.zeros((num_blocks, block_size), dtype=bool)
        self._known: dict[bytes, NDArray[np.float32]] = {}

    def forward(self, batch: ForwardBatch) -> NDArray[np.float32]:
        self.batches.append(batch)
        if self.failures:
            raise self.failures.pop(0)
        wanted = set(batch.logit_rows.tolist())
        logits = []
        for index, table in enumerate(batch.block_tables):
            for row in range(batch.query_start[index], batch.query_start[index + 1]):
                position = int(batch.positions[row])
                slot = table[position // self.block_size], position % self.block_size
                self.kv[slot], self._spoilt[slot] = batch.tokens[row], self.spoils
                self.has_spoilt |= self.spoils
                if row in wanted:
                    logits.append(self._logits(self.kv[table].reshape(-1)[: position + 1]))
                    if self._spoilt[table].reshape(-1)[: position + 1].any():
                        logits[-1][:] = np.nan
        return np.stack(logits) if logits else np.zeros((0, VOCAB), dtype=np.float32)

    def run_once(self, tokens: Sequence[int]) -> NDArray[np.float32]:
        return np.concatenate(list(self.run_pieces(tokens)))

    def run_pieces(self, tokens: Sequence[int]) -> Iterator[NDArray[np.float32]]:
        for start in range(0, len(tokens), 2):
            if self.failures:
                raise self.failures.pop(0)
            yield np.outer(np.array(tokens[start : start + 2]), np.arange(1, 4)).astype(np.float32)

    def close(self) -> None:
        pass

    def _logits(self, context: NDArray[np.int32]) -> NDArray[np.float32]:
        key = context.tobytes()
        if key not in self._known:
            if context.min() < 0:
                raise ValueError("a row attends to a slot that nothing was written to")
            row = np.random.default_rng(zlib.crc32(key)).normal(size=VOCAB).astype(np.float32)
            row[(context[-1] + 1) % 5] += 2.5
            self._known[key] = row
        row = self._known[key].copy()
        if int(context[-1]) in self.poison:
            row[7] = np.nan
        return row


class Bench:
    """An engine over a fake runner; checks its integrity after every step and keeps what came out."""

    def __init__(self, runner: FakeRunner | None = None, *, max_waiting: int = 1000, **settings: Any) -> None:
        self.runner = runner or FakeRunner()
        config = evolve(EngineConfig(), **settings)
        self.max_batch_tokens = config.max_batch_tokens
        self.engine = Engine(self.runner, config, max_waiting)
        self.requests: dict[RequestId, GenRequest] = {}
        self.outputs: dict[RequestId, list[TokenOut]] = {}
        self.started: dict[RequestId, Started] = {}
        self.failed: dict[RequestId, Failed] = {}
        self.aborted: set[RequestId] = set()
        self.num_steps = 0
        self.submitted_at: dict[RequestId, int] = {}
        self.ended_at: dict[RequestId, int] = {}

    def add(
        self, prompt: Sequence[int], params: SamplingParams = GREEDY, *, max_tokens: int = 8, **more: Any
    ) -> RequestId:
        request = GenRequest(prompt=tuple(prompt), params=params, seed=11, max_tokens=max_tokens)
        return self.submit(evolve(request, **more))

    def submit(self, request: GenRequest) -> RequestId:
        name = self.engine.add_request(request)
        self.requests[name] = request
        self.outputs[name] = []
        self.submitted_at[name] = self.num_steps
        return name

    def step(self) -> list[TokenOut]:
        tokens = self.engine.step()
        self.num_steps += 1
        assert all(batch.num_rows <= self.max_batch_tokens for batch in self.runner.batches[-1:])
        self.engine.check_integrity()
        for token in tokens:
            assert not self.has_ended(token.id), f"{token} comes after the end"
            if not self.outputs[token.id]:
                self.check_wait(token.id)
            self.outputs[token.id].append(token)
        for notice in self.engine.take_notices():
            if isinstance(notice, Started):
                self.started[notice.id] = notice
            else:
                assert not self.has_ended(notice.id), f"{notice} comes after the end"
                self.failed[notice.id] = notice
        for name in self.requests:
            if name not in self.ended_at and self.has_ended(name):
                self.ended_at[name] = self.num_steps
        return tokens

    def check_wait(self, name: RequestId) -> None:
        """The bound on the steps to a first token: the tokens of all that were alive meanwhile.

        Once more for each later request of higher priority: it may have undone what had been computed for others.
        """
        since, priority = self.submitted_at[name], self.requests[name].priority
        alive = [other for other in self.requests if self.ended_at.get(other, self.num_steps) >= since]
        tokens = sum(len(self.requests[other].prompt) + self.requests[other].max_tokens for other in alive)
        urgent = [n for n in alive if n > name and self.requests[n].priority > priority]
        assert self.num_steps - since <= tokens * (1 + len(urgent)), f"request {name} has waited too long"

    def abort(self, name: RequestId) -> None:
        self.engine.abort(name)
        self.aborted.add(name)
        self.engine.check_integrity()

    def live(self) -> list[RequestId]:
        """The requests that have not ended."""
        return [name for name in self.requests if not self.has_ended(name)]

    def has_ended(self, name: RequestId) -> bool:
        """Finished, failed or aborted."""
        outputs = self.outputs[name]
        return name in self.failed or name in self.aborted or bool(outputs and outputs[-1].finish)

    def run(self, max_steps: int = 2000) -> None:
        for _ in range(max_steps):
            if self.engine.has_work():
                self.step()
        assert not self.engine.has_work(), f"work is left after {max_steps} steps: {self.engine.stats()}"

    def answer(self, name: RequestId) -> list[tuple[object, ...]]:
        """What a request got, without its id."""
        return [(out.token, out.logprob, out.top, out.finish) for out in self.outputs[name]]

    def serial_answer(self, name: RequestId) -> list[tuple[object, ...]]:
        """What the same request gets alone, computed whole, with no cache and no drafts."""
        runner = FakeRunner(num_blocks=64, block_size=self.runner.block_size)
        runner._known = self.runner._known
        runner.poison = self.runner.poison
        alone = Bench(runner, prefix_cache="off")
        copy = alone.submit(evolve(self.requests[name], id=None))
        alone.run()
        return alone.answer(copy)
