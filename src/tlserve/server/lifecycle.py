"""The whole process on one page: what lives inside of what, and how it comes down.

::

    trio.run(serve)
    └─ open_tracing                         the exporter of traces, where there is one; it sends the last request's
       └─ open_engine                       the engine thread; it outlives everything that may hold a ticket
          └─ house (nursery)
             ├─ health server               first up, last down; in a thread of its own
             └─ watchers (nursery)
                ├─ heartbeat                shows the health server's thread that this loop turns
                ├─ process metrics          looks at what the system says of the process now and then
                ├─ guard                    follows the files of API keys and certificate
                ├─ deadlines                one task for each request that has one
                ├─ signals                  SIGTERM or SIGINT begins the drain; a second one kills
                ├─ engine                   an engine that fails begins the drain too
                ├─ drain                    at the limit: ends what still runs, then cuts who no longer reads
                └─ API server               a nursery per connection, inside it one per request, inside it a ticket

Sockets are bound before any of it, the model is loaded after all of it is up. Teardown is the reverse of the indentation.
"""

from __future__ import annotations

import faulthandler
import signal
from collections.abc import Callable
from contextlib import ExitStack, closing
from functools import partial

import trio
from attrs import define, field, frozen

from tlserve.bridge.client import EngineClient, Loader, open_engine
from tlserve.config import ServeConfig
from tlserve.engine.load import load_engine
from tlserve.errors import StepFailed
from tlserve.server.app import create_api_app
from tlserve.server.aside import serve_aside
from tlserve.server.deadline import Deadlines
from tlserve.server.guard import Guard
from tlserve.server.health import HealthApp, Readiness, add_metrics
from tlserve.server.heartbeat import Heartbeat
from tlserve.server.http import HttpServer
from tlserve.server.limits import MAX_PROBE_CONNECTIONS, ConnectionLimits, connections_within
from tlserve.server.listen import HttpConfig, Listener, bind
from tlserve.server.log import log_event
from tlserve.server.metrics import Metrics
from tlserve.server.room import RequestRooms
from tlserve.server.shutdown import Shutdown
from tlserve.server.tracing import Trace, open_tracing
from tlserve.signals import STOP_SIGNALS, kill_on_signals

_LOADING_LINE_S = 5.0
"""How often the log says how far a phase of loading is, in seconds."""

_LAST_RESORT_S = 4.0
"""How long after the drain limit the process ends by itself, whatever still hangs: with the stacks of all threads on stderr, exit code 1."""

_LAST_WORDS_S = 1.0
"""How long ended streams have to send their error event before their connections are cut."""


@frozen
class Addresses:
    """Where a client on this machine reaches the two servers, as ``host:port``."""

    api: str
    health: str


async def serve(
    config: ServeConfig,
    shutdown: Shutdown,
    *,
    on_bound: Callable[[Addresses], None] = lambda _: None,
    on_ready: Callable[[], None] = lambda: None,
    load: Loader = load_engine,
) -> None:
    """Serve until ``shutdown`` begins, from within or without; return when everything is down.

    Raises:
        ConfigError: the API keys, the certificate or the tracing cannot be used; nothing has been started then.
        ListenError: an address cannot be bound; nothing else has been started then.
        StartupError: the model cannot be loaded (inside an ExceptionGroup).
        EngineDead: the engine gave up (inside an ExceptionGroup); open requests have been told.
    """
    guard = Guard.of(config)
    async with open_tracing(config) as trace:
        with ExitStack() as sockets:
            api_socket, health_socket = (
                sockets.enter_context(closing(bind(text, what=what, send_timeout_s=config.send_timeout_s)))
                for text, what in ((config.http_listen, "http_listen"), (config.health_listen, "health_listen"))
            )
            log_event("listening", api=str(api_socket.bound), health=str(health_socket.bound), model=config.model_id)
            on_bound(Addresses(api_socket.reachable, health_socket.reachable))
            async with open_engine(config, load) as engine:
                await House(config, shutdown, guard, engine, api_socket, health_socket, on_ready, trace).run()
    log_event("stopped", reason=shutdown.reason)


@define(eq=False)
class House:
    """The two servers over a running engine, and those who watch over them."""

    config: ServeConfig
    shutdown: Shutdown
    guard: Guard
    engine: EngineClient
    api_socket: Listener
    health_socket: Listener
    on_ready: Callable[[], None]
    trace: Trace | None
    _heartbeat: Heartbeat = field(factory=Heartbeat, init=False)
    _readiness: Readiness = field(init=False)

    def __attrs_post_init__(self) -> None:
        watchdog_s = self.config.step_watchdog_s
        self._readiness = Readiness(self.engine, self.shutdown, self._heartbeat, watchdog_s=watchdog_s)

    async def run(self) -> None:
        """Live until the shutdown begins and the last request has ended."""
        metrics = Metrics(self.config, self.engine)
        health = self._health_server(metrics)
        async with trio.open_nursery() as house:
            house.start_soon(partial(serve_aside, health, self.shutdown.wait_closed, name="health"))
            async with trio.open_nursery() as watchers:
                if self.config.handle_signals:
                    watchers.start_soon(self._watch_signals)
                watchers.start_soon(self._watch_engine)
                watchers.start_soon(self._heartbeat.beat)
                watchers.start_soon(self.guard.watch)
                watchers.start_soon(metrics.process.watch)
                api = self._api_server(metrics, Deadlines(watchers))
                watchers.start_soon(self._drain, api, metrics)
                await api.serve(self.shutdown.wait_refusing)
                watchers.cancel_scope.cancel()
            self.shutdown.close()

    def _api_server(self, metrics: Metrics, deadlines: Deadlines) -> HttpServer:
        app = create_api_app(
            self.config,
            self.engine,
            self.shutdown,
            keys=self.guard.keys,
            deadlines=deadlines,
            metrics=metrics.requests,
        )
        if self.config.metrics_compat == "vllm":
            add_metrics(app, self._exposition(metrics))
        on_end = (metrics.request_ended,) if self.trace is None else (metrics.request_ended, self.trace)
        rooms = RequestRooms(app, shutdown=self.shutdown, on_end=on_end, is_logged=True)
        limit_s = self.config.drain_timeout_s + 2 * _LAST_WORDS_S
        return HttpServer(
            rooms,
            self.api_socket,
            self._http_config(graceful_timeout_s=limit_s),
            limits=self._limits(connections_within(self.config.max_connections)),
            tls=None if self.guard.tls is None else self.guard.tls.context,
            metrics=metrics.connections,
        )

    def _health_server(self, metrics: Metrics) -> HttpServer:
        app = HealthApp(self._readiness, self._exposition(metrics))
        rooms = RequestRooms(app, shutdown=self.shutdown, on_end=(), is_logged=False)
        return HttpServer(
            rooms,
            self.health_socket,
            self._http_config(graceful_timeout_s=_LAST_WORDS_S),
            limits=self._limits(MAX_PROBE_CONNECTIONS),
        )

    def _exposition(self, metrics: Metrics) -> Callable[[], bytes]:
        return lambda: metrics.text(is_ready=self._readiness.is_ready, is_draining=self.shutdown.is_draining)

    def _limits(self, max_connections: int) -> ConnectionLimits:
        return ConnectionLimits(
            max_connections=max_connections,
            read_timeout_s=self.config.read_timeout_s,
            send_timeout_s=self.config.send_timeout_s,
        )

    def _http_config(self, *, graceful_timeout_s: float) -> HttpConfig:
        return HttpConfig(keep_alive_s=self.config.keep_alive_s, graceful_timeout_s=graceful_timeout_s)

    async def _watch_signals(self) -> None:
        """Begin the drain at the first SIGTERM or SIGINT; the next one kills."""
        kill_on_signals()  # What is in force again when the receiver is closed, also for a signal that it has not delivered.
        with trio.open_signal_receiver(*STOP_SIGNALS) as signals:
            async for number in signals:
                self.shutdown.begin(signal.Signals(number).name)
                break

    async def _watch_engine(self) -> None:
        """Say when the model is ready; begin the drain when the engine fails, before or after that."""
        async with trio.open_nursery() as loading:
            loading.start_soon(self._log_loading)
            await self.engine.wait_settled()
            loading.cancel_scope.cancel()
        if self.engine.model is not None:
            log_event("ready", **self.engine.model.facts)
            self.on_ready()
        await self.engine.wait_ended()
        if self.engine.failure is not None:
            self.shutdown.begin("the engine failed")

    async def _log_loading(self) -> None:
        """One line for each phase on the way to a loaded model, and now and then one more while a phase lasts."""
        logged_phase, logged_at = None, 0.0
        while True:
            await self.engine.wait_progress()
            progress, now = self.engine.progress, trio.current_time()
            if not progress.phase.is_loading:
                continue
            if progress.phase is not logged_phase or now - logged_at >= _LOADING_LINE_S:
                logged_phase, logged_at = progress.phase, now
                log_event("loading", **progress.facts())

    async def _drain(self, api: HttpServer, metrics: Metrics) -> None:
        """Go on serving until balancers have noticed; refuse what is new and give what runs its time; then end it.

        Cancelled when the last request is over, whenever that is.
        """
        await self.shutdown.wait_draining()
        quiesce_s = self.config.quiesce_s if self.engine.failure is None else 0.0
        limit_s = self.config.drain_timeout_s
        log_event(
            "draining",
            reason=self.shutdown.reason,
            open_requests=self.engine.num_open,
            quiesce_s=quiesce_s,
            limit_s=limit_s,
        )
        if self.config.handle_signals:  # The process is ours to end.
            faulthandler.dump_traceback_later(quiesce_s + limit_s + _LAST_RESORT_S, exit=True)
        await trio.sleep(quiesce_s)
        self.shutdown.refuse()
        await trio.sleep(limit_s)
        metrics.drain_forced(self.engine.num_open)
        log_event("drain_limit", ended_requests=self.engine.num_open)
        self.engine.fail_all(
            StepFailed("the server had to stop before this answer was complete; send the request again")
        )
        await trio.sleep(_LAST_WORDS_S)
        log_event("connections_cut", connections=api.cut_connections())
