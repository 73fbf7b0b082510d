"""The commands that stop by themselves, as processes."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from processes import command
from tlserve.schema import config_schema

SMALL = "[engine]\nmodel_dir = '{model}'\nhttp_listen = '127.0.0.1:0'\nhealth_listen = '127.0.0.1:0'\nnum_blocks = 8\n"


def run(*arguments: str | Path, cache: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run a command to its end."""
    env = os.environ | ({} if cache is None else {"NUMBA_CACHE_DIR": str(cache)})
    return subprocess.run(command(*arguments), check=False, capture_output=True, text=True, timeout=120, env=env)


def test_schema_is_printed() -> None:
    """The output is the schema and nothing else, ready for a file."""
    result = run("schema")
    assert (result.returncode, result.stderr) == (0, "")
    assert json.loads(result.stdout) == config_schema()


@pytest.mark.model
def test_after_a_warmup_nothing_is_compiled(tmp_path: Path, smollm2_path: Path) -> None:
    """An image that was warmed at build serves the real model without writing into its cache."""
    warm = run("warmup", cache=tmp_path)
    assert warm.returncode == 0, warm.stderr
    assert f"compiled code goes to {tmp_path}" in warm.stderr
    assert "kernel 1 of" in warm.stderr
    before = files_below(tmp_path)
    assert before

    code = (
        "import sys; from tlserve import ServeConfig; from tlserve.engine.load import load_engine\n"
        "loaded = load_engine(ServeConfig.from_toml(sys.argv[1]), lambda progress: None)\n"
        "loaded.engine.close()"
    )
    result = subprocess.run(
        [*command()[:1], "-c", code, SMALL.format(model=smollm2_path)],
        check=False,
        capture_output=True,
        text=True,
        timeout=120,
        env=os.environ | {"NUMBA_CACHE_DIR": str(tmp_path)},
    )
    assert result.returncode == 0, result.stderr
    assert files_below(tmp_path) == before


def files_below(directory: Path) -> dict[Path, int]:
    """Files with the times of their last change."""
    return {path: path.stat().st_mtime_ns for path in directory.rglob("*") if path.is_file()}
