"""What Prometheus may ask, from snapshots: a scrape never waits for the engine.

The engine does not know this file; it publishes ``EngineStats``, which are read here. One registry per server, so that several
servers can live in one process.
"""

from __future__ import annotations

from importlib.metadata import version

from prometheus_client import CollectorRegistry, Counter, Gauge, Info, disable_created_metrics

from tlserve.bridge.client import EngineClient
from tlserve.config import ServeConfig
from tlserve.engine.messages import EngineStats
from tlserve.server.connection_metrics import ConnectionMetrics
from tlserve.server.engine_metrics import EngineMetrics, saturation
from tlserve.server.exposition import expose
from tlserve.server.process_metrics import ProcessMetrics
from tlserve.server.request_metrics import RequestMetrics
from tlserve.server.room import Room
from tlserve.server.routes import route_of
from tlserve.server.vllm_metrics import VllmMetrics

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def metrics_text(stats: EngineStats) -> str:
    """The engine's counters in Prometheus' text format, under the names that dashboards of this system know."""
    registry = CollectorRegistry()
    registry.register(EngineMetrics(lambda: stats))
    return expose(registry.collect()).decode()


class Metrics:
    """Everything that one server exposes. It is told in the loop thread, and asked in any.

    Attributes:
        requests: told of each request as it goes along.
        connections: told of the API's connections.
        process: has to be watched to stay fresh.
    """

    def __init__(self, config: ServeConfig, engine: EngineClient) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self._config = config
        self._engine = engine
        self._registry = registry = CollectorRegistry()
        self.requests = RequestMetrics()
        registry.register(EngineMetrics(engine.stats))
        registry.register(self.requests)
        self.connections = ConnectionMetrics()
        registry.register(self.connections)
        self.process = ProcessMetrics()
        registry.register(self.process)
        if config.metrics_compat == "vllm":
            registry.register(VllmMetrics(engine.stats, self.requests, config.model_id))
        self._ends = Counter(
            "tlserve_requests",
            "Requests by route, by how they ended and, where they were not answered, why; each is counted once.",
            ["route", "outcome", "reason"],
            registry=registry,
        )
        self._forced = Counter(
            "tlserve_drain_forced", "Answers broken off because the drain had no more time.", registry=registry
        )
        self._ready = Gauge("tlserve_ready", "1 while /readyz answers 200.", registry=registry)
        self._draining = Gauge("tlserve_draining", "1 from the stop signal on.", registry=registry)
        self._saturation = Gauge(
            "tlserve_saturation_ratio",
            "0 idle to 1 full: the greatest of the shares of queue places, sequence slots and KV blocks that are taken.",
            registry=registry,
        )
        self._load = Gauge(
            "tlserve_model_load_seconds",
            "How long the model took to load, fetching it included; 0 before that.",
            registry=registry,
        )
        build = {"version": version("tlserve"), "model": config.model_id}
        Info("tlserve_build", "What runs here.", registry=registry).info(build)

    def request_ended(self, room: Room) -> None:
        """Count one request of the API."""
        self._ends.labels(route_of(room.path) or "other", room.final_outcome(), room.final_reason()).inc()
        if room.timing is not None:
            room.timing.note_end()

    def drain_forced(self, count: int) -> None:
        """Count answers that were broken off."""
        self._forced.inc(count)

    def text(self, *, is_ready: bool, is_draining: bool) -> bytes:
        """The whole exposition."""
        self._ready.set(is_ready)
        self._draining.set(is_draining)
        self._saturation.set(saturation(self._engine.stats(), self._config))
        if self._engine.load_s is not None:
            self._load.set(self._engine.load_s)
        return expose(self._registry.collect())
