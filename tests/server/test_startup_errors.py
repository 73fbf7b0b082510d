"""What an operator reads when it does not start: one line that says what is wrong, and the right exit code."""

from __future__ import annotations

import socket
import struct
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

Run = Callable[..., subprocess.CompletedProcess[str]]

PORTS = ("--port", "0", "--health-port", "0")


def the_line(result: subprocess.CompletedProcess[str]) -> str:
    """The one line on stderr."""
    lines = result.stderr.splitlines()
    assert len(lines) == 1, result.stderr
    assert lines[0].startswith("tlserve: ")
    return lines[0]


def test_missing_model(run: Run, tmp_path: Path) -> None:
    """A directory that is not there is named."""
    result = run("--model-dir", tmp_path / "nothing", *PORTS)

    assert result.returncode == 1
    assert str(tmp_path / "nothing") in the_line(result)


@pytest.mark.parametrize(
    "content",
    [
        b"GGUF",
        b"not a model at all",
        b"GGUF" + struct.pack("<IQQ", 3, 2**60, 2**60),
        b"GGUF" + struct.pack("<IQQ", 99, 0, 0),
    ],
    ids=["truncated", "wrong magic", "absurd counts", "unknown version"],
)
def test_broken_gguf(run: Run, tmp_path: Path, content: bytes) -> None:
    """A damaged file is refused by name."""
    path = tmp_path / "broken.gguf"
    path.write_bytes(content)

    result = run("--model-dir", path, *PORTS)

    assert result.returncode == 1
    assert "broken.gguf" in the_line(result)


def test_port_in_use(run: Run, succ_dir: Path) -> None:
    """A taken port is named, with the key it comes from."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        result = run("--model-dir", succ_dir, "--port", str(port), "--health-port", "0")

    assert result.returncode == 1
    assert str(port) in the_line(result)
    assert "in use" in the_line(result)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[engine]\nmodel_dri = 'x'", ["model_dri", "did you mean", "model_dir"]),
        ("[engine]\nmodel_dir = 'x'\nqueue_capacity = 0", ["queue_capacity", "0", "1"]),
        ("[engine]\nmodel_dir = 'x'\nprefix_cache = 'lru'", ["prefix_cache", "lru", "radix"]),
        ("[engine", ["not valid TOML"]),
    ],
)
def test_bad_configuration(run: Run, tmp_path: Path, text: str, words: list[str]) -> None:
    """The key, the value and what is allowed; exit code 2."""
    path = tmp_path / "runtime.toml"
    path.write_text(text)

    for arguments in (["--config", path], ["--config", path, "--check-config"]):
        result = run(*arguments)

        assert result.returncode == 2
        assert all(word in the_line(result) for word in words)


def test_check_config_of_a_good_file(run: Run, tmp_path: Path) -> None:
    """A good file is said to be good, without loading anything."""
    path = tmp_path / "runtime.toml"
    path.write_text("[engine]\nmodel_dir = '/models/smol/v3'")

    result = run("--config", path, "--check-config")

    assert result.returncode == 0
    assert "smol" in result.stdout


def test_nothing_to_serve(run: Run) -> None:
    """Without a model the command says how to name one."""
    result = run()

    assert result.returncode == 2
    assert "--config" in the_line(result)


def test_version_and_help(run: Run) -> None:
    """Both go to stdout and succeed."""
    assert run("--version").stdout.startswith("tlserve ")
    text = run("--help").stdout
    assert all(word in text for word in ("--config", "--model-dir", "--check-config", "pull", "TL_ENGINE__", "SIGTERM"))
