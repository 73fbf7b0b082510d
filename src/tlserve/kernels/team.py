"""The threads that play a tape together.

One *conductor* (the engine thread, member 0) goes through the operations; for each it opens a *task*: so many tiles, first
come first served. Helpers (members 1, 2, ..) only ever claim tiles. The conductor claims too, then waits until every tile is
done, and opens the next task. A helper that the operating system has taken away holds nobody up unless it holds a tile;
what it does not claim, others do. That keeps a pod quick beside busy neighbours, where a barrier of all threads would wait for
the slowest scheduler slot.

Waiting is a bounded spin, then sleep on a futex. The words that members share, each on its own cache line:

    TASK      serial number << 32 | next tile << 16 | number of tiles       claimed by compare-and-swap
    DONE      tiles finished in this task
    BELL      rung (incremented) to wake helpers that sleep
    ASLEEP    not 0: some helper sleeps, or is about to
    WAITING   1: the conductor sleeps on DONE, or is about to
    OP, STEP  what to compute: stable while any tile of the task is unclaimed
    STOP      1: helpers leave

Invariant: a claim succeeds only while TASK is unchanged since OP and STEP were read, so a late helper never runs an old
operation. Which member runs a tile never changes the tile's result.
"""

# ruff: noqa: PLR0917  compiled code calls by position

from __future__ import annotations

import os
import threading
import weakref
from pathlib import Path

import numpy as np
from attrs import define, field
from numpy.typing import NDArray

from tlserve.kernels import atomics
from tlserve.kernels.buffers import CACHE_LINE, aligned_zeros
from tlserve.kernels.jit import jit
from tlserve.kernels.tape import EXTENT, KERNEL, OP_FIELDS, PARTS, ROWS_PER_TILE, FrozenTape

TASK, DONE, BELL, ASLEEP, WAITING, OP, STEP, STOP = (CACHE_LINE * i for i in range(8))
"""Byte offsets of the shared words."""

NEXT_TILE = 1 << 16
MOST_TILES = 0xFFFF
"""What TASK can count; an operation of more (a batch of 16,000 tokens) is run by the conductor alone."""

SPINS = 3000
"""Turns of a waiting loop before sleeping: some 30 us, longer than most operations, shorter than a scheduler slot."""


@jit
def play(words: int, tape: int, first: int, stop: int, step: int, num_members: int) -> None:
    """Run operations first to stop - 1 of a tape, as the conductor. All arguments but the counts are addresses."""
    for index in range(first, stop):
        op = tape + index * OP_FIELDS * 8
        rows = atomics.read(step + 8 * atomics.read(op + 8 * EXTENT))
        per_tile = atomics.read(op + 8 * ROWS_PER_TILE)
        tiles = (rows + per_tile - 1) // per_tile * atomics.read(op + 8 * PARTS)
        if tiles == 1 or num_members == 1 or tiles > MOST_TILES:
            for tile in range(tiles):
                atomics.call_kernel(atomics.read(op + 8 * KERNEL), op, step, tile, 0)
        elif tiles > 1:
            _open_task(words, op, step, tiles)
            _claim_tiles(words, 0)
            _wait_until_done(words, tiles)


@jit
def _open_task(words: int, op: int, step: int, tiles: int) -> None:
    serial = (atomics.read(words + TASK) >> 32) + 1
    atomics.write(words + OP, op)
    atomics.write(words + STEP, step)
    atomics.write(words + DONE, 0)
    atomics.write(words + TASK, serial << 32 | tiles)
    if atomics.read(words + ASLEEP) != 0:
        atomics.write(words + ASLEEP, 0)
        atomics.add(words + BELL, 1)
        atomics.wake_all(words + BELL)


@jit
def _claimable(task: int) -> bool:
    return (task >> 16 & MOST_TILES) < (task & MOST_TILES)


@jit
def _claim_tiles(words: int, member: int) -> None:
    """Run tiles of the open task until none is left to claim."""
    task = atomics.read(words + TASK)
    while _claimable(task):
        op, step = atomics.read(words + OP), atomics.read(words + STEP)
        if atomics.swap_if(words + TASK, task, task + NEXT_TILE):
            atomics.call_kernel(atomics.read(op + 8 * KERNEL), op, step, task >> 16 & MOST_TILES, member)
            atomics.add(words + DONE, 1)
            if member != 0 and atomics.read(words + WAITING) != 0:
                atomics.wake_all(words + DONE)
        task = atomics.read(words + TASK)


@jit
def _wait_until_done(words: int, tiles: int) -> None:
    spins = 0
    done = atomics.read(words + DONE)
    while done != tiles:
        atomics.pause()
        spins += 1
        if spins > SPINS:
            atomics.write(words + WAITING, 1)
            done = atomics.read(words + DONE)
            if done != tiles:
                atomics.sleep_while(words + DONE, done)
            atomics.write(words + WAITING, 0)
        done = atomics.read(words + DONE)


@jit
def _help(words: int, member: int) -> None:
    """Claim tiles until STOP; the whole life of a helper."""
    spins = 0
    while atomics.read(words + STOP) == 0:
        if _claimable(atomics.read(words + TASK)):
            _claim_tiles(words, member)
            spins = 0
        elif spins < SPINS:
            atomics.pause()
            spins += 1
        else:
            bell = atomics.read(words + BELL)
            atomics.add(words + ASLEEP, 1)
            if not _claimable(atomics.read(words + TASK)) and atomics.read(words + STOP) == 0:
                atomics.sleep_while(words + BELL, bell)
            spins = 0


@define(eq=False)
class Team:
    """``size`` members; helpers start with the first `play` and end with `close`.

    Everything but `close` belongs to one thread, the conductor's.
    """

    size: int
    _words: NDArray[np.int64] = field(
        factory=lambda: aligned_zeros(8 * CACHE_LINE // 8, np.int64), init=False, repr=False
    )
    _farewell: weakref.finalize[..., Team] | None = field(default=None, init=False, repr=False)

    def play(self, tape: FrozenTape, step: NDArray[np.int64], *, first: int, stop: int) -> None:
        """Run operations first to stop - 1 of a tape. Without the GIL from beginning to end."""
        if self._farewell is None and self.size > 1:
            self._start()
        play(int(self._words.ctypes.data), tape.records.ctypes.data, first, stop, step.ctypes.data, self.size)

    def close(self) -> None:
        """Send the helpers home and wait for them; no tape may be playing.

        May be called twice. Happens by itself when the team is forgotten or the interpreter ends.
        """
        if self._farewell is not None:
            self._farewell()
            self._farewell = None

    def _start(self) -> None:
        self._words[STOP // 8] = 0
        # A helper holds the words, never the team: a forgotten team can be collected.
        helpers = [
            threading.Thread(target=_live, args=(self._words, member), name=f"tlserve-kernel-{member}", daemon=True)
            for member in range(1, self.size)
        ]
        for helper in helpers:
            helper.start()
        self._farewell = weakref.finalize(self, _send_home, self._words, helpers)


def _live(words: NDArray[np.int64], member: int) -> None:
    _help(int(words.ctypes.data), member)


def _send_home(words: NDArray[np.int64], helpers: list[threading.Thread]) -> None:
    words[STOP // 8] = 1
    ring(int(words.ctypes.data))
    for helper in helpers:
        helper.join()


@jit
def ring(words: int) -> None:
    """Wake all helpers."""
    atomics.add(words + BELL, 1)
    atomics.wake_all(words + BELL)


def team_size(wanted: int | None) -> int:
    """How many threads to use: as asked, else one per processor that this process may use (affinity and cgroup quota).

    Where threads cannot sleep on a word (no futex), 1.
    """
    if not atomics.CAN_SLEEP:
        return 1
    return wanted or max(1, min(len(os.sched_getaffinity(0)), _cgroup_cpus()))


def _cgroup_cpus() -> int:
    """Whole processors of the cgroup's CPU quota (v2, then v1), at least 1; no quota reads as a large number."""
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
    except (OSError, ValueError):
        try:
            quota, period = (Path(f"/sys/fs/cgroup/cpu/cpu.cfs_{name}_us").read_text() for name in ("quota", "period"))
        except OSError:
            return MOST_TILES
    limited = quota != "max" and int(quota) > 0
    return max(1, int(quota) // int(period)) if limited else MOST_TILES
