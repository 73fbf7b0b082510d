"""The alert rules, run by Prometheus' own tool: each fires when it should, stays silent when it should, and leads to advice."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from deploy.alert_cases import CASES, Case, Series
from deploy.overlays import MANIFESTS, render
from ops_tools import required_tool

pytestmark = pytest.mark.ops


@pytest.fixture(scope="module")
def rules_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The PrometheusRule's groups as a rule file (JSON is YAML)."""
    path = tmp_path_factory.mktemp("rules") / "rules.yaml"
    path.write_text(json.dumps(render("overlays/monitoring").one("PrometheusRule")["spec"]))
    return path


def promtool(*arguments: str | Path) -> str:
    """What promtool says; it must be content."""
    command = [required_tool("promtool", package="prometheus"), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def alerts() -> dict[str, dict[str, Any]]:
    """The alerting rules by name."""
    groups = render("overlays/monitoring").one("PrometheusRule")["spec"]["groups"]
    return {rule["alert"]: rule for group in groups for rule in group["rules"] if "alert" in rule}


def history(case: Case, series: Series, *, num_firing: int) -> dict[str, Any]:
    """A test of promtool: so many firing alerts of the case's name at its time."""
    firing = f'count(ALERTS{{alertname="{case.alert}",alertstate="firing"}})'
    samples = [{"labels": "{}", "value": num_firing}] if num_firing else []
    return {
        "interval": "30s",
        "input_series": [{"series": name, "values": values} for name, values in series.items()],
        "promql_expr_test": [{"expr": firing, "eval_time": case.after, "exp_samples": samples}],
    }


def test_rules_are_understood(rules_file: Path) -> None:
    """Prometheus reads every expression and every template, without a warning."""
    said = promtool("check", "rules", "--lint-fatal", rules_file)
    assert re.search(r"SUCCESS: \d+ rules found", said)


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.alert}: {case.why}")
def test_alert_fires_and_stays_silent(rules_file: Path, tmp_path: Path, case: Case) -> None:
    """It fires with the one history and not with the other."""
    tests = [history(case, case.fires, num_firing=1), history(case, case.silent, num_firing=0)]
    path = tmp_path / "case.yaml"
    path.write_text(json.dumps({"rule_files": [str(rules_file)], "evaluation_interval": "15s", "tests": tests}))

    promtool("test", "rules", path)


def test_every_alert_has_a_case() -> None:
    """No alert goes untested."""
    assert {case.alert for case in CASES} == set(alerts())


def test_every_alert_leads_to_advice() -> None:
    """runbook_url ends in the heading of a section of the README."""
    headings = re.findall(r"^#+ (.+)$", (MANIFESTS / "README.md").read_text(), flags=re.MULTILINE)
    anchors = {re.sub(r"[^\w -]", "", heading).strip().lower().replace(" ", "-") for heading in headings}
    for alert in alerts().values():
        page, _, anchor = alert["annotations"]["runbook_url"].partition("#")
        assert page.endswith("/deploy/k8s/README.md")
        assert anchor in anchors, alert["alert"]
