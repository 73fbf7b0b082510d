"""The manifests of deploy/k8s: valid for every supported version of Kubernetes, and right beyond their schemas."""

from __future__ import annotations

import json
from functools import cache

import pytest

from deploy.laws import LAWS, Law
from deploy.overlays import OVERLAYS, render
from deploy.validity import VERSIONS, validate

pytestmark = pytest.mark.ops


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("overlay", OVERLAYS)
def test_objects_are_valid(overlay: str, version: str) -> None:
    """Every object of every overlay has only fields that its kind has, of the right types."""
    for object_ in render(overlay).objects:
        validate_once(json.dumps(object_, sort_keys=True), version)


@cache
def validate_once(text: str, version: str) -> None:
    """Overlays share most of their objects."""
    validate(json.loads(text), version)


@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.__name__)
@pytest.mark.parametrize("overlay", OVERLAYS)
def test_laws_hold(overlay: str, law: Law) -> None:
    """What a schema cannot say holds in every overlay."""
    law(render(overlay))
