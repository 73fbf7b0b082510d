"""The command: a target from arguments, a table or a document on stdout, an exit code."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack

import attrs
import httpx
from attrs import frozen

from tlserve.conform.case import Failed, Result, Tier, Verdict, member
from tlserve.conform.reading import ok
from tlserve.conform.runner import chosen, run_cases
from tlserve.conform.target import Answer, NoAnswer, Target, Unreachable
from tlserve.errors import ConformError


@frozen(kw_only=True)
class Options:
    """What to ask whom.

    Attributes:
        base_url: where the API is, ``/v1`` included or not.
        health_url: where health and metrics are, if anywhere.
        model: None takes the first that the server lists.
        tier: which promises are put to the test.
        cases: patterns of names; none means all.
        api_key: what the server wants to see as a bearer token.
        timeout_s: how long to wait for bytes and for a whole answer, and for a whole case four times that.
        is_json: print a document instead of a table.

    """

    base_url: str
    health_url: str | None = None
    model: str | None = None
    tier: Tier = "engine"
    cases: Sequence[str] = ()
    api_key: str | None = None
    timeout_s: float = 30.0
    is_json: bool = False


def conform(options: Options) -> bool:
    """Put a server to the test and print how it went; True when no case failed.

    Raises:
        ConformError: the server cannot be reached, lists no model, or no case has such a name.
    """
    cases = chosen(options.tier, options.cases)
    if not cases:
        raise ConformError(f"no case of the {options.tier} tier is called {' or '.join(options.cases)}")
    with ExitStack() as clients:
        target = _target(options, clients)
        results = run_cases(cases, target, limit_s=4 * options.timeout_s)
        done = _print_json(results, target, options.tier) if options.is_json else _print_table(results)
    return all(result.verdict is not Verdict.FAIL for result in done)


def _target(options: Options, clients: ExitStack) -> Target:
    """Whom to ask; reached once, so that an address with nobody behind it is no fault of a server."""
    key = {} if options.api_key is None else {"Authorization": f"Bearer {options.api_key}"}
    http = clients.enter_context(_client(_api_url(options.base_url), options.timeout_s, key))
    health = None
    if options.health_url is not None:
        health = clients.enter_context(_client(options.health_url, options.timeout_s, {}))
    target = Target(http, options.model or "", options.timeout_s, health)
    try:
        answer = target.get("models")
    except Unreachable as error:
        raise ConformError(f"cannot reach {http.base_url}: {error}") from None
    except NoAnswer as error:
        answer = Answer(0, {}, str(error))
    return target if options.model else attrs.evolve(target, model=_first_model(answer, str(http.base_url)))


def _client(url: str, timeout_s: float, headers: Mapping[str, str]) -> httpx.Client:
    try:
        return httpx.Client(base_url=url, timeout=timeout_s, headers=headers)
    except (httpx.InvalidURL, ValueError) as error:
        raise ConformError(f"{url} is not an address: {error}") from None


def _api_url(url: str) -> str:
    bare = url.rstrip("/")
    return f"{bare}/" if bare.endswith("/v1") else f"{bare}/v1/"


def _first_model(answer: Answer, url: str) -> str:
    try:
        return str(member(ok(answer), "data", 0, "id"))
    except Failed as error:
        raise ConformError(f"{url}models lists no model ({error}); name one with --model") from None


def _print_table(results: Iterable[Result]) -> list[Result]:
    """A line a case, as it ends, and the sum."""
    done = []
    for result in results:
        done.append(result)
        line = f"{result.name:30} {result.verdict.value:5} {result.seconds:6.2f} s  {result.evidence}"
        print(line, flush=True)
    counts = ", ".join(f"{count} {verdict}" for verdict, count in _counts(done).items())
    print(f"{len(done)} cases: {counts}")
    return done


def _print_json(results: Iterable[Result], target: Target, tier: Tier) -> list[Result]:
    done = list(results)
    rows = [{**attrs.asdict(r), "verdict": r.verdict.value, "seconds": round(r.seconds, 3)} for r in done]
    document = {
        "target": str(target.http.base_url),
        "model": target.model,
        "tier": tier,
        **_counts(done),
        "cases": rows,
    }
    json.dump(document, sys.stdout, indent=2)
    print()
    return done


def _counts(results: Iterable[Result]) -> dict[str, int]:
    verdicts = [result.verdict for result in results]
    return {verdict.value: verdicts.count(verdict) for verdict in Verdict}
