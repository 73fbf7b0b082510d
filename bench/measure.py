#!/usr/bin/env python3
"""Start tlserve on the real model and measure what the README reports: time to ready, memory, tokens per second.

Usage: measure.py [--config FILE] [--repeat N]

Prints a table. Numbers on a shared machine are noisy; each is the median of several runs.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

ROOT = Path(__file__).resolve().parents[1]
STORY = "Write a long story about a river, a lamp and a very old stone bridge."


class Server:
    """A tlserve process of its own, on free ports."""

    def __init__(self, config: Path) -> None:
        self.started = time.perf_counter()
        self.process = subprocess.Popen(  # noqa: S603  (our own command)
            [sys.executable, "-m", "tlserve", "--config", str(config)],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "TL_ENGINE__HTTP_LISTEN": "127.0.0.1:0", "TL_ENGINE__HEALTH_LISTEN": "127.0.0.1:0"},
        )
        line = self.next_event("listening")
        self.api = httpx.Client(base_url=f"http://{line['api']}", timeout=600)
        self.model = line["model"]
        self.ready = self.next_event("ready")
        self.ready_s = time.perf_counter() - self.started

    def next_event(self, event: str) -> dict[str, str]:
        """The next log line with this event."""
        for text in self.process.stdout or ():
            line: dict[str, str] = json.loads(text)
            if line["event"] == event:
                return line
        raise SystemExit(f"tlserve ended before it was {event}")

    def memory_mib(self) -> float:
        """Resident memory."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        kib = next(line.split()[1] for line in status.splitlines() if line.startswith("VmRSS"))
        return int(kib) / 1024

    def complete(self, prompt: str, max_tokens: int) -> tuple[float, float, int, int]:
        """One streamed chat: seconds to the first token and in all, tokens read and written."""
        body = {
            "model": self.model,
            "messages": [{"role": "user", "content": prompt}],
            "max_tokens": max_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        begin = time.perf_counter()
        first, usage = 0.0, {"prompt_tokens": 0, "completion_tokens": 0}
        with self.api.stream("POST", "/v1/chat/completions", json=body) as response:
            response.raise_for_status()
            for line in response.iter_lines():
                if not line.startswith("data: {"):
                    continue
                chunk = json.loads(line[6:])
                usage = chunk.get("usage") or usage
                if not first and chunk["choices"] and chunk["choices"][0]["delta"].get("content"):
                    first = time.perf_counter() - begin
        return first, time.perf_counter() - begin, usage["prompt_tokens"], usage["completion_tokens"]


@contextmanager
def running(config: Path) -> Iterator[Server]:
    """A server that is stopped afterwards."""
    server = Server(config)
    try:
        yield server
    finally:
        server.process.terminate()
        server.process.wait(60)


def decode_rate(server: Server) -> float:
    """Tokens per second of one stream, after its first token."""
    first, total, _, written = server.complete(STORY, 128)
    return (written - 1) / (total - first)


def prefill_rate(server: Server, salt: int) -> float:
    """Prompt tokens per second of about a thousand that the cache does not know."""
    words = " ".join(f"word{salt}x{index}" for index in range(170))
    first, _, read, _ = server.complete(words, 1)
    return read / first


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config", type=Path, default=ROOT / "runtime.toml")
    parser.add_argument("--repeat", type=int, default=5)
    options = parser.parse_args()
    with running(options.config) as server:
        print(f"first start: ready after {server.ready_s:.2f} s ({server.ready['runner']})")
    with running(options.config) as server:
        print(f"next start:  ready after {server.ready_s:.2f} s, {server.memory_mib():.0f} MiB resident")
        decode = statistics.median(decode_rate(server) for _ in range(options.repeat))
        prefill = statistics.median(prefill_rate(server, salt) for salt in range(options.repeat))
        print(f"one stream:  {decode:.0f} tokens/s")
        print(f"prefill:     {prefill:.0f} tokens/s")
        print(f"memory:      {server.memory_mib():.0f} MiB resident after this")


if __name__ == "__main__":
    main()
