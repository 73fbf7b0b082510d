#!/usr/bin/env python3
"""Two servers side by side: the five workloads on both, in turn, in one run.

Usage: python -m bench.peer PEER_URL [--ours URL | --config FILE] [--rounds N] [--only decode,stall]

Without --ours a tlserve of its own is started and stopped. Machines are noisy, so only what was measured in turn is
compared: each round drives both servers, the second before the first in every other round, and the ratio printed is the
median of the rounds' ratios, from the user's side: 2.0 is twice as good.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import trio

from bench.client import Endpoint, connected
from bench.server import ROOT, running
from bench.workloads import METRICS, WORKLOADS, Numbers

OURS = "tlserve"

Rounds = list[tuple[Numbers, Numbers]]
"""Of each round: what we did, what the peer did."""


async def compare(
    ours: Endpoint, peer: Endpoint, names: Sequence[str], rounds: int, results: dict[str, Rounds]
) -> None:
    """Run the named workloads; adds each round to ``results`` as it ends."""
    salt = time.time_ns()
    for number in range(rounds):
        for name in names:
            numbers: dict[str, Numbers] = {}
            for endpoint in (ours, peer)[:: -1 if number % 2 else 1]:
                numbers[endpoint.name] = await WORKLOADS[name](endpoint, (salt, name, number))
            results.setdefault(name, []).append((numbers[ours.name], numbers[peer.name]))
            print(f"round {number + 1} of {rounds}, {name}: {numbers}", file=sys.stderr, flush=True)


def table(results: dict[str, Rounds], ours: str, peer: str) -> Iterator[str]:
    """The lines of a Markdown table."""
    yield f"| | unit | {ours} | {peer} | ratio | of the rounds |"
    yield "|---|---|--:|--:|--:|---|"
    for rounds in results.values():
        for name in rounds[0][0]:
            metric = METRICS[name]
            mine, theirs = ([number[name] for number in side] for side in zip(*rounds, strict=True))
            ratios = [a / b if metric.higher_is_better else b / a for a, b in zip(mine, theirs, strict=True)]
            yield (
                f"| {metric.label} | {metric.unit} | {statistics.median(mine):.3g} | {statistics.median(theirs):.3g} "
                f"| {statistics.median(ratios):.2f} | {min(ratios):.2f} to {max(ratios):.2f} |"
            )


@contextmanager
def our_server(url: str | None, config: Path) -> Iterator[str]:
    """The base URL of a tlserve: the given one, or one that is started for this run."""
    if url is not None:
        yield url
        return
    with running(config) as server:
        yield server.base_url


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description="Compare a server with tlserve.")
    parser.add_argument("peer", metavar="PEER_URL", help="base URL of the other server")
    parser.add_argument("--peer-name", default="peer", help="how the table calls it")
    parser.add_argument("--ours", metavar="URL", help="a tlserve that is running already")
    parser.add_argument("--config", type=Path, default=ROOT / "runtime.toml", help="what to start one with")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", default=",".join(WORKLOADS), help="workloads, with commas")
    options = parser.parse_args()
    options.only = options.only.split(",")
    unknown = set(options.only) - set(WORKLOADS)
    if unknown or options.rounds < 1 or options.peer_name == OURS:
        parser.error(f"--only takes {', '.join(WORKLOADS)}; --rounds at least 1; --peer-name anything but {OURS}")
    return options


async def run(options: argparse.Namespace, url: str) -> None:
    """Connect, compare, print; also what there is when somebody loses patience."""
    results: dict[str, Rounds] = {}
    async with connected(OURS, url) as ours, connected(options.peer_name, options.peer) as peer:
        try:
            await compare(ours, peer, options.only, options.rounds, results)
        finally:
            print("\n".join(table(results, ours.name, peer.name)))


def main() -> None:
    """Run the comparison."""
    options = parse_arguments()
    with our_server(options.ours, options.config) as url:
        trio.run(run, options, url)


if __name__ == "__main__":
    main()
