"""What must hold of the rendered manifests beyond their schemas: each law is a function that fails with its reason.

A schema accepts a probe on a port that nobody opens, a selector that selects nothing, and a grace period that is over before the
drain is. These laws do not.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable
from pathlib import PurePosixPath
from urllib.parse import SplitResult, urlsplit

from deploy.rendered import Object, Rendered
from tlserve.address import ListenAddress

MARGIN_S = 5
"""Between the last answer's end and SIGKILL: last words, closing connections, the engine thread's end."""

REMOVAL_S = 10
"""For how long requests may still come after a pod's deletion, on most clusters."""

MEASURED_LOAD_S = 30
"""The longest load that was seen, on two busy cores and with everything to compile."""

PROBES = ("startupProbe", "readinessProbe", "livenessProbe")
RESTRICTED_VOLUMES = {
    "configMap",
    "emptyDir",
    "persistentVolumeClaim",
    "secret",
    "projected",
    "csi",
    "image",
    "ephemeral",
}

Law = Callable[[Rendered], None]


def ports_are_those_of_the_configuration(it: Rendered) -> None:
    """The container's ports are where runtime.toml listens, on every interface."""
    listens = {"http": it.config.http_listen, "health": it.config.health_listen}
    assert it.ports == {name: ListenAddress.parse(text).port for name, text in listens.items()}
    assert not any(ListenAddress.parse(text).host for text in listens.values())


def probes_ask_ports_that_are_open(it: Rendered) -> None:
    """All three probes go to the health port, by its name."""
    assert [it.server[probe]["httpGet"]["port"] for probe in PROBES] == ["health"] * 3
    assert "health" in it.ports


def probes_ask_what_they_are_for(it: Rendered) -> None:
    """Start and readiness ask for readiness; liveness does not, or a draining pod would be killed."""
    assert [it.server[probe]["httpGet"]["path"] for probe in PROBES] == ["/readyz", "/readyz", "/healthz"]


def start_has_time(it: Rendered) -> None:
    """The startup probe waits for three times the measured load, and the rollout for longer than that."""
    assert it.budget_s("startupProbe") >= 3 * MEASURED_LOAD_S
    assert it.deployment["progressDeadlineSeconds"] > it.budget_s("startupProbe")


def liveness_is_patient(it: Rendered) -> None:
    """A pod that is slow for a moment is not killed."""
    assert it.budget_s("livenessProbe") >= 30
    assert it.server["livenessProbe"]["timeoutSeconds"] >= 3


def grace_covers_the_way_down(it: Rendered) -> None:
    """The grace period is at least preStop + quiesce_s + drain_timeout_s + margin."""
    needed = it.pre_stop_s + it.config.quiesce_s + it.config.drain_timeout_s + MARGIN_S
    assert it.pod["terminationGracePeriodSeconds"] >= needed


def removal_has_time(it: Rendered) -> None:
    """The pod goes on serving while balancers hear that it leaves."""
    assert it.pre_stop_s + it.config.quiesce_s >= REMOVAL_S


def capacity_never_drops(it: Rendered) -> None:
    """A rollout starts a pod before it ends one."""
    strategy = it.deployment["strategy"]
    assert strategy["type"] == "RollingUpdate"
    assert strategy["rollingUpdate"] == {"maxSurge": 1, "maxUnavailable": 0}


def two_pods_at_least(it: Rendered) -> None:
    """One pod may always go; and only one of manifest and autoscaler says how many there are."""
    minima = [hpa["spec"]["minReplicas"] for hpa in it.all("HorizontalPodAutoscaler")]
    minima += [scaled["spec"]["minReplicaCount"] for scaled in it.all("ScaledObject")]
    fixed = it.deployment.get("replicas")
    counts = [*minima, *([] if fixed is None else [fixed])]
    assert len(counts) == 1, "say it in one place"
    assert counts[0] >= 2


def selectors_select_the_pods(it: Rendered) -> None:
    """Whatever selects pods selects ours."""
    selectors = {object_["kind"]: _selector(object_) for object_ in it.objects if _selector(object_) is not None}
    selectors |= {"topology": it.pod["topologySpreadConstraints"][0]["labelSelector"]["matchLabels"]}
    assert {"Deployment", "Service", "PodDisruptionBudget", "NetworkPolicy"} <= set(selectors)
    for kind, labels in selectors.items():
        assert labels, f"{kind} selects everything"
        assert labels.items() <= it.pod_labels.items(), f"{kind} selects {labels}"


def service_leads_to_the_api(it: Rendered) -> None:
    """The Service's one port leads to the API port, not to health and metrics."""
    (port,) = it.one("Service")["spec"]["ports"]
    assert port["targetPort"] == "http"


def evictions_are_possible(it: Rendered) -> None:
    """A node can be drained: one pod at a time, and broken pods do not count."""
    spec = it.one("PodDisruptionBudget")["spec"]
    assert spec["maxUnavailable"] == 1
    assert spec["unhealthyPodEvictionPolicy"] == "AlwaysAllow"


def autoscalers_scale_the_deployment(it: Rendered) -> None:
    """The target is ours, and pods go slowly, at most one at a time."""
    name = it.one("Deployment")["metadata"]["name"]
    for object_ in it.all("HorizontalPodAutoscaler", "ScaledObject"):
        spec = object_["spec"]
        assert spec["scaleTargetRef"] == {"apiVersion": "apps/v1", "kind": "Deployment", "name": name}
        behavior = spec.get("behavior") or spec["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]
        assert behavior["scaleDown"]["stabilizationWindowSeconds"] >= 300
        assert [policy["value"] for policy in behavior["scaleDown"]["policies"]] == [1]


def autoscalers_do_not_look_at_the_cpu(it: Rendered) -> None:
    """A working engine keeps its cores busy with one request as with thirty."""
    for object_ in it.all("HorizontalPodAutoscaler"):
        assert all(metric["type"] == "Pods" for metric in object_["spec"]["metrics"])
    for object_ in it.all("ScaledObject"):
        assert all(trigger["type"] == "prometheus" for trigger in object_["spec"]["triggers"])


def pod_is_restricted(it: Rendered) -> None:
    """The pod-level half of the restricted Pod Security Standard, with a numeric user."""
    context = it.pod["securityContext"]
    assert context["runAsNonRoot"] is True
    assert context["runAsUser"] >= 10_000
    assert context["fsGroup"] == context["runAsGroup"] == context["runAsUser"]
    assert context["seccompProfile"] == {"type": "RuntimeDefault"}
    assert not {"hostNetwork", "hostPID", "hostIPC", "hostUsers"} & it.pod.keys()
    for volume in it.pod["volumes"]:
        assert set(volume) - {"name"} <= RESTRICTED_VOLUMES, volume


def containers_are_restricted(it: Rendered) -> None:
    """The container-level half of it, and a root filesystem that cannot be written to."""
    for container in it.containers:
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": True,
        }, container["name"]
        assert all("hostPort" not in port for port in container.get("ports", ()))


def namespace_enforces_it(it: Rendered) -> None:
    """The namespace is one where pods that are not restricted are refused, and everything is in it."""
    namespace = it.one("Namespace")["metadata"]
    assert namespace["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"
    others = [object_ for object_ in it.objects if object_["kind"] != "Namespace"]
    assert {object_["metadata"].get("namespace") for object_ in others} == {namespace["name"]}


def written_paths_are_volumes(it: Rendered) -> None:
    """What the programs write to lies on a bounded volume: temporary files, compiled code, the model."""
    volumes = {volume["name"]: volume for volume in it.pod["volumes"]}
    written = {
        "tlserve": ["/tmp", it.environment["NUMBA_CACHE_DIR"]],
        "model": ["/tmp", str(PurePosixPath(it.init("model")["args"][2]).parent)],
        "compiled-code": [it.init("compiled-code")["command"][-1]],
    }
    for container in it.containers:
        mounts = {mount["mountPath"]: mount for mount in container["volumeMounts"]}
        for path in written[container["name"]]:
            assert path in mounts, f"{container['name']} writes to {path}"
            assert not mounts[path].get("readOnly")
            assert "sizeLimit" in volumes[mounts[path]["name"]]["emptyDir"]


def mounts_fit_volumes(it: Rendered) -> None:
    """Every mount has its volume, every volume its mount, and none is a subPath, which is never updated."""
    mounts = [mount for container in it.containers for mount in container["volumeMounts"]]
    assert {mount["name"] for mount in mounts} == {volume["name"] for volume in it.pod["volumes"]}
    assert not any("subPath" in mount for mount in mounts)


def images_are_named_exactly(it: Rendered) -> None:
    """One image, by a version or a digest that can never mean something else tomorrow."""
    (image,) = {container["image"] for container in it.containers}
    reference = re.fullmatch(r"[^@:]+(?::\d+)?/[^@:]+(?::(?P<tag>[\w.-]+)|@sha256:[0-9a-f]{64})", image)
    assert reference, image
    assert reference["tag"] != "latest"


def configuration_is_where_the_server_looks(it: Rendered) -> None:
    """--config names a file of the mounted ConfigMap."""
    option, path = it.server["args"]
    mount = next(mount for mount in it.server["volumeMounts"] if mount["name"] == "config")
    assert option == "--config"
    assert path == f"{mount['mountPath']}/runtime.toml"
    assert "runtime.toml" in it.config_map["data"]


def configuration_changes_roll(it: Rendered) -> None:
    """The ConfigMap's name carries the hash of its content."""
    assert re.fullmatch(r"tlserve-config-[a-z0-9]{10}", it.config_map["metadata"]["name"])


def model_is_pinned_and_where_the_server_looks(it: Rendered) -> None:
    """The init container puts one exact model where runtime.toml has it; the server only reads it and never fetches."""
    command, source, directory = it.init("model")["args"]
    assert command == "pull"
    assert re.search(r"#sha256=[0-9a-f]{64}$", source)
    assert str(it.config.model_dir) == directory
    assert it.config.model_source is None
    mount = next(mount for mount in it.server["volumeMounts"] if mount["name"] == "model")
    assert PurePosixPath(directory).is_relative_to(mount["mountPath"])
    assert mount["readOnly"] is True


def pods_carry_no_credentials(it: Rendered) -> None:
    """No token of the API server, and no variables of other Services."""
    account = it.one("ServiceAccount")
    assert it.pod["serviceAccountName"] == account["metadata"]["name"]
    assert account["automountServiceAccountToken"] is False
    assert it.pod["automountServiceAccountToken"] is False
    assert it.pod["enableServiceLinks"] is False


def resources_fit_the_configuration(it: Rendered) -> None:
    """Memory is reserved in full, the CPU is not throttled, and the engine counts on just that."""
    resources = it.server["resources"]
    assert resources["requests"]["memory"] == resources["limits"]["memory"]
    assert "cpu" not in resources["limits"]
    assert int(resources["requests"]["cpu"]) == it.config.engine.threads
    assert it.config.engine.kv_memory is not None
    assert 4 * it.config.engine.kv_memory <= _bytes(resources["limits"]["memory"])
    assert all(container["resources"]["limits"]["memory"] for container in it.containers)


def network_is_closed_but_for(it: Rendered) -> None:
    """In: the API, and health for those who measure. Out: names, HTTPS for the model, and the collector of traces. Nothing else."""
    spec = it.one("NetworkPolicy")["spec"]
    assert spec["policyTypes"] == ["Ingress", "Egress"]
    assert all(rule["from"] for rule in spec["ingress"])
    assert {port["port"] for rule in spec["ingress"] for port in rule["ports"]} == {"http", "health"}
    outward = {(port["protocol"], port["port"]) for rule in spec["egress"] for port in rule["ports"]}
    collector = {("TCP", _collector(it).port)} if it.config.tracing != "off" else set()
    assert outward == {("UDP", 53), ("TCP", 53), ("TCP", 443)} | collector


def connections_outlive_the_proxy(it: Rendered) -> None:
    """The server is never the first to close an idle pooled connection: proxies do after 60 s."""
    assert it.config.keep_alive_s > 60


def nothing_is_slowed_down(it: Rendered) -> None:
    """The key for rehearsals stays out."""
    assert it.config.step_delay == 0


def scrapes_reach_the_metrics(it: Rendered) -> None:
    """The PodMonitor's port is one of the container's, and its timeout fits into its interval."""
    for object_ in it.all("PodMonitor"):
        (endpoint,) = object_["spec"]["podMetricsEndpoints"]
        assert endpoint["port"] == "health"
        assert endpoint["path"] == "/metrics"
        assert _seconds(endpoint["scrapeTimeout"]) < _seconds(endpoint["interval"])


def pool_leads_to_the_api(it: Rendered) -> None:
    """The InferencePool's port is the API's; routes lead to the pool; the picker finds metrics by the names it knows."""
    for pool in it.all("InferencePool"):
        assert [port["number"] for port in pool["spec"]["targetPorts"]] == [it.ports["http"]]
        assert pool["spec"]["endpointPickerRef"]["failureMode"] == "FailOpen"
        references = [ref for rule in it.one("HTTPRoute")["spec"]["rules"] for ref in rule["backendRefs"]]
        group = pool["apiVersion"].partition("/")[0]
        assert references == [{"group": group, "kind": "InferencePool", "name": pool["metadata"]["name"]}]
        assert it.environment["TL_ENGINE__METRICS_COMPAT"] == "vllm"


def keys_are_where_the_server_looks(it: Rendered) -> None:
    """A file of API keys that the configuration names lies on a Secret, mounted whole so that changes arrive, and not for everyone."""
    if it.config.api_keys_file is None:
        return
    mount = next(each for each in it.server["volumeMounts"] if each["mountPath"] == str(it.config.api_keys_file.parent))
    volume = next(each for each in it.pod["volumes"] if each["name"] == mount["name"])
    assert mount["readOnly"] is True
    assert volume["secret"]["defaultMode"] & 0o007 == 0


def traces_reach_the_collector(it: Rendered) -> None:
    """Where requests are traced it is said where to, in full, and the pods may send there and, on that port, nowhere else."""
    if it.config.tracing == "off":
        return
    _, namespace = (_collector(it).hostname or "").split(".")[:2]
    (rule,) = (
        rule
        for rule in it.one("NetworkPolicy")["spec"]["egress"]
        if {"protocol": "TCP", "port": _collector(it).port} in rule["ports"]
    )
    assert rule["to"] == [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}}}]
    assert it.environment["OTEL_SERVICE_NAME"] == it.one("Deployment")["metadata"]["name"]


def dashboards_are_found(it: Rendered) -> None:
    """Grafana's sidecar looks for this label."""
    for monitor in it.all("PodMonitor"):
        labels = [object_["metadata"]["labels"] for object_ in it.all("ConfigMap")]
        assert any(each.get("grafana_dashboard") == "1" for each in labels), monitor


LAWS: tuple[Law, ...] = tuple(
    function
    for name, function in inspect.getmembers(sys.modules[__name__], inspect.isfunction)
    if function.__module__ == __name__ and not name.startswith("_")
)


def _collector(it: Rendered) -> SplitResult:
    """Where traces go."""
    return urlsplit(it.environment["OTEL_EXPORTER_OTLP_ENDPOINT"])


def _selector(object_: Object) -> dict[str, str] | None:
    """The pod labels that an object selects by, None if it does not select."""
    spec = object_.get("spec", {})
    match object_["kind"]:
        case "Service":
            labels: dict[str, str] = spec["selector"]
        case "NetworkPolicy":
            labels = spec["podSelector"]["matchLabels"]
        case "Deployment" | "PodDisruptionBudget" | "PodMonitor" | "InferencePool":
            labels = spec["selector"]["matchLabels"]
        case _:
            return None
    return labels


def _bytes(quantity: str) -> int:
    number, unit = int(quantity[:-2]), quantity[-2:]
    return number * {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30}[unit]


def _seconds(duration: str) -> int:
    return int(duration.removesuffix("s"))
