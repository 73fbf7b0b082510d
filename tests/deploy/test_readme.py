"""deploy/k8s/README.md tells what the manifests do."""

from __future__ import annotations

import re

import pytest

from deploy.laws import MARGIN_S
from deploy.overlays import MANIFESTS, OVERLAYS, render

pytestmark = pytest.mark.ops

README = (MANIFESTS / "README.md").read_text()


def test_equation_has_the_numbers_of_the_manifests() -> None:
    """The one equation is about what is deployed."""
    match = re.search(
        r"terminationGracePeriodSeconds  >=.*\n\s+(\d+)\s+>=\s+(\d+)\s+\+\s+(\d+)\s+\+\s+(\d+)\s+\+\s+(\d+)", README
    )
    assert match
    it = render("base")
    down = [it.pre_stop_s, it.config.quiesce_s, it.config.drain_timeout_s, MARGIN_S]
    assert [int(number) for number in match.groups()] == [it.pod["terminationGracePeriodSeconds"], *down]


def test_folders_are_told() -> None:
    """Every component is described, every overlay that is named exists, and each component has an overlay of its own."""
    components = {path.name for path in (MANIFESTS / "components").iterdir()}
    named = set(re.findall(r"overlays/([a-z]+)", README))
    assert all(f"| `components/{name}` |" in README for name in components)
    assert {f"overlays/{name}" for name in named} <= set(OVERLAYS)
    assert {f"overlays/{name}" for name in components | {"full"}} == set(OVERLAYS) - {"base"}


def test_volumes_are_told() -> None:
    """The table of writable paths is complete and has the right limits."""
    it = render("base")
    limits = {volume["name"]: volume["emptyDir"]["sizeLimit"] for volume in it.pod["volumes"] if "emptyDir" in volume}
    for mount in it.server["volumeMounts"]:
        if mount["name"] in limits:
            limit = limits[mount["name"]]
            assert f"| `{mount['mountPath']}` | emptyDir {limit[:-2]} {limit[-2:]} |" in README


def test_probes_are_told() -> None:
    """The table of probes has their paths and their patience."""
    it = render("base")
    for name in ("startup", "readiness", "liveness"):
        path, seconds = it.server[f"{name}Probe"]["httpGet"]["path"], it.budget_s(f"{name}Probe")
        assert f"| {name} | `{path}` | {seconds} s |" in README
