"""The conformance kit: green where a server is right, red at the right place where it is not, and never stuck."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from processes import command
from support import Serve, Server
from tlserve.conform.command import Options, conform
from tlserve.errors import ConformError

StartWrong = Callable[..., str]


def verdicts(capsys: pytest.CaptureFixture[str], options: Options) -> dict[str, dict[str, Any]]:
    """Each case's row of the JSON document; its exit status must agree with it."""
    is_fine = conform(options)
    document = json.loads(capsys.readouterr().out)
    rows = {row["name"]: row for row in document["cases"]}
    assert is_fine == all(row["verdict"] != "fail" for row in rows.values())
    assert all(row["evidence"] for row in rows.values())
    return rows


def failed(rows: dict[str, dict[str, Any]]) -> dict[str, str]:
    return {name: row["evidence"] for name, row in rows.items() if row["verdict"] == "fail"}


def options_for(server: Server, **fields: Any) -> Options:
    return Options(base_url=server.base_url, health_url=f"http://{server.handle.health_addr}", is_json=True, **fields)


@pytest.mark.parametrize("tier", ["engine", "full"])
@pytest.mark.parametrize("model", ["succ", "tiny-llama", pytest.param("smollm2", marks=pytest.mark.model)])
def test_tlserve_conforms(
    capsys: pytest.CaptureFixture[str], serve: Serve, request: pytest.FixtureRequest, model: str, tier: Any
) -> None:
    """All green, in both tiers: the counting table, random weights, the real model."""
    directory: Path = {
        "succ": lambda: request.getfixturevalue("succ_dir"),
        "tiny-llama": lambda: request.getfixturevalue("tiny_models") / "tiny-llama",
        "smollm2": lambda: request.getfixturevalue("smollm2_path"),
    }[model]()
    server = serve(directory, api_tier=tier)

    rows = verdicts(capsys, options_for(server, tier=tier))

    assert failed(rows) == {}
    assert len(rows) >= 30
    assert {"chat.usage", "chat.seed", "chat.stop", "chat.stream.equals_nonstream", "err.400", "cancel.disconnect",
            "concurrency.16"} <= set(rows)  # fmt: skip
    assert [name for name, row in rows.items() if row["verdict"] == "skip"] == []


def test_a_server_that_is_not_ours_conforms(capsys: pytest.CaptureFixture[str], start_wrong: StartWrong) -> None:
    """Nothing but the routes of tlserve itself is skipped, and said why."""
    rows = verdicts(capsys, Options(base_url=start_wrong(), is_json=True))
    assert failed(rows) == {}
    assert {name for name, row in rows.items() if row["verdict"] == "skip"} == {"tokenize.count", "headers.tlserve"}


WRONGS = {
    "cannot add": "chat.usage",
    "ignores the seed": "chat.seed",
    "is moody": "chat.greedy",
    "shows the stop string": "chat.stop",
    "calls a cut a stop": "chat.length",
    "streams something else": "chat.stream.equals_nonstream",
    "no role": "chat.stream.framing",
    "one newline": "chat.stream.framing",
    "no [DONE]": "chat.stream.framing",
    "never finishes": "chat.stream.framing",
    "accepts everything": "err.400",
    "unnamed errors": "err.400",
    "errors of another shape": "err.400",
    "500 for bad JSON": "err.json",
    "405 is 404": "err.routes",
    "knows every model": "models.retrieve",
    "unnormalised": "embeddings.float",
    "no base64": "embeddings.base64",
    "no request id": "headers.request_id",
    "garbage": "chat.basic",
}


@pytest.mark.parametrize("wrong", WRONGS)
def test_each_wrongness_is_found(capsys: pytest.CaptureFixture[str], start_wrong: StartWrong, wrong: str) -> None:
    """By the case that is about it, and the kit runs to the end all the same."""
    rows = verdicts(capsys, Options(base_url=start_wrong(wrong), is_json=True))
    assert WRONGS[wrong] in failed(rows)
    assert len(rows) >= 30


def test_a_server_that_hangs_is_left_behind(capsys: pytest.CaptureFixture[str], start_wrong: StartWrong) -> None:
    """Each wait ends, and says so."""
    rows = verdicts(capsys, Options(base_url=start_wrong("hangs"), cases=("chat.b*",), timeout_s=0.3, is_json=True))
    assert "ReadTimeout" in failed(rows)["chat.basic"]


def test_runs_that_are_left_running_are_seen(
    capsys: pytest.CaptureFixture[str], serve: Serve, succ_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server whose abort does not arrive fails cancel.disconnect, by its own metrics."""
    server = serve(succ_dir, step_delay=0.02)
    monkeypatch.setattr("tlserve.bridge.ticket.Ticket.end", lambda *_: None)
    rows = verdicts(capsys, options_for(server, cases=("cancel.*",)))
    assert "run 2.0 s after the hang-up" in failed(rows)["cancel.disconnect"]


def test_the_command(start_wrong: StartWrong) -> None:
    """A table with a line a case and the sum; exit code 1 when a case failed, 2 when nobody answers or nothing is asked."""

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(command("conform", *arguments), capture_output=True, text=True, timeout=60, check=False)

    good = run("--base-url", start_wrong(), "--case", "models.*", "--case", "chat.basic")
    assert good.returncode == 0, good.stderr
    *lines, total = good.stdout.splitlines()
    assert [line.split()[:2] for line in lines] == [
        ["models.list", "pass"],
        ["models.retrieve", "pass"],
        ["chat.basic", "pass"],
    ]
    assert total == "3 cases: 3 pass, 0 fail, 0 skip"
    assert run("--base-url", start_wrong("cannot add"), "--case", "chat.usage").returncode == 1
    nobody = run("--base-url", "http://127.0.0.1:9")
    assert nobody.returncode == 2
    assert "cannot reach http://127.0.0.1:9/v1/" in nobody.stderr


def test_a_case_that_is_not_there_is_named() -> None:
    """A typo does not pass for success."""
    with pytest.raises(ConformError, match=r"no case of the engine tier is called chat\.sed"):
        conform(Options(base_url="http://127.0.0.1:9", cases=("chat.sed",)))


def test_without_its_extra_the_command_says_what_to_install() -> None:
    """The server does without httpx; the kit says so in a line."""
    code = "import sys; sys.modules['httpx'] = None; from tlserve.cli import main; sys.exit(main(sys.argv[1:]))"
    result = subprocess.run(
        [*command()[:1], "-c", code, "conform", "--base-url", "http://127.0.0.1:9"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert result.returncode == 2
    assert result.stderr == "tlserve: httpx is not installed; run: pip install 'tlserve[conform]'\n"
