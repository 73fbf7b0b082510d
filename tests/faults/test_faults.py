"""A storm of broken and hostile clients beside healthy ones: these notice nothing, and when it is over nothing is left of it."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import attrs
import httpx
import pytest
import trio

from processes import Launch, Launched
from support import Serve, is_quiet, wait_until, write_bigram

from .healthy import Healthy
from .poison import BAD_STEP, circle_logits, expected_text, load_poisonable
from .storm import KINDS, MODEL, attack

pytestmark = pytest.mark.faults

NUM_ATTACKS = 2000
AT_ONCE = 60
NUM_HEALTHY = 8
TIME_LIMIT_S = 60
PROBES_P99_MS = 20
"""Of all probes together; a path alone has too few in a quarter of a minute to tell its slowest hundredth."""
MEANT = {"500 internal_error", "503 no_capacity", "504 deadline_exceeded", "200 deadline_exceeded"}
"""Poisoned prompts, full pools and passed deadlines (in a stream too); any other error of the server's is a defect."""
IDLE_WORKERS = 2
"""Threads that Trio keeps for a while after their work: one prepares long prompts, one reads files."""
ENGINE = {"num_blocks": 600, "max_batch": 24, "max_model_len": 4500, "max_batch_tokens": 1024}
LIMITS = {
    "queue_capacity": 32,
    "queue_deadline_ms": 2000,
    "send_timeout_s": 1.0,
    "read_timeout_s": 2.0,
    "max_body_bytes": 64 * 1024,
    "max_connections": 256,
}
"""A small pool, a short queue and little patience."""


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A model that counts in a circle."""
    return write_bigram(tmp_path / MODEL, circle_logits())


@pytest.fixture
def server(launch: Launch, model: Path) -> Launched:
    """A process of its own, so that nobody is measured but the server."""
    launched = launch(model, module="faults.poisoned", **ENGINE, **LIMITS)
    launched.wait_ready()
    return launched


@contextmanager
def probed(server: Launched) -> Iterator[dict[str, dict[str, float]]]:
    """Ask the probes from another process for the length of the block; then what the prober prints is there."""
    command = [sys.executable, str(Path(__file__).with_name("prober.py")), server.health.removeprefix("http://")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as prober:
        taken_ms: dict[str, dict[str, float]] = {}
        try:
            yield taken_ms
        finally:
            written, _ = prober.communicate(timeout=30)
    taken_ms.update(json.loads(written))


async def storm(server: Launched, *, seed: int) -> Counter[str]:
    """All attacks, so many at once; what came back."""
    dice = random.Random(seed)
    answers: Counter[str] = Counter()
    places = trio.CapacityLimiter(AT_ONCE)
    address = server.api.removeprefix("http://")

    async def one(number: int) -> None:
        async with places:
            await attack(address, KINDS[number % len(KINDS)], random.Random(dice.random()), answers)

    async with trio.open_nursery() as nursery:
        for number in range(NUM_ATTACKS):
            nursery.start_soon(one, number)
    return answers


@attrs.frozen
class Belongings:
    """What the server's process holds, and how many requests it has been given."""

    files: int
    threads: int
    tasks: int
    memory_mib: float
    requests: int

    @classmethod
    def of(cls, server: Launched) -> Belongings:
        """Now."""
        popen = server.process.popen
        popen.send_signal(signal.SIGUSR1)
        census = server.process.wait_for("census")
        process = Path(f"/proc/{popen.pid}")
        status = dict(line.split(":", 1) for line in (process / "status").read_text().splitlines())
        return cls(
            files=len(list((process / "fd").iterdir())),
            threads=int(status["Threads"]),
            tasks=census["tasks"],
            memory_mib=int(status["VmRSS"].split()[0]) / 1024,
            requests=census["requests"],
        )

    def is_within(self, before: Belongings) -> bool:
        """Whether nothing has been added that should be given back."""
        return (
            self.files <= before.files and self.tasks <= before.tasks and self.threads <= before.threads + IDLE_WORKERS
        )


def counted_requests(exposition: str) -> float:
    """The sum over all routes and outcomes in the text of /metrics."""
    lines = exposition.splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith("tlserve_requests_total{"))


async def weather(server: Launched, healthy: Healthy) -> Counter[str]:
    """The storm, with healthy clients from its beginning to its end."""
    is_over = trio.Event()
    with trio.fail_after(TIME_LIMIT_S + 10):
        async with trio.open_nursery() as nursery:
            for number in range(NUM_HEALTHY):
                nursery.start_soon(healthy.stream_on, server.api, number, is_over)
            answers = await storm(server, seed=7)
            is_over.set()
    return answers


def test_a_storm_passes_over_healthy_streams_and_leaves_nothing(
    server: Launched, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two thousand attacks: every healthy stream right to the token, no unmeant 5xx, every request counted, all of it given back."""
    body = {"model": MODEL, "messages": [{"role": "user", "content": "a"}], "max_tokens": 1}
    assert httpx.post(f"{server.api}/v1/chat/completions", json=body).status_code == 200
    assert is_quiet(server)
    before = Belongings.of(server)
    healthy = Healthy()
    started = time.monotonic()
    with probed(server) as probes_ms:
        answers = trio.run(weather, server, healthy)
    took_s = time.monotonic() - started

    wait_until(lambda: is_quiet(server), seconds=10)
    wait_until(lambda: Belongings.of(server).is_within(before), seconds=10)
    after = Belongings.of(server)
    with capsys.disabled():
        sys.stdout.write(
            f"\n{NUM_ATTACKS} attacks in {took_s:.1f} s; answers {dict(answers.most_common())}\n"
            f"healthy streams {healthy.finished.total()}, told to come again {dict(healthy.refused)}\n"
            f"probes {probes_ms} ms; before {before}, after {after}\n"
        )
    assert healthy.wrong == []
    assert min(healthy.finished[number] for number in range(NUM_HEALTHY)) >= 1
    assert {answer for answer in answers if answer.startswith(("5", "200 "))} <= MEANT, answers
    assert not any(answer.startswith("hung") for answer in answers), answers
    assert counted_requests(httpx.get(f"{server.health}/metrics").text) == after.requests
    assert took_s < TIME_LIMIT_S
    assert after.memory_mib < before.memory_mib + 100
    assert probes_ms["all"]["p99"] < PROBES_P99_MS


def test_steps_that_fail_now_and_then_end_their_own_requests(serve: Serve, model: Path) -> None:
    """A forward pass that raises takes its step's requests with it, each told so; later ones are served, right to the token."""
    server = serve(model, engine=ENGINE, load=load_poisonable, **LIMITS)
    for _ in range(10):
        failed = server.complete(f"a{BAD_STEP}b", max_tokens=5)
        assert (failed.status_code, failed.json()["error"]["code"]) == (500, "internal_error")
        served = server.complete("a", max_tokens=50, temperature=0)
        assert served.json()["choices"][0]["text"] == expected_text("a", 50)

    wait_until(lambda: is_quiet(server))
    wait_until(lambda: counted_requests(server.health.get("/metrics").text) == 20)
