"""A stop that something hangs in: the process ends all the same, and says where it hung."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest

HANGING = """
import sys, threading
from tlserve import ServeConfig
from tlserve.engine.load import load_engine
from tlserve.server.handle import run
from tlserve.server.log import configure_logging

def load(config, report):
    loaded = load_engine(config, report)
    type(loaded.engine.runner).forward = lambda *_: threading.Event().wait()
    return loaded

keys = {"model_dir": sys.argv[1], "http_listen": "127.0.0.1:0", "health_listen": "127.0.0.1:0"}
text = "".join(f"{key} = '{value}'\\n" for key, value in keys.items())
configure_logging(sys.stdout)
run(ServeConfig.from_toml(f"[engine]\\n{text}drain_timeout_s = 0.2\\n"), load=load)
"""


def test_a_step_that_never_ends_does_not_hold_the_exit(succ_dir: Path) -> None:
    """Some seconds after the drain limit the process is gone, with exit code 1 and the engine's stack on stderr."""
    command = [sys.executable, "-c", HANGING, str(succ_dir)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        lines = (json.loads(line) for line in process.stdout)
        api = next(line["api"] for line in lines if line["event"] == "listening")
        assert next(line for line in lines if line["event"] == "ready")
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(f"http://{api}/v1/completions", json={"model": "succ", "prompt": "a"}, timeout=0.5)

        process.send_signal(signal.SIGTERM)

        signalled = time.monotonic()
        _, stacks = process.communicate(timeout=30)
    assert process.returncode == 1
    assert time.monotonic() - signalled < 10
    assert "Timeout" in stacks
    assert "worker.py" in stacks
