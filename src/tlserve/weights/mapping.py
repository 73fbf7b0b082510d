"""Maps a file into memory, read-only."""

from __future__ import annotations

import mmap
from pathlib import Path

from tlserve.errors import CheckpointError


def map_file(path: Path) -> mmap.mmap:
    """The whole file as a read-only map; it stays mapped as long as any view of it lives.

    Raises:
        CheckpointError: the file is missing, unreadable or empty.
    """
    try:
        with path.open("rb") as file:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except ValueError as error:
        raise CheckpointError(f"{path}: the file is empty") from error
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error.strerror}") from error
