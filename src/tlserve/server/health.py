"""The second port: is it alive, is it ready, what does it count.

Answers from snapshots, in a thread of its own (see ``aside``): what is read here are values that other threads replace whole.
``/healthz`` says that the process is alive and its main loop turns, and stays 200 to the end; ``/readyz`` says whether new requests
are welcome.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from attrs import field, frozen
from hypercorn.typing import ASGIReceiveCallable, ASGISendCallable, Scope
from quart import Response
from quart_trio import QuartTrio

from tlserve.bridge.client import EngineClient
from tlserve.engine.progress import LoadPhase
from tlserve.openai.errors import ApiError, internal, method_not_allowed, unknown_path
from tlserve.openai.jsontext import to_json
from tlserve.server.heartbeat import Heartbeat
from tlserve.server.log import log_failure
from tlserve.server.metrics import CONTENT_TYPE
from tlserve.server.shutdown import Shutdown

_METHODS = ("GET", "HEAD", "OPTIONS")


class Readiness:
    """Whether new requests are welcome, and the words for it. Any thread."""

    def __init__(self, engine: EngineClient, shutdown: Shutdown, heartbeat: Heartbeat, *, watchdog_s: float) -> None:
        self._engine = engine
        self._watchdog_s = watchdog_s
        self._shutdown = shutdown
        self._heartbeat = heartbeat
        self._started_at = time.monotonic()

    @property
    def is_ready(self) -> bool:
        """True when the model is loaded and warmed, the engine lives and gets on, and nobody has asked to stop."""
        is_loaded = self._engine.progress.phase is LoadPhase.READY
        return is_loaded and not self.is_stalled and not self._shutdown.is_draining

    @property
    def is_alive(self) -> bool:
        """True while the loop turns."""
        return not self._heartbeat.has_stopped

    @property
    def is_stalled(self) -> bool:
        """Whether one step has taken longer than any step should, or something holds the loop; it may still end."""
        return self._engine.busy_s() > self._watchdog_s or not self.is_alive

    def liveness(self) -> dict[str, object]:
        """The body of ``/healthz``."""
        if self.is_alive:
            return {"status": "ok"}
        return {"status": "stuck", "silent_s": round(self._heartbeat.silent_s, 1)}

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


class HealthApp:
    """The application of the health port, on bare ASGI: a probe is answered in one go, without a framework in between.

    Args:
        readiness: what ``/healthz`` and ``/readyz`` say.
        exposition: what ``/metrics`` says.
    """

    def __init__(self, readiness: Readiness, exposition: Callable[[], bytes]) -> None:
        self._readiness = readiness
        self._exposition = exposition
        self._answers = {"/healthz": self._healthz, "/readyz": self._readyz, "/metrics": self._metrics}

    async def __call__(self, scope: Scope, _: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        """Answer one request."""
        if scope["type"] == "http":
            answer = self._answer(scope["method"], scope["path"])
            await send({"type": "http.response.start", "status": answer.status, "headers": answer.headers()})
            await send({"type": "http.response.body", "body": answer.body, "more_body": False})

    def _answer(self, method: str, path: str) -> _Answer:
        answer = self._answers.get(path)
        if answer is None:
            return _refusal(unknown_path(method, path))
        if method == "OPTIONS":
            return _Answer(200, b"", extra_headers={"Allow": ", ".join(_METHODS)})
        if method not in _METHODS:
            return _refusal(method_not_allowed(method, path, allowed=_METHODS))
        try:
            return answer()
        except Exception as error:  # noqa: BLE001  (whoever asks must hear that something is wrong)
            log_failure("unexpected_error", error, path=path)
            return _refusal(internal())

    def _healthz(self) -> _Answer:
        return _document(self._readiness.liveness(), is_fine=self._readiness.is_alive)

    def _readyz(self) -> _Answer:
        return _document(self._readiness.document(), is_fine=self._readiness.is_ready)

    def _metrics(self) -> _Answer:
        return _Answer(200, self._exposition(), content_type=CONTENT_TYPE)


@frozen
class _Answer:
    status: int
    body: bytes
    content_type: str = "application/json"
    extra_headers: Mapping[str, str] = field(factory=dict)

    def headers(self) -> list[tuple[bytes, bytes]]:
        fields = {"Content-Type": self.content_type, "Content-Length": str(len(self.body)), **self.extra_headers}
        return [(name.lower().encode(), value.encode()) for name, value in fields.items()]


def _document(document: Mapping[str, object], *, is_fine: bool) -> _Answer:
    return _Answer(200 if is_fine else 503, to_json(document).encode())


def _refusal(error: ApiError) -> _Answer:
    return _Answer(error.status, to_json(error.document()).encode(), extra_headers=error.headers())


def add_metrics(app: QuartTrio, exposition: Callable[[], bytes]) -> None:
    """Let Prometheus in on the API port too."""

    @app.get("/metrics")
    async def scrape() -> Response:
        return Response(exposition(), content_type=CONTENT_TYPE)
