"""The objects of a rendered overlay, and the parts of them that the rules of `laws` speak of."""

from __future__ import annotations

import copy
from typing import Any

import attrs
import yaml

from tlserve.config import ServeConfig

Object = dict[str, Any]


@attrs.frozen
class Rendered:
    """Everything that one ``kubectl apply -k`` would send."""

    objects: list[Object]

    @classmethod
    def parse(cls, text: str) -> Rendered:
        """From YAML documents."""
        return cls([document for document in yaml.safe_load_all(text) if document])

    def copy(self) -> Rendered:
        """One to break."""
        return Rendered(copy.deepcopy(self.objects))

    def all(self, *kinds: str) -> list[Object]:
        """The objects of these kinds."""
        return [object_ for object_ in self.objects if object_["kind"] in kinds]

    def one(self, kind: str) -> Object:
        """The only object of this kind."""
        (object_,) = self.all(kind)
        return object_

    @property
    def deployment(self) -> Object:
        """The spec of the Deployment."""
        spec: Object = self.one("Deployment")["spec"]
        return spec

    @property
    def pod(self) -> Object:
        """The spec of its pods."""
        spec: Object = self.deployment["template"]["spec"]
        return spec

    @property
    def pod_labels(self) -> dict[str, str]:
        """The labels of its pods."""
        labels: dict[str, str] = self.deployment["template"]["metadata"]["labels"]
        return labels

    @property
    def server(self) -> Object:
        """The container that serves."""
        container: Object
        (container,) = self.pod["containers"]
        return container

    @property
    def containers(self) -> list[Object]:
        """All containers, those of the start among them."""
        return [*self.pod["initContainers"], *self.pod["containers"]]

    def init(self, name: str) -> Object:
        """An init container."""
        container: Object
        (container,) = (each for each in self.pod["initContainers"] if each["name"] == name)
        return container

    @property
    def environment(self) -> dict[str, str]:
        """The variables of the server."""
        return {variable["name"]: variable["value"] for variable in self.server["env"]}

    @property
    def config_map(self) -> Object:
        """The ConfigMap that is mounted as the server's configuration."""
        (volume,) = (each for each in self.pod["volumes"] if "configMap" in each)
        name = volume["configMap"]["name"]
        object_: Object
        (object_,) = (each for each in self.all("ConfigMap") if each["metadata"]["name"] == name)
        return object_

    @property
    def config(self) -> ServeConfig:
        """What the server makes of its file and its variables."""
        return ServeConfig.from_toml(self.config_map["data"]["runtime.toml"], self.environment)

    @property
    def ports(self) -> dict[str, int]:
        """The server's ports by name."""
        return {port["name"]: port["containerPort"] for port in self.server["ports"]}

    @property
    def pre_stop_s(self) -> int:
        """Seconds between a pod's deletion and its stop signal; 0 without a hook."""
        hook = self.server.get("lifecycle", {}).get("preStop", {})
        seconds: int = hook.get("sleep", {}).get("seconds", 0)
        return seconds

    def budget_s(self, probe: str) -> int:
        """Seconds for which a probe may fail before it has an effect."""
        spec = self.server[probe]
        seconds: int = spec["periodSeconds"] * spec["failureThreshold"]
        return seconds
