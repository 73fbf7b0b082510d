"""Asks the probes of a server until its standard input ends, then prints how long they took: a process of its own, as kubelet is.

Run with the health server's ``host:port``. Prints one JSON object: for each path, and for all together, the median, the 99th percentile
and the longest, in milliseconds.
"""

from __future__ import annotations

import http.client
import json
import select
import sys
import time
from statistics import median, quantiles

PATHS = ("/healthz", "/readyz", "/metrics")
PAUSE_S = 0.05


def main(address: str) -> None:
    """Ask each path in turn; a status that is not 200 ends it all."""
    connection = http.client.HTTPConnection(address, timeout=10)
    times: dict[str, list[float]] = {path: [] for path in PATHS}
    while not select.select([sys.stdin], [], [], PAUSE_S)[0]:
        for path in PATHS:
            started = time.perf_counter()
            connection.request("GET", path)
            response = connection.getresponse()
            response.read()
            times[path].append((time.perf_counter() - started) * 1000)
            if response.status != 200:
                sys.exit(f"{path} answered {response.status}")
    times["all"] = [taken for path in PATHS for taken in times[path]]
    sys.stdout.write(json.dumps({path: _summary(taken) for path, taken in times.items()}))


def _summary(taken: list[float]) -> dict[str, float]:
    numbers = {"p50": median(taken), "p99": quantiles(taken, n=100)[98], "max": max(taken)}
    return {name: round(number, 1) for name, number in numbers.items()}


if __name__ == "__main__":
    main(sys.argv[1])
