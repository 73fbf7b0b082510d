"""A team to play single operations with, and random rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tlserve.kernels.jit import Kernel
from tlserve.kernels.tape import LOGIT_ROWS, ROWS, STEP_FIELDS, Field, Op, Tape
from tlserve.kernels.team import Team

Play = Callable[..., None]


@pytest.fixture(scope="session")
def teams() -> Iterator[dict[int, Team]]:
    """A team of one and a team of two."""
    members = {1: Team(1), 2: Team(2)}
    yield members
    for team in members.values():
        team.close()


@pytest.fixture(scope="session")
def play(teams: dict[int, Team]) -> Play:
    """Run one operation over ``rows`` rows; ``step`` sets further fields of the step."""
    compiled: dict[Kernel, Any] = {}

    def run(
        kernel: Kernel,
        *fields: Field,
        rows: int,
        extent: int = ROWS,
        rows_per_tile: int = 2,
        parts: int = 1,
        members: int = 2,
        step: dict[int, Field] | None = None,
    ) -> None:
        if kernel not in compiled:
            compiled[kernel] = kernel.compile()
        tape = Tape()
        op = Op(kernel=compiled[kernel], extent=extent, rows_per_tile=rows_per_tile, parts=parts, fields=fields)
        tape.add(op)
        numbers = np.zeros(STEP_FIELDS, np.int64)
        numbers[[ROWS, LOGIT_ROWS, extent]] = rows
        for index, value in (step or {}).items():
            numbers[index] = value.ctypes.data if isinstance(value, np.ndarray) else int(value or 0)
        teams[members].play(tape.freeze(), numbers, first=0, stop=1)

    return run


@pytest.fixture
def random_rows() -> Callable[..., NDArray[np.float32]]:
    """Normally distributed float32 rows."""
    random = np.random.default_rng(0)
    return lambda *shape: random.standard_normal(shape).astype(np.float32)
