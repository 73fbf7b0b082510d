"""A step that does not end shows at /readyz, and only while it lasts."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from support import Gate, Serve, wait_until


def test_a_step_that_hangs_makes_the_server_unready(serve: Serve, succ_dir: Path) -> None:
    """503 and for how long, while probes and metrics are answered; 200 again when the step has ended. Idle is not stalled."""
    gate = Gate()
    server = serve(succ_dir, load=gate, step_watchdog_s=0.2)
    assert server.health.get("/readyz").status_code == 200
    gate.is_open.clear()
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(server.chat, "a", max_tokens=1)
        try:
            wait_until(lambda: server.health.get("/readyz").status_code == 503)
            document = server.health.get("/readyz").json()
            assert document["status"] == "stalled"
            assert document["step_s"] >= 0.2
            assert server.health.get("/healthz").status_code == 200
            assert server.metric("tlserve_ready") == 0
        finally:
            gate.is_open.set()
        assert answer.result().status_code == 200
    wait_until(lambda: server.health.get("/readyz").json()["status"] == "ready")
