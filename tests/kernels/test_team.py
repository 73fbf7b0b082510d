"""The threads that play a tape: nothing is lost or done twice, and they go home."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from tlserve.kernels import atomics
from tlserve.kernels.jit import Kernel
from tlserve.kernels.tape import ROWS, STEP_FIELDS, Op, Tape
from tlserve.kernels.team import Team, team_size


def count_tile(op: Any, _step: Any, tile: int, member: int) -> None:
    """Count a visit of this tile, and of this member; spend a little time."""
    atomics.add(op[4] + 8 * tile, 1)
    atomics.add(op[5] + 8 * member, 1)
    for _ in range(op[6]):
        atomics.pause()


COUNT_TILE = Kernel(count_tile)


def helpers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("tlserve-kernel")]


def play_counting(team: Team, operations: int, tiles: int, pauses: int) -> tuple[Any, Any]:
    """Play operations of so many tiles; returns visits [operations, tiles] and tiles run by each member."""
    visits, by_member = np.zeros((operations, tiles), np.int64), np.zeros(8, np.int64)
    tape = Tape()
    code = COUNT_TILE.compile()
    for row in visits:
        tape.add(Op(kernel=code, extent=ROWS, rows_per_tile=1, parts=1, fields=(row, by_member, pauses)))
    step = np.zeros(STEP_FIELDS, np.int64)
    step[ROWS] = tiles
    team.play(tape.freeze(), step, first=0, stop=operations)
    return visits, by_member


def test_every_tile_is_run_once() -> None:
    """Thousands of small operations, more members than processors, helpers asleep and awake."""
    team = Team(4)
    for tiles, pauses in ((2, 0), (7, 0), (3, 500), (400, 1)):
        visits, by_member = play_counting(team, 1000, tiles, pauses)
        assert (visits == 1).all()
        assert by_member.sum() == visits.size
    team.close()


def test_helpers_help() -> None:
    """In an operation that lasts, more than one member gets tiles."""
    team = Team(2)
    _visits, by_member = play_counting(team, 20, 64, 20_000)
    assert (by_member[:2] > 0).all()
    team.close()


def test_a_team_of_one_needs_no_thread() -> None:
    """The conductor runs all tiles itself."""
    before = len(helpers())
    visits, by_member = play_counting(Team(1), 3, 9, 0)
    assert (visits == 1).all()
    assert by_member[0] == visits.size
    assert len(helpers()) == before


def test_close_ends_the_threads_and_play_starts_them_again() -> None:
    """Closing twice is harmless; a closed team can play."""
    team, before = Team(3), len(helpers())
    for _ in range(2):
        play_counting(team, 2, 50, 10)
        assert len(helpers()) == before + 2
        team.close()
        team.close()
        assert len(helpers()) == before


def test_members_that_wait_leave_the_processor_to_others() -> None:
    """Between two steps nobody spins: in a quarter of a second of waiting a team uses next to no processor time."""
    team = Team(4)
    play_counting(team, 10, 50, 10)
    before = time.process_time()
    threading.Event().wait(0.25)
    assert time.process_time() - before < 0.05
    team.close()


def test_a_forgotten_team_ends_its_threads() -> None:
    """No thread outlives the last reference to its team."""
    before = len(helpers())
    play_counting(Team(2), 2, 50, 10)
    assert len(helpers()) == before


def test_size_is_what_was_asked_for_or_what_the_process_may_use(monkeypatch: Any) -> None:
    """Affinity bounds the default."""
    assert team_size(3) == 3
    only_one: Callable[[int], set[int]] = lambda _: {0}  # noqa: E731
    monkeypatch.setattr("os.sched_getaffinity", only_one)
    assert team_size(None) == 1
