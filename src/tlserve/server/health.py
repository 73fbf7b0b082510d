"""The second port: is it alive, is it ready, what does it count.

Answers from snapshots in the loop thread. ``/healthz`` says that the process is alive and its loop turns, and stays 200 to the end;
``/readyz`` says whether new requests are welcome.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from quart import Response
from quart_trio import QuartTrio

from tlserve.bridge.client import EngineClient
from tlserve.engine.progress import LoadPhase
from tlserve.server.metrics import CONTENT_TYPE
from tlserve.server.responses import json_response, no_route
from tlserve.server.shutdown import Shutdown


class Readiness:
    """Whether new requests are welcome, and the words for it. Loop thread only."""

    def __init__(self, engine: EngineClient, shutdown: Shutdown, *, watchdog_s: float) -> None:
        self._engine = engine
        self._watchdog_s = watchdog_s
        self._shutdown = shutdown
        self._started_at = time.monotonic()

    @property
    def is_ready(self) -> bool:
        """True when the model is loaded and warmed, the engine lives and gets on, and nobody has asked to stop."""
        is_loaded = self._engine.progress.phase is LoadPhase.READY
        return is_loaded and not self.is_stalled and not self._shutdown.is_draining

    @property
    def is_stalled(self) -> bool:
        """Whether one step has taken longer than any step should; it may still end."""
        return self._engine.busy_s() > self._watchdog_s

    def document(self) -> dict[str, object]:
        """The body of ``/readyz``: a status, the phase of loading, and how long the process has been up."""
        progress = self._engine.progress
        document: dict[str, object] = {"status": self._status(), **progress.facts()}
        if self.is_stalled:
            document["step_s"] = round(self._engine.busy_s(), 1)
        document["uptime_s"] = round(time.monotonic() - self._started_at, 1)
        return document

    def _status(self) -> str:
        if self._engine.progress.phase is LoadPhase.FAILED:
            return "failed"
        if self._shutdown.is_draining:
            return "draining"
        if self.is_stalled:
            return "stalled"
        return "ready" if self.is_ready else "loading"


def create_health_app(readiness: Readiness, exposition: Callable[[], bytes]) -> QuartTrio:
    """The application of the health port."""
    app = QuartTrio("tlserve.health")

    @app.get("/healthz")
    async def healthz() -> Response:
        return json_response({"status": "ok"})

    @app.get("/readyz")
    async def readyz() -> Response:
        return json_response(readiness.document(), status=200 if readiness.is_ready else 503)

    add_metrics(app, exposition)
    no_route(app)
    return app


def add_metrics(app: QuartTrio, exposition: Callable[[], bytes]) -> None:
    """Let Prometheus in, on any port."""

    @app.get("/metrics")
    async def scrape() -> Response:
        return Response(exposition(), content_type=CONTENT_TYPE)
