"""The loop thread's face of the engine: submit, embed, counters, and the life of the engine thread.

``open_engine`` is the only place where the engine thread begins and ends.
"""

from __future__ import annotations

import itertools
import queue
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, closing
from functools import partial

import attrs
import trio

from tlserve.bridge.mailroom import Mailroom
from tlserve.bridge.messages import Command, Delivery, Embed, Stop, Submit
from tlserve.bridge.pulse import Pulse
from tlserve.bridge.ticket import Ticket
from tlserve.bridge.worker import EngineLoop
from tlserve.config import ServeConfig
from tlserve.engine.load import LoadedEngine, ServedModel
from tlserve.engine.messages import EngineStats, GenRequest
from tlserve.engine.progress import LoadPhase, LoadProgress, Report
from tlserve.errors import EngineDead, EngineError, LoadCancelled, QueueFull
from tlserve.names import RequestId

Loader = Callable[[ServeConfig, Report], LoadedEngine]


class EngineClient:
    """What request handlers and probes may ask of the engine; nothing here waits for the engine thread.

    Loop thread only, but for what probes read in theirs: ``progress``, ``load_s``, ``busy_s`` and ``stats``.

    Attributes:
        progress: how far the model is.
        failure: what ended the engine thread; None while it lives, and when it was asked to end.
        load_s: seconds until the model was ready, fetching it included; None before that.
    """

    def __init__(self, *, queue_capacity: int) -> None:
        self.progress = LoadProgress(LoadPhase.STARTING)
        self.failure: BaseException | None = None
        self.load_s: float | None = None
        self._created_at = time.perf_counter()
        self._queue_capacity = queue_capacity
        self._inbox: queue.SimpleQueue[Command] = queue.SimpleQueue()
        self._mailroom = Mailroom(self._inbox.put)
        self._ids = itertools.count(1)
        self._model: ServedModel | None = None
        self._pulse = Pulse()
        self._news = trio.Event()
        self._settled = trio.Event()
        self._ended = trio.Event()
        self._stopping = threading.Event()

    @property
    def model(self) -> ServedModel | None:
        """What is being served, from the moment the engine is ready until its thread ends."""
        return self._model

    @property
    def num_open(self) -> int:
        """Requests whose ticket is open."""
        return self._mailroom.num_open

    def busy_s(self) -> float:
        """Seconds that the engine has been at its present turn; 0.0 when it waits for work."""
        return self._pulse.busy_s()

    def stats(self) -> EngineStats:
        """The engine's counters after its last step, with the requests that are still on their way to it."""
        stats = self._mailroom.stats
        return attrs.evolve(stats, queue_depth=max(stats.queue_depth, self._mailroom.num_waiting))

    def submit(self, requests: Sequence[GenRequest]) -> Ticket:
        """Admit all of ``requests`` or none, without waiting.

        Returns:
            An open ticket for them, in their order; whoever asked must close it.

        Raises:
            QueueFull: with these more requests would wait than ``queue_capacity`` allows.
            EngineDead: the engine thread has ended.
        """
        ids = self._admit(len(requests))
        max_events = sum(request.max_tokens + 2 for request in requests)  # Its start, its tokens, a failure.
        ticket = self._mailroom.open_ticket(ids, max_events=max_events)
        for request_id, request in zip(ids, requests, strict=True):
            self._inbox.put(Submit(attrs.evolve(request, id=request_id)))
        return ticket

    def embed(self, inputs: Sequence[tuple[int, ...]]) -> Ticket:
        """Have each of ``inputs`` embedded; as ``submit`` otherwise. The one event of each is Embedded or Failed."""
        ids = self._admit(len(inputs))
        ticket = self._mailroom.open_ticket(ids, max_events=len(ids))
        for request_id, tokens in zip(ids, inputs, strict=True):
            self._inbox.put(Embed(request_id, tokens))
        return ticket

    def fail_all(self, error: EngineError) -> None:
        """End every open request with ``error``."""
        self._mailroom.fail_all(error)

    async def wait_progress(self) -> None:
        """Wait until ``progress`` has changed."""
        await self._news.wait()

    async def wait_settled(self) -> None:
        """Wait until the model is loaded, or the engine thread has ended without getting there."""
        await self._settled.wait()

    async def wait_ended(self) -> None:
        """Wait until the engine thread has ended, for whatever reason; ``failure`` tells which."""
        await self._ended.wait()

    def _admit(self, count: int) -> list[RequestId]:
        if self._ended.is_set():
            raise EngineDead("the engine has stopped; this process is about to exit, try another replica")
        waiting = self._mailroom.num_waiting
        if waiting + count > self._queue_capacity:
            raise QueueFull(
                f"{waiting} requests wait already and the queue holds {self._queue_capacity}; try again shortly"
            )
        return [RequestId(next(self._ids)) for _ in range(count)]

    def _became_ready(self, model: ServedModel) -> None:
        self._model = model
        self.load_s = time.perf_counter() - self._created_at
        self._progressed(LoadProgress(LoadPhase.READY))
        self._settled.set()

    def _progressed(self, progress: LoadProgress) -> None:
        self.progress = progress
        self._news.set()
        self._news = trio.Event()

    def _set_ended(self) -> None:
        self._settled.set()
        self._ended.set()

    def _stop(self) -> None:
        self._stopping.set()
        self._inbox.put(Stop())

    def _run_thread(self, config: ServeConfig, load: Loader, token: trio.lowlevel.TrioToken) -> None:
        """The engine thread, from loading to its end."""

        def report(progress: LoadProgress) -> None:
            if self._stopping.is_set():
                raise LoadCancelled("stopped while the model was loading")
            token.run_sync_soon(self._progressed, progress)

        loaded = load(config, report)
        token.run_sync_soon(self._became_ready, loaded.model)

        def post(delivery: Delivery) -> None:
            token.run_sync_soon(self._mailroom.deliver, delivery)

        with closing(loaded.engine) as engine:
            EngineLoop(engine, self._inbox, post, step_delay=config.step_delay, pulse=self._pulse).run()

    async def _watch_thread(self, config: ServeConfig, load: Loader, released: trio.Event) -> None:
        """Run the engine thread; when it fails, fail its requests at once and the owner's block at its end."""
        token = trio.lowlevel.current_trio_token()
        try:
            await trio.to_thread.run_sync(
                partial(self._run_thread, config, load, token),
                limiter=trio.CapacityLimiter(1),  # Its own: a worker for life must not eat one of the shared threads.
                thread_name="engine",
            )
        except LoadCancelled:
            self._set_ended()
        except Exception as error:
            self.failure = error
            self._progressed(LoadProgress(LoadPhase.FAILED, detail=str(error)))
            self._model = None
            self._mailroom.fail_all(EngineDead("the engine failed while this request ran; send it again"))
            self._set_ended()
            await released.wait()
            raise


@asynccontextmanager
async def open_engine(config: ServeConfig, load: Loader) -> AsyncIterator[EngineClient]:
    """Start the engine thread, which loads the model first; stop it when the block ends.

    The block begins at once, while the model loads. It is not cancelled when the engine fails, so that open streams can be ended
    properly: watch ``wait_ended``. The engine's exception is raised when the block is left.

    Raises:
        StartupError: the model could not be loaded (inside an ExceptionGroup).
        EngineDead: the engine gave up (inside an ExceptionGroup).
    """
    client = EngineClient(queue_capacity=config.queue_capacity)
    released = trio.Event()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(client._watch_thread, config, load, released)  # noqa: SLF001  (one room, one noun)
        try:
            yield client
        finally:
            released.set()
            client._stop()  # noqa: SLF001
