"""The API's connections in numbers: how many there are, and what became of those that were too many."""

from __future__ import annotations

from collections.abc import Iterator

from attrs import define
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector


@define(eq=False)
class ConnectionMetrics(Collector):
    """Counted in the thread of the server whose connections they are, collected in any.

    Attributes:
        open: connections that are open.
        refused: new connections that were closed at once because all others were busy.
        evicted: idle connections that were closed to make room for new ones.
    """

    open: int = 0
    refused: int = 0
    evicted: int = 0

    def collect(self) -> Iterator[Metric]:
        """One family after the other."""
        yield GaugeMetricFamily("tlserve_http_connections", "Open connections to the API.", self.open)
        yield CounterMetricFamily(
            "tlserve_http_connections_refused", "Connections closed at once: all others were busy.", self.refused
        )
        yield CounterMetricFamily(
            "tlserve_http_connections_evicted", "Idle connections closed to make room for new ones.", self.evicted
        )
