"""The shape of objects that are not Kubernetes' own, as far as this project uses them: no other field may appear.

Written from the API references of the projects that define them; `kubernetes-validate` knows only built-in kinds.
"""

from __future__ import annotations

from typing import Any

from deploy.rendered import Object

Schema = dict[str, Any]


def _closed(required: dict[str, Schema], optional: dict[str, Schema] | None = None) -> Schema:
    return {
        "type": "object",
        "properties": {**required, **(optional or {})},
        "required": sorted(required),
        "additionalProperties": False,
    }


def _list(items: Schema, **limits: int) -> Schema:
    return {"type": "array", "items": items, "minItems": 1, **limits}


TEXT: Schema = {"type": "string", "minLength": 1}
NAME: Schema = {"type": "string", "pattern": "^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$", "maxLength": 253}
LABELS: Schema = {"type": "object", "additionalProperties": {"type": "string", "maxLength": 63}}
COUNT: Schema = {"type": "integer", "minimum": 1}
PORT: Schema = {"type": "integer", "minimum": 1, "maximum": 65535}
DURATION: Schema = {"type": "string", "pattern": r"^(\d+(ms|s|m|h|d))+$"}
MATCH_LABELS = _closed({"matchLabels": LABELS})

POD_MONITOR = _closed(
    {
        "selector": MATCH_LABELS,
        "podMetricsEndpoints": _list(
            _closed({"port": TEXT}, {"path": TEXT, "interval": DURATION, "scrapeTimeout": DURATION})
        ),
    },
    {"jobLabel": TEXT},
)

_ANNOTATIONS = _closed({"summary": TEXT, "runbook_url": {"type": "string", "format": "uri"}})
_SEVERITY = _closed({"severity": {"enum": ["critical", "warning", "info"]}})
_RULE: Schema = {
    "oneOf": [
        _closed({"record": {"type": "string", "pattern": "^[a-zA-Z_:][a-zA-Z0-9_:]*$"}, "expr": TEXT}),
        _closed({"alert": TEXT, "expr": TEXT, "labels": _SEVERITY, "annotations": _ANNOTATIONS}, {"for": DURATION}),
    ]
}
PROMETHEUS_RULE = _closed({"groups": _list(_closed({"name": TEXT, "rules": _list(_RULE)}, {"interval": DURATION}))})

_SCALE_TARGET = _closed({"name": NAME}, {"apiVersion": TEXT, "kind": TEXT})
_POLICY = _closed({"type": {"enum": ["Pods", "Percent"]}, "value": COUNT, "periodSeconds": COUNT})
_SCALING_RULES = _closed(
    {"policies": _list(_POLICY)}, {"stabilizationWindowSeconds": {"type": "integer", "minimum": 0}}
)
_BEHAVIOR = _closed({}, {"scaleUp": _SCALING_RULES, "scaleDown": _SCALING_RULES})
_PROMETHEUS_TRIGGER = _closed(
    {
        "type": {"const": "prometheus"},
        "metadata": _closed(
            {"serverAddress": TEXT, "query": TEXT, "threshold": {"type": "string", "pattern": r"^[\d.]+$"}}
        ),
    },
    {"metricType": {"enum": ["AverageValue", "Value"]}},
)
SCALED_OBJECT = _closed(
    {"scaleTargetRef": _SCALE_TARGET, "triggers": _list(_PROMETHEUS_TRIGGER)},
    {
        "pollingInterval": COUNT,
        "cooldownPeriod": COUNT,
        "minReplicaCount": COUNT,
        "maxReplicaCount": COUNT,
        "fallback": _closed({"failureThreshold": COUNT, "replicas": COUNT}),
        "advanced": _closed({"horizontalPodAutoscalerConfig": _closed({"behavior": _BEHAVIOR})}),
    },
)

INFERENCE_POOL = _closed(
    {
        "selector": MATCH_LABELS,
        "targetPorts": _list(_closed({"number": PORT}), maxItems=8),
        "endpointPickerRef": _closed(
            {"name": NAME, "port": _closed({"number": PORT})},
            {"kind": {"const": "Service"}, "failureMode": {"enum": ["FailOpen", "FailClose"]}},
        ),
    }
)

_PATH_MATCH = _closed({"path": _closed({"type": {"enum": ["Exact", "PathPrefix"]}, "value": TEXT})})
_BACKEND = _closed({"name": NAME}, {"group": TEXT, "kind": TEXT, "port": PORT, "weight": COUNT})
HTTP_ROUTE = _closed(
    {
        "parentRefs": _list(_closed({"name": NAME}, {"namespace": NAME, "sectionName": NAME})),
        "rules": _list(
            _closed(
                {"backendRefs": _list(_BACKEND)},
                {
                    "matches": _list(_PATH_MATCH),
                    "timeouts": _closed({}, {"request": DURATION, "backendRequest": DURATION}),
                },
            )
        ),
    },
)

FOREIGN: dict[tuple[str, str], Schema] = {
    ("monitoring.coreos.com/v1", "PodMonitor"): POD_MONITOR,
    ("monitoring.coreos.com/v1", "PrometheusRule"): PROMETHEUS_RULE,
    ("keda.sh/v1alpha1", "ScaledObject"): SCALED_OBJECT,
    ("inference.networking.k8s.io/v1", "InferencePool"): INFERENCE_POOL,
    ("gateway.networking.k8s.io/v1", "HTTPRoute"): HTTP_ROUTE,
}


def foreign_schema(object_: Object) -> Schema | None:
    """The schema of a kind that Kubernetes itself does not know; None for the others."""
    spec = FOREIGN.get((object_["apiVersion"], object_["kind"]))
    if spec is None:
        return None
    metadata = _closed({"name": NAME, "namespace": NAME}, {"labels": LABELS})
    return _closed({"apiVersion": TEXT, "kind": TEXT, "metadata": metadata, "spec": spec})
