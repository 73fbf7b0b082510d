#!/usr/bin/env python3
"""tlserve on the real model, in the numbers that its operators and users feel.

Usage: python -m bench.measure [--config FILE] [--rounds N]

Prints a table: time to ready, memory, speed, what the prefix cache, speculation and busy neighbours change, and how long
probes take under load. Each number is the median of several rounds. Machines are noisy: compare what one run printed.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path

import trio

from bench.client import Endpoint, connected
from bench.neighbours import neighbours
from bench.probes import probe_seconds
from bench.prompts import words
from bench.server import ROOT, Process, running
from bench.workloads import METRICS, WORKLOADS, Numbers, decode, prefill

COPY = "Repeat this list of words exactly, all of them, in this order: {0}. Answer with the list alone."

NEIGHBOURS = 2


def show(label: str, value: float, unit: str) -> None:
    """Print one line of the table."""
    print(f"{label:52}{value:>10.{0 if value >= 100 else 3}{'f' if value >= 100 else 'g'}}  {unit}", flush=True)


def medians(rounds: Iterable[Numbers]) -> Numbers:
    """The median of every metric."""
    listed = list(rounds)
    return {name: statistics.median(numbers[name] for numbers in listed) for name in listed[0]}


def measure_starts(config: Path) -> None:
    """Time to ready without and with compiled kernels on disk."""
    with tempfile.TemporaryDirectory() as cache:
        for label in ("ready after, first start (compiles its kernels)", "ready after, next start"):
            with running(config, {"NUMBA_CACHE_DIR": cache}) as server:
                show(label, server.ready_s, "s")


async def measure_speed(server: Process, rounds: int) -> None:
    """The five workloads, and the memory that is taken before and after the KV pool was filled."""
    show("resident memory, ready", server.memory_mib(), "MiB")
    async with connected("tlserve", server.base_url) as endpoint:
        for name, workload in WORKLOADS.items():
            for metric, value in medians([await workload(endpoint, (name, seed)) for seed in range(rounds)]).items():
                show(METRICS[metric].label, value, METRICS[metric].unit)
        seconds = await probe_seconds(endpoint, server.health_url, "probes")
        show("probes beside 16 clients and long prompts, median", 1e3 * statistics.median(seconds), "ms")
        show("probes beside 16 clients and long prompts, p99", 1e3 * seconds[len(seconds) * 99 // 100], "ms")
        await fill_pool(endpoint, int(server.facts["kv_tokens"]))
        label = f"resident memory, all {server.facts['kv_tokens']} tokens of KV written"
        show(label, server.memory_mib(), "MiB")
        await measure_neighbours(endpoint, rounds)


async def fill_pool(endpoint: Endpoint, tokens: int) -> None:
    """Send prompts that nobody has seen until every block has been written once."""
    written = 0
    while written < tokens + 2000:
        written += (await endpoint.ask(words(1800, ("fill", written)), 1)).prompt_tokens


async def measure_neighbours(endpoint: Endpoint, rounds: int) -> None:
    """The share of speed that is left beside processes that burn CPU, in turn with and without them."""
    shares: list[Numbers] = []
    for seed in range(rounds):
        quiet = await decode(endpoint, ("quiet", seed)) | await prefill(endpoint, ("quiet", seed))
        with neighbours(NEIGHBOURS):
            busy = await decode(endpoint, ("busy", seed)) | await prefill(endpoint, ("busy", seed))
        shares.append({name: busy[name] / quiet[name] for name in quiet})
    for name, share in medians(shares).items():
        show(f"speed kept beside {NEIGHBOURS} busy processes, {name}", 100 * share, "%")


async def measure_speculation(plain: Process, speculating: Process, rounds: int) -> None:
    """How much faster an answer comes that repeats its prompt."""
    ratios = []
    async with connected("plain", plain.base_url) as one, connected("speculating", speculating.base_url) as other:
        for seed in range(rounds):
            prompt = COPY.format(words(40, ("copy", seed)))
            rates = [(await endpoint.ask(prompt, 100)).decode_rate for endpoint in (one, other)]
            ratios.append(rates[1] / rates[0])
    show("speculation, output of a copy task", statistics.median(ratios), "times faster")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="Measure tlserve on the real model.")
    parser.add_argument("--config", type=Path, default=ROOT / "runtime.toml")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    print(time.strftime("%Y-%m-%d %H:%M"), Path("/proc/loadavg").read_text().split()[0], "processes running")
    measure_starts(options.config)
    with running(options.config) as server:
        print(server.facts["runner"])
        trio.run(measure_speed, server, options.rounds)
        with running(options.config, {"TL_ENGINE__SPECULATIVE__METHOD": "prompt_lookup"}) as other:
            trio.run(measure_speculation, server, other, options.rounds)


if __name__ == "__main__":
    main()
