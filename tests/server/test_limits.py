"""How many connections the system's own limit leaves room for."""

from __future__ import annotations

import resource

import pytest

from tlserve.server.limits import RESERVED_FILES, connections_within


@pytest.mark.parametrize(
    ("soft", "wanted", "connections"),
    [
        (100_000, 2048, 2048),
        (1024, 2048, 1024 - RESERVED_FILES),
        (1024, 10, 10),
        (64, 2048, 1),
        (resource.RLIM_INFINITY, 2048, 2048),
    ],
)
def test_connections_fit_into_the_open_files(
    monkeypatch: pytest.MonkeyPatch, soft: int, wanted: int, connections: int
) -> None:
    """A container often allows 1024 open files: the probes, the model and the loop need some of them."""
    monkeypatch.setattr(resource, "getrlimit", lambda _: (soft, soft))

    assert connections_within(wanted) == connections
