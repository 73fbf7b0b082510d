#!/usr/bin/env python3
"""Break the source in the ways that mutants.toml lists, one at a time and in a copy, and see that the named tests notice.

Usage: mutants.py [ID ...]

Prints a table. Exit code 0 when every fault was found, 1 when one was not, 2 when the tests do not pass to begin with or a fault no
longer fits the source.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import tomli
from attrs import frozen

ROOT = Path(__file__).resolve().parents[1]
LIST = Path(__file__).with_suffix(".toml")
COPIED = ("src", "tests", "pyproject.toml", "runtime.toml", "README.md")
LIMIT_S = 180.0
"""A test that hangs has noticed something, too."""

TESTS_FAILED = 1
"""pytest's exit code; any other but 0 means that it could not even run them."""


@frozen
class Mutant:
    """One fault: a change of one place of one file, and the tests that must fail because of it."""

    id: str
    fault: str
    file: str
    old: str
    new: str
    killed_by: tuple[str, ...]

    def applied(self, source: str) -> str:
        """The source with the fault.

        Raises:
            ValueError: the place is not there, or not the only one.
        """
        count = source.count(self.old)
        if count != 1:
            raise ValueError(
                f"{self.id}: {self.file} has {count} places like {self.old!r}; bring mutants.toml up to date"
            )
        return source.replace(self.old, self.new)


def read_mutants(path: Path = LIST) -> list[Mutant]:
    """All faults, in the order of the file."""
    entries = tomli.loads(path.read_text(encoding="utf-8"))["mutant"]
    return [Mutant(**{**entry, "killed_by": tuple(entry["killed_by"])}) for entry in entries]


@frozen
class Copy:
    """A copy of the tree to break things in."""

    root: Path

    def run(self, tests: tuple[str, ...]) -> int | None:
        """The exit code of pytest over these tests, None when they took too long."""
        command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *tests]
        env = {**os.environ, "PYTHONPATH": str(self.root / "src"), "NUMBA_CACHE_DIR": str(self.root / "cache")}
        try:
            return subprocess.run(
                command, cwd=self.root, env=env, capture_output=True, timeout=LIMIT_S, check=False
            ).returncode
        except subprocess.TimeoutExpired:
            return None

    @contextmanager
    def broken(self, mutant: Mutant) -> Iterator[None]:
        """The copy with one fault, until the block ends."""
        path = self.root / mutant.file
        source = path.read_text(encoding="utf-8")
        path.write_text(mutant.applied(source), encoding="utf-8")
        try:
            yield
        finally:
            path.write_text(source, encoding="utf-8")


@contextmanager
def copy_of(root: Path) -> Iterator[Copy]:
    """A copy without compiled files, gone after the block."""
    with tempfile.TemporaryDirectory(prefix="tlserve-mutants-") as folder:
        for name in COPIED:
            source, target = root / name, Path(folder) / name
            if source.is_dir():
                shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(source, target)
        yield Copy(Path(folder))


def judge(copy: Copy, mutant: Mutant) -> bool:
    """Print one line of the table; True when the fault was found.

    Raises:
        ValueError: the tests could not be run.
    """
    begin = time.monotonic()
    with copy.broken(mutant):
        code = copy.run(mutant.killed_by)
    if code not in (0, TESTS_FAILED, None):
        raise ValueError(f"{mutant.id}: pytest ended with exit code {code}; the fault breaks more than behaviour")
    verdict = "SURVIVED" if code == 0 else "killed"
    names = ", ".join(test.rpartition("::")[2] for test in mutant.killed_by)
    print(f"{mutant.id}  {verdict:8}  {time.monotonic() - begin:5.1f} s  {mutant.fault:48}  {names}", flush=True)
    return code != 0


def main() -> int:
    """Run the faults that were asked for, or all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("ids", nargs="*", metavar="ID", help="run only these")
    wanted = set(parser.parse_args().ids)
    mutants = [mutant for mutant in read_mutants() if not wanted or mutant.id in wanted]
    tests = tuple(dict.fromkeys(test for mutant in mutants for test in mutant.killed_by))
    with copy_of(ROOT) as copy:
        if copy.run(tests) != 0:
            print("the tests do not pass as they are; nothing can be told from their failing", file=sys.stderr)
            return 2
        try:
            survivors = [mutant.id for mutant in mutants if not judge(copy, mutant)]
        except ValueError as error:
            print(error, file=sys.stderr)
            return 2
    print(f"{len(mutants) - len(survivors)} of {len(mutants)} faults found")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
