from __future__ import annotations

import pytest

from tlserve.decode.sampler import warm_sampler


@pytest.fixture(scope="session", autouse=True)
def _compiled() -> None:
    """No test is timed while it compiles."""
    warm_sampler(8)
