"""What the system says of this process (``process_*``), read every few seconds and not at the scrape.

Each look into ``/proc`` lets go of the interpreter, once for every open file among others, and waits for it again behind all that is busy.
That would be most of what a scrape takes.
"""

from __future__ import annotations

from collections.abc import Iterator

import trio
from prometheus_client.core import Metric
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

INTERVAL_S = 2.0
"""How old the numbers may be, in seconds."""


class ProcessMetrics(Collector):
    """The last reading; it is replaced whole, so any thread may collect it."""

    def __init__(self) -> None:
        self._reader = ProcessCollector(registry=None)
        self._reading = self._read()

    def collect(self) -> Iterator[Metric]:
        """Memory, CPU time, open files, start time."""
        yield from self._reading

    async def watch(self) -> None:
        """Read again and again, in a worker thread, until cancelled."""
        while True:
            await trio.sleep(INTERVAL_S)
            self._reading = await trio.to_thread.run_sync(self._read)

    def _read(self) -> tuple[Metric, ...]:
        return tuple(self._reader.collect())
