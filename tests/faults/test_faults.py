"""A storm of broken and hostile clients beside healthy ones: these notice nothing, and when it is over nothing is left of it."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import attrs
import httpx
import pytest
import trio
from hypercorn.trio.task_group import TaskGroup

from support import Serve, Server, wait_until, write_bigram

from .poison import BAD_STEP, circle_logits, expected_text, load_poisonable
from .storm import KINDS, MODEL, attack

pytestmark = pytest.mark.faults

NUM_ATTACKS = 2000
AT_ONCE = 60
NUM_HEALTHY = 8
STREAM_TOKENS = 300
TIME_LIMIT_S = 60
MEANT = {"500 internal_error", "503 no_capacity", "504 deadline_exceeded", "200 deadline_exceeded"}
"""Poisoned prompts, full pools and passed deadlines (in a stream too); any other error of the server's is a defect."""


@pytest.fixture
def server(serve: Serve, tmp_path: Path) -> Server:
    """A server with a small pool, a short queue and little patience."""
    return serve(
        write_bigram(tmp_path / MODEL, circle_logits()),
        engine={"num_blocks": 600, "max_batch": 24, "max_model_len": 4500, "max_batch_tokens": 1024},
        load=load_poisonable,
        queue_capacity=32,
        queue_deadline_ms=2000,
        send_timeout_s=1.0,
        read_timeout_s=2.0,
        max_body_bytes=64 * 1024,
        max_connections=256,
    )


@attrs.define
class Healthy:
    """What the well-behaved clients have seen."""

    finished: Counter[int] = attrs.field(factory=Counter)
    refused: Counter[int] = attrs.field(factory=Counter)
    wrong: list[str] = attrs.field(factory=list)

    async def stream_on(self, server: Server, number: int, is_over: trio.Event) -> None:
        """Stream one answer after another until the storm is over, and hold each against what it must be."""
        last = chr(0x30 + number)
        body = {"model": MODEL, "messages": [{"role": "user", "content": f"client {last}"}], "temperature": 0}
        body |= {"stream": True, "max_tokens": STREAM_TOKENS}
        async with httpx.AsyncClient(base_url=server.base_url, timeout=30) as client:
            while not is_over.is_set() or not self.finished[number]:
                await self._one(client, body, number, expected_text(last, STREAM_TOKENS))

    async def _one(self, client: httpx.AsyncClient, body: dict[str, object], number: int, expected: str) -> None:
        headers = {"X-TL-Priority": "50"}
        async with client.stream("POST", "/chat/completions", json=body, headers=headers) as response:
            text = (await response.aread()).decode()
        if response.status_code in (429, 503):  # A full house is no fault: they come again, as they are told to.
            self.refused[response.status_code] += 1
            await trio.sleep(0.05)
            return
        got = streamed_text(text)
        if response.status_code != 200 or got != expected:
            self.wrong.append(f"{response.status_code}: {text[-300:]}")
        self.finished[number] += 1


def streamed_text(body: str) -> str:
    """The text of a chat stream that ends as it should; else what is wrong with it."""
    *events, done = [event.removeprefix("data: ") for event in body.split("\n\n") if event.startswith("data: ")]
    chunks = [json.loads(event) for event in events]
    if done != "[DONE]" or any("error" in chunk for chunk in chunks):
        return f"a stream that ends with {events[-1:]} {done}"
    return "".join(choice["delta"].get("content") or "" for chunk in chunks for choice in chunk["choices"])


@contextmanager
def probed(server: Server) -> Iterator[dict[str, float]]:
    """Ask the probes from another process for the length of the block; then the 99th percentile of each is there, in ms."""
    command = [sys.executable, str(Path(__file__).with_name("prober.py")), server.handle.health_addr]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as prober:
        p99_ms: dict[str, float] = {}
        try:
            yield p99_ms
        finally:
            written, _ = prober.communicate(timeout=30)
    p99_ms.update(json.loads(written))


async def storm(server: Server, *, seed: int) -> Counter[str]:
    """All attacks, so many at once; what came back."""
    dice = random.Random(seed)
    answers: Counter[str] = Counter()
    places = trio.CapacityLimiter(AT_ONCE)

    async def one(number: int) -> None:
        async with places:
            await attack(server.handle.http_addr, KINDS[number % len(KINDS)], random.Random(dice.random()), answers)

    async with trio.open_nursery() as nursery:
        for number in range(NUM_ATTACKS):
            nursery.start_soon(one, number)
    return answers


@attrs.frozen
class Belongings:
    """What the server's process holds."""

    files: int
    tasks: int
    memory_mib: float

    @classmethod
    def of(cls, server: Server) -> Belongings:
        """Now. The server lives in a thread of this process; its tasks are asked for in that thread."""
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        token = server.handle._token
        assert token is not None
        tasks = trio.from_thread.run_sync(lambda: trio.lowlevel.current_statistics().tasks_living, trio_token=token)
        return cls(len(list(Path("/proc/self/fd").iterdir())), tasks, pages * os.sysconf("SC_PAGE_SIZE") / 2**20)


def engine_is_empty(server: Server) -> bool:
    """Nothing waits, nothing runs, no block is held."""
    names = ("tl_engine_queue_depth", "tl_engine_active_sequences", 'tl_engine_kv_blocks{state="used"}')
    return all(server.metric(name) == 0 for name in names)


def counted_requests(server: Server) -> float:
    """The sum over all routes and outcomes."""
    lines = server.health.get("/metrics").text.splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith("tlserve_requests_total{"))


@pytest.fixture
def parsed(monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """How many requests Hypercorn has handed to an application, the health server's included."""
    paths: list[str] = []
    spawn_app = TaskGroup.spawn_app

    async def counting(self: TaskGroup, app: object, config: object, scope: dict[str, str], send: object) -> object:
        paths.append(scope["path"])
        return await spawn_app(self, app, config, scope, send)  # type: ignore[arg-type]

    monkeypatch.setattr(TaskGroup, "spawn_app", counting)
    return lambda: sum(path not in ("/readyz", "/metrics", "/healthz") for path in paths)


async def weather(server: Server, healthy: Healthy) -> Counter[str]:
    """The storm, with healthy clients from its beginning to its end."""
    is_over = trio.Event()
    with trio.fail_after(TIME_LIMIT_S + 10):
        async with trio.open_nursery() as nursery:
            for number in range(NUM_HEALTHY):
                nursery.start_soon(healthy.stream_on, server, number, is_over)
            answers = await storm(server, seed=7)
            is_over.set()
    return answers


def test_a_storm_passes_over_healthy_streams_and_leaves_nothing(
    parsed: Callable[[], int], server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two thousand attacks: every healthy stream right to the token, no unmeant 5xx, every request counted, all of it given back."""
    assert server.chat("a", max_tokens=1).status_code == 200
    assert engine_is_empty(server)
    before = Belongings.of(server)
    healthy = Healthy()
    started = time.monotonic()
    with probed(server) as p99_ms:
        answers = trio.run(weather, server, healthy)
    took_s = time.monotonic() - started

    wait_until(lambda: engine_is_empty(server), seconds=10)
    wait_until(lambda: Belongings.of(server).tasks <= before.tasks, seconds=10)
    wait_until(lambda: Belongings.of(server).files <= before.files, seconds=10)
    after = Belongings.of(server)
    with capsys.disabled():
        sys.stdout.write(
            f"\n{NUM_ATTACKS} attacks in {took_s:.1f} s; answers {dict(answers.most_common())}\n"
            f"healthy streams {healthy.finished.total()}, told to come again {dict(healthy.refused)}\n"
            f"probes p99 {p99_ms} ms; before {before}, after {after}\n"
        )
    assert healthy.wrong == []
    assert min(healthy.finished[number] for number in range(NUM_HEALTHY)) >= 1
    assert {answer for answer in answers if answer.startswith(("5", "200 "))} <= MEANT, answers
    assert not any(answer.startswith("hung") for answer in answers), answers
    assert counted_requests(server) == parsed()
    assert took_s < TIME_LIMIT_S
    assert after.memory_mib < before.memory_mib + 100
    assert max(p99_ms.values()) < 2000


def test_steps_that_fail_now_and_then_end_their_own_requests(server: Server) -> None:
    """A forward pass that raises takes its step's requests with it, each told so; later ones are served, right to the token."""
    for _ in range(10):
        failed = server.complete(f"a{BAD_STEP}b", max_tokens=5)
        assert (failed.status_code, failed.json()["error"]["code"]) == (500, "internal_error")
        served = server.complete("a", max_tokens=50, temperature=0)
        assert served.json()["choices"][0]["text"] == expected_text("a", 50)

    wait_until(lambda: engine_is_empty(server))
    assert counted_requests(server) == 20
