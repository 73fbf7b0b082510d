#!/usr/bin/env python3
"""What a step of the engine costs beside its forward pass: scheduling, assembling, sampling, taking in.

Usage: python -m bench.engine MODEL [--streams N] [--threads N]

One row for each way of choosing tokens: the medians of whole steps of decode, of what is not the forward pass, and its share.
The temperatures above 1 flatten the distribution, which is the hard case for top_p.
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np
from attrs import define

from tlserve.config import EngineConfig
from tlserve.decode.params import SamplingParams
from tlserve.engine.engine import Engine
from tlserve.engine.machine import available_cpus
from tlserve.engine.messages import GenRequest
from tlserve.model.batch import ForwardBatch
from tlserve.model.load import load_runner
from tlserve.model.runner import ModelRunner
from tlserve.weights.checkpoint import open_checkpoint

WARM_STEPS, STEPS = 5, 40

WAYS = {
    "greedy": SamplingParams(temperature=0.0),
    "greedy, 5 logprobs": SamplingParams(temperature=0.0, logprobs=5),
    "greedy, penalties": SamplingParams(temperature=0.0, frequency_penalty=0.3, repetition_penalty=1.1),
    "sampled": SamplingParams(),
    "min_p": SamplingParams(min_p=0.05),
    "top_p": SamplingParams(top_p=0.9),
    "top_p, temperature 2": SamplingParams(temperature=2.0, top_p=0.95),
    "top_p, temperature 100": SamplingParams(temperature=100.0, top_p=0.95),
    "top_k and top_p": SamplingParams(top_k=40, top_p=0.9),
    "all of it": SamplingParams(temperature=0.8, top_k=100, min_p=0.01, top_p=0.95, logprobs=20, presence_penalty=0.2),
}


@define(eq=False)
class TimedRunner:
    """The model, and the seconds that its last forward pass took."""

    runner: ModelRunner
    seconds: float = 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.runner, name)

    def forward(self, batch: ForwardBatch) -> Any:
        """As the model does, timed."""
        start = time.perf_counter()
        logits = self.runner.forward(batch)
        self.seconds = time.perf_counter() - start
        return logits


def measure(runner: ModelRunner, params: SamplingParams, streams: int) -> tuple[float, float]:
    """Medians in seconds: of a step, and of what is not the forward pass."""
    timed: Any = TimedRunner(runner)
    engine = Engine(timed, EngineConfig(max_batch=streams), max_waiting=streams)
    draw = np.random.default_rng(0)
    for seed in range(streams):
        prompt = tuple(draw.integers(3, runner.vocab_size, 16).tolist())
        engine.add_request(GenRequest(prompt=prompt, params=params, seed=seed, max_tokens=WARM_STEPS + STEPS + 5))
    for _ in range(WARM_STEPS):
        engine.step()
    steps, others = [], []
    for _ in range(STEPS):
        start = time.perf_counter()
        engine.step()
        steps.append(time.perf_counter() - start)
        others.append(steps[-1] - timed.seconds)
    engine.abort_all()
    return statistics.median(steps), statistics.median(others)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--streams", type=int, default=16)
    parser.add_argument("--threads", type=int, default=None)
    arguments = parser.parse_args()
    runner = load_runner(
        open_checkpoint(arguments.model),
        kernels="numba",
        weights="auto",
        num_blocks=16 * arguments.streams,
        block_size=16,
        max_model_len=256,
        threads=arguments.threads or available_cpus(),
        report=lambda _: None,
    )
    print(f"{arguments.streams} streams\n{'':24}{'step, ms':>10}{'beside, ms':>12}{'share':>8}")
    for name, params in WAYS.items():
        step, other = measure(runner, params, arguments.streams)
        print(f"{name:24}{step * 1e3:10.2f}{other * 1e3:12.2f}{other / step:8.1%}")
    runner.close()


if __name__ == "__main__":
    main()
