"""Memory that only loading needed goes back to the system."""

from __future__ import annotations

import subprocess
import sys

from tlserve.kernels.footprint import Mapping, mappings

SMAPS = """\
7f00-7fff r-xp 00001000 08:01 4242                     /lib/libllvmlite.so
Rss:                  52 kB
Anonymous:             0 kB
8000-8fff rw-p 00002000 08:01 4242                     /lib/libllvmlite.so
Rss:                   8 kB
Anonymous:             4 kB
9000-9fff rw-p 00000000 00:00 0                        [heap]
Anonymous:             4 kB
"""

COMPILE_AGAIN = """
from pathlib import Path
from tlserve.kernels.activation import GATE_ROWS
from tlserve.kernels.footprint import release_load_memory

def resident():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssFile"))

GATE_ROWS.compile()
before = resident()
release_load_memory()
print(before - resident())
GATE_ROWS.compile()
"""


def test_changed_pages_are_told_apart() -> None:
    """A page that the loader wrote to would be lost, so its mapping is kept."""
    assert list(mappings(SMAPS)) == [
        Mapping(0x7F00, 0x7FFF, "/lib/libllvmlite.so", changed=False),
        Mapping(0x8000, 0x8FFF, "/lib/libllvmlite.so", changed=True),
    ]


def test_the_compiler_is_let_go_and_still_works() -> None:
    """Resident memory falls by tens of megabytes, and the next compilation is none the wiser."""
    done = subprocess.run([sys.executable, "-c", COMPILE_AGAIN], capture_output=True, text=True, check=True)
    assert int(done.stdout) > 20_000
