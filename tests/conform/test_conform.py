"""The conformance kit: green where a server is right, red at the right place where it is not, and never stuck."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from processes import command
from support import Serve, Server
from tlserve.conform.command import Options, conform
from tlserve.conform.runner import CASES, chosen
from tlserve.errors import ConformError

StartWrong = Callable[..., Any]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    """The command, as a user has it."""
    return subprocess.run(command("conform", *arguments), capture_output=True, text=True, timeout=60, check=False)


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


@pytest.mark.parametrize("tier", ["engine", "full"])
def test_a_server_that_is_not_ours_conforms(
    capsys: pytest.CaptureFixture[str], start_wrong: StartWrong, tier: Any
) -> None:
    """Nothing but what is tlserve's own is skipped, and said why; with a health address less of it."""
    server = start_wrong(tier=tier)
    rows = verdicts(capsys, Options(base_url=server.url, tier=tier, is_json=True))
    assert failed(rows) == {}
    assert {name for name, row in rows.items() if row["verdict"] == "skip"} == {
        "tokenize.count",
        "headers.tlserve",
        "health.probes",
        "health.metrics",
    }
    rows = verdicts(capsys, Options(base_url=server.url, health_url=server.root, cases=("health.*",), is_json=True))
    assert {row["verdict"] for row in rows.values()} == {"pass"}


WRONGS = {
    "lists no list": "models.list",
    "knows every model": "models.retrieve",
    "talks long": "completions.basic",
    "ends all the time": "completions.stream",
    "hears one prompt": "completions.batch",
    "loses logprobs": "completions.logprobs",
    "unnormalised": "embeddings.float",
    "no base64": "embeddings.base64",
    "miscounts tokens": "tokenize.count",
    "garbage": "chat.basic",
    "hears no system": "chat.roles",
    "cannot add": "chat.usage",
    "calls a cut a stop": "chat.length",
    "is moody": "chat.greedy",
    "ignores the seed": "chat.seed",
    "never samples": "chat.seed",
    "shows the stop string": "chat.stop",
    "never stops": "chat.stop",
    "has its worst first": "chat.logprobs",
    "mixes up": "concurrency.16",
    "no role": "chat.stream.framing",
    "one newline": "chat.stream.framing",
    "no [DONE]": "chat.stream.framing",
    "never finishes": "chat.stream.framing",
    "reckons unasked": "chat.stream.framing",
    "streams something else": "chat.stream.equals_nonstream",
    "does not reckon": "chat.stream.usage",
    "keeps running": "cancel.disconnect",
    "accepts everything": "err.400",
    "unnamed errors": "err.400",
    "errors of another shape": "err.400",
    "errors of another kind": "err.400",
    "500 for bad JSON": "err.json",
    "refuses in the stream": "err.stream",
    "is of any length": "err.context",
    "is any model": "err.404",
    "405 is 404": "err.routes",
    "500 for too much": "err.413",
    "500 for XML": "err.415",
    "ignores n": "err.422",
    "422 for no reason": "err.422",
    "no request id": "headers.request_id",
    "takes any priority": "headers.tlserve",
}
WRONGS_OF_FULL = {
    "chooses once": "full.n",
    "loses parts": "full.parts",
    "echoes nothing": "full.echo",
    "ignores tools": "full.tools",
    "ignores formats": "full.response_format",
}
WRONGS_OF_HEALTH = {"is never ready": "health.probes", "measures something else": "health.metrics"}


@pytest.mark.parametrize("wrong", WRONGS)
def test_each_wrongness_is_found(capsys: pytest.CaptureFixture[str], start_wrong: StartWrong, wrong: str) -> None:
    """By the case that is about it, and the kit runs to the end all the same."""
    rows = verdicts(capsys, Options(base_url=start_wrong(wrong).url, is_json=True))
    assert WRONGS[wrong] in failed(rows)
    assert list(rows) == [case.name for case in chosen("engine", ())]


@pytest.mark.parametrize("wrong", WRONGS_OF_FULL)
def test_each_wrongness_of_the_full_tier_is_found(
    capsys: pytest.CaptureFixture[str], start_wrong: StartWrong, wrong: str
) -> None:
    """By one case and by no other: nothing else is about it."""
    rows = verdicts(capsys, Options(base_url=start_wrong(wrong, tier="full").url, tier="full", is_json=True))
    assert list(failed(rows)) == [WRONGS_OF_FULL[wrong]]


@pytest.mark.parametrize("wrong", WRONGS_OF_HEALTH)
def test_each_wrongness_of_the_health_port_is_found(
    capsys: pytest.CaptureFixture[str], start_wrong: StartWrong, wrong: str
) -> None:
    """Where its address is given."""
    server = start_wrong(wrong)
    rows = verdicts(capsys, Options(base_url=server.url, health_url=server.root, cases=("health.*",), is_json=True))
    assert list(failed(rows)) == [WRONGS_OF_HEALTH[wrong]]


def test_every_case_can_fail() -> None:
    """There is a wrong server for each of them: a case that nothing fails proves nothing."""
    found = {*WRONGS.values(), *WRONGS_OF_FULL.values(), *WRONGS_OF_HEALTH.values()}
    assert found == {case.name for case in CASES}


HOSTILES = {
    "closes": "Server disconnected",
    "hangs": "ReadTimeout",
    "no HTTP": "RemoteProtocolError",
    "half an answer": "RemoteProtocolError",
    "nests": "the body is not JSON",
    "drips": "the answer does not end within 0.3 s",
    "floods": "the answer is longer than",
}


@pytest.mark.parametrize("hostile", HOSTILES)
def test_no_server_stops_the_kit(capsys: pytest.CaptureFixture[str], start_wrong: StartWrong, hostile: str) -> None:
    """Whatever a server sends instead of answers, each case has its verdict, and the evidence names what happened."""
    options = Options(base_url=start_wrong(hostile).url, cases=("chat.*", "cancel.*"), timeout_s=0.3, is_json=True)
    rows = verdicts(capsys, options)
    assert list(failed(rows)) == [case.name for case in chosen("engine", options.cases)]
    assert HOSTILES[hostile] in rows["chat.basic"]["evidence"]


def test_a_case_that_does_not_end_is_left_behind(start_wrong: StartWrong) -> None:
    """Headers that never end outlast every limit of one answer; the case has one too, and the process ends."""
    url = start_wrong("never ends its headers").url
    result = run("--base-url", url, "--timeout", "0.5", "--case", "concurrency.16")
    assert result.returncode == 1
    assert "no verdict after 2 s" in result.stdout


def test_evidence_is_one_harmless_line(start_wrong: StartWrong) -> None:
    """Half a surrogate and an escape sequence reach neither the encoder nor the terminal."""
    result = run("--base-url", start_wrong("speaks no Unicode").url, "--case", "chat.greedy")
    assert result.returncode == 0, result.stderr
    assert len(result.stdout.splitlines()) == 2
    assert "\N{REPLACEMENT CHARACTER}\N{REPLACEMENT CHARACTER}[2J" in result.stdout


def test_a_run_that_is_broken_off_has_not_passed(start_wrong: StartWrong) -> None:
    """A signal in the middle does not end in exit code 0."""
    server = start_wrong("hangs")
    arguments = command("conform", "--base-url", server.url, "--case", "chat.basic")
    with subprocess.Popen(arguments, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        assert server.is_asked.wait(30)
        process.terminate()
        assert process.wait(10) == -signal.SIGTERM


def test_a_key_is_sent(capsys: pytest.CaptureFixture[str], start_wrong: StartWrong) -> None:
    """A server behind a key is asked with it."""
    server = start_wrong("wants a key")
    rows = verdicts(capsys, Options(base_url=server.url, model="other", cases=("chat.basic",), is_json=True))
    assert "401" in failed(rows)["chat.basic"]
    rows = verdicts(capsys, Options(base_url=server.url, api_key="sesame", cases=("chat.basic",), is_json=True))
    assert failed(rows) == {}


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
    good = run("--base-url", start_wrong().url, "--case", "models.*", "--case", "chat.basic")
    assert good.returncode == 0, good.stderr
    *lines, total = good.stdout.splitlines()
    assert [line.split()[:2] for line in lines] == [
        ["models.list", "pass"],
        ["models.retrieve", "pass"],
        ["chat.basic", "pass"],
    ]
    assert total == "3 cases: 3 pass, 0 fail, 0 skip"
    assert run("--base-url", start_wrong("cannot add").url, "--case", "chat.usage").returncode == 1
    nobody = run("--base-url", "http://127.0.0.1:9")
    assert nobody.returncode == 2
    assert "cannot reach http://127.0.0.1:9/v1/" in nobody.stderr
    assert run("--base-url", "http://127.0.0.1:9", "--model", "m").returncode == 2
    assert run("--base-url", "localhost:9").returncode == 2
    never = run("--base-url", "http://127.0.0.1:9", "--timeout", "0")
    assert never.returncode == 2
    assert "0 is not between 0 and 3600 seconds" in never.stderr


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
