"""Counting into buckets, quick enough to be done for every token.

prometheus_client's own histogram has no way to take in many values at once and costs several times as much per value.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from math import inf

from prometheus_client.core import HistogramMetricFamily
from prometheus_client.utils import floatToGoString

LATENCIES_S = (
    *(0.001, 0.0025, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0),
    *(2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0),
)
"""Of waiting for a first token and of whole requests: OpenTelemetry's boundaries, continued at both ends."""

GAPS_S = (
    *(0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0),
    *(2.5, 5.0, 10.0),
)
"""Between two tokens: OpenTelemetry's boundaries, continued downwards for small models."""

TOKENS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 20_000, 50_000, 100_000)


class Distribution:
    """One histogram without labels. Filled in the loop thread, shown in any: its sum may be a value ahead of its counts, or behind.

    Args:
        name: of the metric, with its unit.
        documentation: its help text.
        bounds: upper bounds of the buckets, ascending; one more is open.

    """

    def __init__(self, name: str, documentation: str, bounds: Sequence[float]) -> None:
        self._name = name
        self._documentation = documentation
        self._bounds = bounds
        self._names = [floatToGoString(bound) for bound in (*bounds, inf)]  # type: ignore[no-untyped-call]
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    @property
    def sum(self) -> float:
        """Of all values."""
        return self._sum

    def add(self, value: float) -> None:
        """Count one value."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def family(self, name: str | None = None, **labels: str) -> HistogramMetricFamily:
        """What a scrape shows: cumulative counts; under another name and with labels where they are given."""
        buckets, total = [], 0
        for name_of_bound, count in zip(self._names, self._counts, strict=True):
            total += count
            buckets.append((name_of_bound, total))
        family = HistogramMetricFamily(name or self._name, self._documentation, labels=list(labels))
        family.add_metric(list(labels.values()), buckets, self._sum)
        return family
