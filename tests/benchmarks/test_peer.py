"""The comparison with another server runs against anything that speaks the API, and counts what it says it counts."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from bench.client import Reply
from bench.peer import table
from bench.prompts import words
from bench.workloads import METRICS
from support import Serve

ROOT = Path(__file__).resolve().parents[2]


def test_all_workloads_run_against_two_servers(serve: Serve, succ_dir: Path) -> None:
    """A table with every metric comes out; nobody's errors pass for speed."""
    ours, theirs = serve(succ_dir), serve(succ_dir, model_id="theirs")
    done = subprocess.run(
        [
            *(sys.executable, "-m", "bench.peer", f"http://{theirs.handle.http_addr}"),
            *("--ours", ours.base_url, "--rounds", "1", "--only", "decode,prefill,prefix"),
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    for name in ("decode", "prefill", "cold", "hit"):
        assert METRICS[name].label in done.stdout


def test_a_server_that_is_not_there_is_named() -> None:
    """The address that was tried, and no traceback."""
    done = subprocess.run(
        [sys.executable, "-m", "bench.peer", "http://127.0.0.1:9", "--ours", "http://127.0.0.1:9"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "http://127.0.0.1:9/v1/models does not answer" in done.stderr
    assert "Traceback" not in done.stderr


def test_ratios_are_from_the_users_side() -> None:
    """Twice the speed and half the time are both a ratio of 2; the ratio is the median over rounds, not of medians."""
    fast, slow = {"decode": 100.0}, {"decode": 50.0}
    lines = list(
        table(
            {"decode": [(fast, slow), (slow, slow), (fast, slow)], "stall": [({"stall": 1.0}, {"stall": 2.0})]},
            "us",
            "them",
        )
    )
    assert [line.split("|")[5].strip() for line in lines[2:]] == ["2.00", "2.00"]


def test_rates_leave_out_the_first_token() -> None:
    """Decoding is what follows the first token; a server may send several tokens in one event."""
    reply = Reply(sent=10.0, arrivals=(11.0, 12.0), ended=13.0, prompt_tokens=5, completion_tokens=9)
    assert reply.first_s == pytest.approx(1.0)
    assert reply.decode_rate == pytest.approx(4.0)


def test_prompts_share_no_beginning() -> None:
    """Otherwise a prefix cache would answer for the engine."""
    beginnings = {words(4, seed) for seed in range(200)}
    assert len(beginnings) == 200
    assert words(4, 7) == words(4, 7)
