"""Whether an object has only fields that its kind has, of the right types."""

from __future__ import annotations

import jsonschema
import kubernetes_validate
from kubernetes_validate.utils import all_versions, major_minor

from deploy.rendered import Object
from deploy.schemas import foreign_schema

OLDEST = (1, 29)
VERSIONS = tuple(
    version for version in map(major_minor, all_versions()) if tuple(map(int, version.split("."))) >= OLDEST
)
"""Of Kubernetes: from the first that has ``preStop.sleep`` to the newest that the validator knows."""


class Invalid(Exception):
    """An object that the API server would refuse, or whose field it would drop."""


def validate(object_: Object, version: str) -> None:
    """Check one object against one version of Kubernetes.

    Raises:
        Invalid: a wrong or an unknown field, or a kind that nobody has described.
    """
    schema = foreign_schema(object_)
    try:
        if schema is not None:
            jsonschema.validate(object_, schema)
        else:
            kubernetes_validate.validate(object_, version, strict=True)
    except (jsonschema.ValidationError, kubernetes_validate.SchemaNotFoundError) as error:
        raise Invalid(f"{object_['kind']} for {version}: {error.message}") from None
