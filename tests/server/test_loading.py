"""What an operator sees while the model loads: in the log, and at /readyz."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from processes import Launch

pytestmark = pytest.mark.model


def test_a_first_start_says_what_it_compiles(launch: Launch, smollm2_path: Path, tmp_path: Path) -> None:
    """With nothing in the cache: the phases in the log, the kernel and how far it is at /readyz, then ready."""
    server = launch(smollm2_path, env={"NUMBA_CACHE_DIR": str(tmp_path / "cache")}, num_blocks=64)
    seen: list[dict[str, object]] = []
    while (answer := httpx.get(f"{server.health}/readyz")).status_code != 200:
        seen.append(answer.json())
    compiling = [document for document in seen if document["phase"] == "compiling and warming up"]
    details = {str(document["detail"]) for document in compiling}
    assert any(detail.startswith("kernel ") and " of " in detail for detail in details), details
    fractions = [float(str(document["fraction"])) for document in compiling]
    assert fractions == sorted(fractions)

    server.process.wait_for("ready")
    phases = [line["phase"] for line in server.process.seen if line["event"] == "loading"]
    assert phases[0] == "loading the weights"
    assert phases[-1] == "compiling and warming up"


def test_the_log_says_what_is_served(launch: Launch, smollm2_path: Path) -> None:
    """One line: which file, which kernels on which processor, how long a context, how much KV memory."""
    line = launch(smollm2_path, num_blocks=64).process.wait_for("ready")
    assert str(smollm2_path) in line["model_from"]
    assert "numba" in line["runner"]
    assert line["max_model_len"] == 64 * 16
    assert line["kv_tokens"] == 64 * 16
    assert line["kv_mib"] > 10
    assert line["load_s"] > 0
