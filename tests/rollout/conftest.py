"""A deployment of a counting model behind haproxy."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest

from ops_tools import required_tool
from rollout.deployment import Deploy, Deployment, Setting, open_deployment


@pytest.fixture
def deploy(tmp_path: Path, succ_dir: Path) -> Deploy:
    """`open_deployment` with haproxy, a directory and a model whose streams last up to two seconds."""
    executable = required_tool("haproxy", package="haproxy")
    keys: dict[str, object] = {"model_dir": str(succ_dir), "step_delay": 0.05, "drain_timeout_s": 10.0}

    def start(setting: Setting, *, num_replicas: int = 2) -> AbstractAsyncContextManager[Deployment]:
        return open_deployment(executable, tmp_path, setting, keys, num_replicas=num_replicas)

    return start
