"""Runs cases one after the other, to the end, whatever the target does."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase

from tlserve.conform import chats, operations, refusals, streams, texts, tiers
from tlserve.conform.case import Case, Failed, Result, Skipped, Tier, Verdict, shown
from tlserve.conform.target import NoAnswer, Target

CASES: tuple[Case, ...] = (
    *texts.CASES,
    *chats.CASES,
    *streams.CASES,
    *refusals.CASES,
    *tiers.CASES,
    *operations.CASES,
)


def chosen(tier: Tier, patterns: Iterable[str]) -> list[Case]:
    """The cases of a tier whose names match one of the patterns; all of them without patterns."""
    wanted = list(patterns) or ["*"]
    return [case for case in CASES if tier in case.tiers and any(fnmatchcase(case.name, p) for p in wanted)]


def run_cases(cases: Iterable[Case], target: Target, *, limit_s: float) -> Iterator[Result]:
    """One result a case; a case that takes longer than ``limit_s`` has failed and is left behind."""
    for case in cases:
        yield _run(case, target, limit_s)


def _run(case: Case, target: Target, limit_s: float) -> Result:
    begin = time.monotonic()
    outcome: list[tuple[Verdict, str]] = []
    worker = threading.Thread(target=lambda: outcome.append(_judge(case, target)), name=case.name, daemon=True)
    worker.start()
    worker.join(limit_s)
    verdict, evidence = outcome[0] if outcome else (Verdict.FAIL, f"no verdict after {limit_s:g} s")
    return Result(case.name, verdict, shown(evidence, 240), time.monotonic() - begin)


def _judge(case: Case, target: Target) -> tuple[Verdict, str]:
    try:
        return Verdict.PASS, case.check(target)
    except Skipped as reason:
        return Verdict.SKIP, str(reason)
    except (Failed, NoAnswer) as failure:
        return Verdict.FAIL, str(failure)
    except Exception as error:  # noqa: BLE001  an answer of a shape that no case thought of
        return Verdict.FAIL, f"the answer makes no sense ({type(error).__name__}: {shown(error)})"
