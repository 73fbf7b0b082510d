"""Giving memory back after a load: what packing and compiling needed and serving does not.

Two things stay resident that nobody will touch again: freed pages that the allocator keeps, and the machine code of the compiler
itself (some 60 MB of libllvmlite). The latter is mapped from a file, so letting it go loses nothing: it is read again, from the
system's page cache, if a kernel is compiled later.
Invariant: only mappings without a changed page are let go.
"""

from __future__ import annotations

import ctypes
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from attrs import frozen

COMPILER = "libllvmlite"

MADV_DONTNEED = 4

_HEAD = re.compile(r"(?P<start>[0-9a-f]+)-(?P<stop>[0-9a-f]+) \S+ \S+ \S+ \d+ *(?P<path>.*)")
_ANONYMOUS = re.compile(r"Anonymous: +(?P<kib>\d+) kB")


@frozen
class Mapping:
    """A piece of address space that shows a file; ``changed`` where a page of it was written to."""

    start: int
    stop: int
    path: str
    changed: bool


def release_load_memory() -> None:
    """Trim the heap and let go of the compiler's code; does nothing where the system cannot do it. Any thread."""
    if sys.platform != "linux":
        return
    libc = ctypes.CDLL(None)
    if hasattr(libc, "malloc_trim"):
        libc.malloc_trim(0)
    for mapping in mappings(Path("/proc/self/smaps").read_text()):
        if COMPILER in mapping.path and not mapping.changed:
            start, size = ctypes.c_void_p(mapping.start), ctypes.c_size_t(mapping.stop - mapping.start)
            libc.madvise(start, size, MADV_DONTNEED)


def mappings(smaps: str) -> Iterator[Mapping]:
    """The mappings of files that a smaps text lists."""
    head = None
    for line in smaps.splitlines():
        head = _HEAD.match(line) or head
        anonymous = _ANONYMOUS.match(line)
        if head is not None and anonymous is not None and head["path"].startswith("/"):
            changed = int(anonymous["kib"]) > 0
            yield Mapping(int(head["start"], 16), int(head["stop"], 16), head["path"], changed)
