from __future__ import annotations

import gc
import sys
from collections.abc import Sequence

import numpy as np

from tlserve.config import EngineConfig, SpeculativeConfig
from tlserve.decode.params import SamplingParams
from tlserve.engine.engine import Engine
from tlserve.engine.messages import GenRequest
from tlserve.model.bigram import BigramRunner
from tlserve.model.runner import Capacity

PARAMS = SamplingParams(frequency_penalty=0.1, logit_bias={3: 1.0}, logprobs=2, top_p=0.9)


def serve(engine: Engine, numbers: Sequence[int]) -> None:
    """A request for each number, of a few tenants, priorities and salts; every seventh is aborted on its way."""
    for number in numbers:
        prompt = tuple(np.random.default_rng(number).integers(0, 256, 24).tolist())
        request = engine.add_request(
            GenRequest(
                prompt=prompt,
                params=PARAMS,
                seed=number,
                max_tokens=3,
                tenant=f"tenant {number}",
                priority=number % 3,
                cache_salt=f"salt {number % 50}",
            )
        )
        if number % 7 == 0:
            engine.step()
            engine.abort(request)
        if number % 16 == 15:
            drain(engine)
    drain(engine)


def drain(engine: Engine) -> None:
    while engine.has_work():
        engine.step()
        engine.take_notices()


def test_ten_thousand_requests_leave_nothing_behind() -> None:
    """From the thousandth to the ten thousandth, not one object in nine requests stays behind."""
    table = np.random.default_rng(0).normal(size=(256, 256)).astype(np.float32)
    runner = BigramRunner(table, Capacity(num_blocks=64, block_size=8, max_model_len=64))
    engine = Engine(runner, EngineConfig(speculative=SpeculativeConfig()), max_waiting=100)
    serve(engine, range(1000))
    before = num_allocated()
    serve(engine, range(1000, 10_000))
    assert num_allocated() - before < 1000
    assert engine.stats().kv_blocks_used == 0


def num_allocated() -> int:
    """Blocks of memory that Python's objects occupy."""
    gc.collect()
    return sys.getallocatedblocks()
