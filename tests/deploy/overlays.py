"""The overlays of deploy/k8s, as ``kubectl kustomize`` renders them."""

from __future__ import annotations

from functools import cache

from deploy.kubectl import ROOT, kustomize
from deploy.rendered import Rendered

MANIFESTS = ROOT / "deploy" / "k8s"
OVERLAYS = ("base", *sorted(f"overlays/{path.name}" for path in (MANIFESTS / "overlays").iterdir()))


@cache
def render(overlay: str) -> Rendered:
    """One overlay's objects; copy them before changing them."""
    return Rendered.parse(kustomize(MANIFESTS / overlay))
