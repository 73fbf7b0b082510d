"""The Containerfile fits what the manifests and the server expect of the image."""

from __future__ import annotations

import json
import re
import shlex

import pytest
import tomli

from deploy.kubectl import ROOT
from deploy.overlays import render
from tlserve.address import ListenAddress
from tlserve.config import ServeConfig

pytestmark = pytest.mark.ops


def stages() -> list[list[tuple[str, str]]]:
    """The instructions of each stage, as (word, rest)."""
    text = re.sub(r"\\\n\s*", "", (ROOT / "Containerfile").read_text())
    lines = [line.partition(" ")[::2] for line in text.splitlines() if line and not line.startswith("#")]
    starts = [number for number, (word, _) in enumerate(lines) if word == "FROM"]
    return [lines[start:end] for start, end in zip(starts, [*starts[1:], None], strict=True)]


def last(word: str) -> str:
    """The last such instruction of the final stage."""
    return [rest for each, rest in stages()[-1] if each == word][-1]


def environment() -> dict[str, str]:
    """The variables of the image."""
    return dict(pair.split("=", 1) for word, rest in stages()[-1] if word == "ENV" for pair in shlex.split(rest))


def test_user_is_the_one_of_the_pods() -> None:
    """A numeric user that is not root: the kubelet can see that it is not, and volumes fit."""
    context = render("base").pod["securityContext"]
    assert last("USER") == f"{context['runAsUser']}:{context['runAsGroup']}"


def test_signals_reach_the_server() -> None:
    """No shell stands between the runtime and tlserve, and the signal is the one that drains."""
    assert json.loads(last("ENTRYPOINT")) == ["tlserve"]
    assert last("STOPSIGNAL") == "SIGTERM"


def test_command_is_the_one_of_the_pods() -> None:
    """By default the image serves what is mounted where the pods mount it."""
    assert json.loads(last("CMD")) == render("base").server["args"]


def test_ports_are_the_defaults() -> None:
    """EXPOSE says where a server listens that is told nothing else."""
    defaults = ServeConfig(model_dir=ROOT)
    expected = [ListenAddress.parse(text).port for text in (defaults.http_listen, defaults.health_listen)]
    assert [int(port) for port in last("EXPOSE").split()] == expected


def test_compiled_code_is_where_the_pods_take_it_from() -> None:
    """The image warms the very folder that the init container copies, as the user that will read it."""
    words = [word for word, _ in stages()[-1]]
    source, target = render("base").init("compiled-code")["command"][2:]
    assert source == f"{environment()['NUMBA_CACHE_DIR']}/."
    assert target == render("base").environment["NUMBA_CACHE_DIR"]
    assert ("RUN", '["tlserve", "warmup"]') in stages()[-1]
    assert words.index("USER") < stages()[-1].index(("RUN", '["tlserve", "warmup"]'))


def test_versions_are_held() -> None:
    """What is installed is what was tested, and no build tool stays in the image."""
    build, final = stages()
    (install,) = (rest for word, rest in build if word == "RUN" and "pip install" in rest)
    assert "--constraint constraints.txt" in install
    assert not any("pip install" in rest or "apt-get" in rest for word, rest in final if word == "RUN")


def test_sources_have_whole_seconds() -> None:
    """A layer drops fractions of a second; compiled code would not recognise its source after that."""
    (touch,) = (rest for word, rest in stages()[0] if "touch" in rest)
    assert re.search(r"--date=@\d+ ", touch)


def test_context_holds_what_is_copied() -> None:
    """Everything that the build copies exists and is let through by .containerignore; nothing else is."""
    ignore = (ROOT / ".containerignore").read_text().splitlines()
    allowed = {line.removeprefix("!") for line in ignore if line.startswith("!")}
    copied = {source for word, rest in stages()[0] if word == "COPY" for source in rest.split()[:-1]}
    assert "*" in ignore
    assert copied == allowed
    assert all((ROOT / source).exists() for source in copied)


def test_one_version() -> None:
    """The package, the image's label and the tag that the manifests ask for are the same version."""
    version = tomli.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    arguments = dict(rest.split("=", 1) for word, rest in stages()[-1] if word == "ARG")
    assert arguments["VERSION"] == version
    assert render("base").server["image"].endswith(f":{version}")


def test_traces_can_be_switched_on() -> None:
    """What ``tracing = "otlp"`` needs is in the image, where nothing can be installed later."""
    [install] = [rest for stage in stages() for word, rest in stage if word == "RUN" and " pip install " in rest]
    assert shlex.split(install)[-1] == ".[otel]"
