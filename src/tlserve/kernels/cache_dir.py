"""Where compiled code is kept from one start to the next.

numba notices when the file of a function changes, but not when a function that was compiled into it does, in another file.
So each state of this room's sources has a directory of its own. The first of these places that can be written to is used:

    NUMBA_CACHE_DIR              the operator's choice: a volume that outlives the container
    __pycache__ of this room     as Python does with its own compiled files
    XDG_CACHE_HOME or ~/.cache   where the installation is read-only
    a fresh temporary directory  where nothing is writable: the code is compiled anew at every start
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

ROOM = Path(__file__).parent


def compile_cache_directory() -> Path:
    """A directory for the machine code of exactly these sources; it exists and is writable."""
    name = f"tlserve-{source_digest(ROOM)}"
    for place in _places():
        directory = place / name
        try:
            directory.mkdir(parents=True, exist_ok=True)
        except OSError:
            continue
        if os.access(directory, os.W_OK | os.X_OK):
            return directory
    return Path(tempfile.mkdtemp(prefix="tlserve-"))


def source_digest(room: Path) -> str:
    """A short digest of all Python files of a folder."""
    digest = hashlib.sha256()
    for path in sorted(room.glob("*.py")):
        digest.update(path.name.encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def _places() -> Iterator[Path]:
    chosen = os.environ.get("NUMBA_CACHE_DIR")
    if chosen:
        yield Path(chosen)
    yield ROOM / "__pycache__"
    home = os.environ.get("XDG_CACHE_HOME") or os.environ.get("HOME")
    if home:
        yield Path(home) / ("tlserve" if os.environ.get("XDG_CACHE_HOME") else ".cache/tlserve")
