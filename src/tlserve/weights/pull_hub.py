"""Fetches a model from the Hugging Face hub, going on where an earlier attempt broke off.

``HF_ENDPOINT`` names another hub, ``HF_TOKEN`` a token for closed repositories; the storage hosts that the hub
redirects to do not get it. A revision is resolved to its commit first, so all files are of one commit.
"""

from __future__ import annotations

import os
import urllib.parse
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import Final

from attrs import frozen

from tlserve.errors import PullError
from tlserve.weights.pull_attendant import Attendant
from tlserve.weights.pull_files import PulledFile, check_space, choose_files, hash_file
from tlserve.weights.pull_http import HttpClient
from tlserve.weights.pull_source import HubSource
from tlserve.weights.pull_staging import clear

DEFAULT_ENDPOINT: Final = "https://huggingface.co"

OWNER: Final = "owner"
"""In the staging directory: the repository and commit that the partial files beside it belong to."""


@frozen
class _HubFile:
    """A file as the hub lists it; small ones come without a digest."""

    path: str
    size: int
    sha256: str | None

    @property
    def name(self) -> str:
        return PurePosixPath(self.path).name

    def part(self, staging: Path) -> Path:
        return staging / f"{self.name}.part"


def fetch_hub(source: HubSource, staging: Path, attendant: Attendant) -> list[PulledFile]:
    """Download the model's files into ``staging``.

    Raises:
        PullError: the hub cannot be reached or refuses, or a file is not what the hub says it is.
        LoadCancelled: a stop was asked for; what has arrived stays for the next attempt.
    """
    endpoint, client = _connect(attendant)
    commit, files = _list_model(source, endpoint, client)
    _adopt(staging, f"{source.repo} {commit}")
    total = sum(file.size for file in files)
    check_space(staging, total - sum(p.stat().st_size for p in staging.glob("*.part")), str(source))
    done = 0
    for file in files:
        url = f"{endpoint}/{source.repo}/resolve/{commit}/{urllib.parse.quote(file.path)}"
        part = file.part(staging)
        client.download(url, part, file.size, _growth(attendant, part, done, total))
        done += file.size
    return list(_verify(source, files, staging, attendant))


def _growth(attendant: Attendant, part: Path, before: int, total: int) -> Callable[[], None]:
    """Tells how far the whole fetch is while ``part`` grows."""

    def beat() -> None:
        attendant.tell("downloading", before + part.stat().st_size, total)

    return beat


def _connect(attendant: Attendant) -> tuple[str, HttpClient]:
    endpoint = os.environ.get("HF_ENDPOINT", "").rstrip("/") or DEFAULT_ENDPOINT
    if not endpoint.startswith(("https://", "http://")):
        raise PullError(f"HF_ENDPOINT is {endpoint!r}; it must begin with https:// or http://")
    token = os.environ.get("HF_TOKEN", "").strip()
    return endpoint, HttpClient(attendant, {"Authorization": f"Bearer {token}"} if token else {})


def _list_model(source: HubSource, endpoint: str, client: HttpClient) -> tuple[str, list[_HubFile]]:
    """The commit that the revision stands for, and the files to fetch."""
    revision = urllib.parse.quote(source.revision, safe="")
    url = f"{endpoint}/api/models/{source.repo}/revision/{revision}?blobs=true"
    document = client.document(url)
    try:
        commit, listed = _read_listing(document)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise PullError(f"{url}: not a listing of files as the hub gives it ({error!r})") from error
    if source.file is not None:
        if source.file not in listed:
            raise PullError(f"{source}: there is no such file; .gguf files are {_ggufs(listed)}")
        return commit, [listed[source.file]]
    names = choose_files((name for name in listed if "/" not in name), str(source))
    return commit, [listed[name] for name in names]


def _read_listing(document: object) -> tuple[str, dict[str, _HubFile]]:
    if not isinstance(document, dict):
        raise TypeError("not an object")
    commit = str(document["sha"])
    if not commit.isalnum():
        raise ValueError(f"commit {commit!r}")
    files = {}
    for entry in document["siblings"]:
        lfs = entry.get("lfs") or {}
        files[str(entry["rfilename"])] = _HubFile(str(entry["rfilename"]), int(entry["size"]), lfs.get("sha256"))
    return commit, files


def _ggufs(listed: dict[str, _HubFile]) -> str:
    return ", ".join(sorted(name for name in listed if name.endswith(".gguf"))) or "not in this repository"


def _adopt(staging: Path, owner: str) -> None:
    """Keep partial files of the same commit, clear any others away."""
    record = staging / OWNER
    if not record.is_file() or record.read_text(encoding="utf-8") != owner:
        clear(staging)
        record.write_text(owner, encoding="utf-8")


def _verify(source: HubSource, files: list[_HubFile], staging: Path, attendant: Attendant) -> Iterator[PulledFile]:
    """Compare every file with the listing and give it its own name; one that differs is thrown away."""
    total, done = sum(file.size for file in files), 0

    def beat(num_bytes: int) -> None:
        nonlocal done
        done += num_bytes
        attendant.tell("verifying", done, total)

    for file in files:
        part = file.part(staging)
        found = hash_file(part, beat)
        if found.size != file.size or file.sha256 not in (None, found.sha256):
            part.unlink()
            problem = f"{file.path} has {found.size} bytes, sha256 {found.sha256}"
            raise PullError(
                f"{source}: {problem}; listed are {file.size}, {file.sha256}; it was damaged on its way, try again"
            )
        yield PulledFile(file.name, found.size, found.sha256)
    for file in files:
        file.part(staging).rename(staging / file.name)
    (staging / OWNER).unlink()
