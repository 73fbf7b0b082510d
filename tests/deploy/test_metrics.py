"""Whatever rules, panels and autoscalers name is in a live scrape: metrics, labels, buckets, words for how requests end."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import attrs
import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from deploy.kubectl import ROOT
from deploy.overlays import render
from deploy.promql import Selector, selectors_in
from support import Serve, wait_until

pytestmark = pytest.mark.ops

ADDED_BY_PROMETHEUS = {"job", "namespace", "pod", "container", "instance", "endpoint"}


@attrs.frozen
class Scrape:
    """The series of one exposition: for each sample's name its label sets, and for each family its type."""

    labels: dict[str, list[dict[str, str]]]
    types: dict[str, str]

    @classmethod
    def parse(cls, text: str) -> Scrape:
        """From Prometheus' text format."""
        labels, types = defaultdict(list), {}
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                labels[sample.name].append(sample.labels)
                types[sample.name] = family.type
        return cls(dict(labels), types)

    def values_of(self, name: str, label: str) -> set[str]:
        """The values of a label over all series of a name."""
        return {labels[label] for labels in self.labels[name] if label in labels}


@pytest.fixture(scope="module")
def scrape(serve_shared: Serve, succ_dir: Path) -> Scrape:
    """A server that has answered, refused, and been left by a client."""
    server = serve_shared(succ_dir, metrics_compat="vllm", engine={"max_batch": 1}, queue_capacity=1, step_delay=0.005)
    body = {"model": "succ", "messages": [{"role": "user", "content": "a"}], "stream": True, "max_tokens": 4000}
    server.chat("a", max_tokens=5)
    server.chat("a", max_tokens=5, stream=True)
    server.chat("a", max_tokens=0)
    with ThreadPoolExecutor(1) as pool:
        with httpx.stream("POST", f"{server.base_url}/chat/completions", json=body) as response:
            lines = response.iter_lines()
            next(lines)
            waiting = pool.submit(server.chat, "a", max_tokens=1)
            wait_until(lambda: server.metric("tl_engine_queue_depth") == 1)
            assert server.chat("a", max_tokens=1).status_code == 429
        assert waiting.result().status_code == 200
    return Scrape.parse(server.health.get("/metrics").text)


def rules() -> list[dict[str, Any]]:
    """All recording and alerting rules."""
    groups = render("overlays/monitoring").one("PrometheusRule")["spec"]["groups"]
    return [rule for group in groups for rule in group["rules"]]


def dashboard() -> dict[str, Any]:
    """The Grafana dashboard."""
    maps = render("overlays/monitoring").all("ConfigMap")
    document: dict[str, Any]
    (document,) = (json.loads(text) for each in maps for name, text in each["data"].items() if name.endswith(".json"))
    return document


def expressions() -> Iterator[tuple[str, str]]:
    """(where, PromQL) of everything that is deployed."""
    for rule in rules():
        yield rule.get("alert") or rule["record"], rule["expr"]
    for panel in dashboard()["panels"]:
        yield from ((panel["title"], target["expr"]) for target in panel.get("targets", ()))
    for trigger in render("overlays/keda").one("ScaledObject")["spec"]["triggers"]:
        yield "keda", trigger["metadata"]["query"]


def selectors() -> list[tuple[str, Selector]]:
    """(where, selector) of metrics that a server exposes."""
    made_here = {rule["record"] for rule in rules() if "record" in rule} | {"up"}
    found = [(where, selector) for where, text in expressions() for selector in selectors_in(text)]
    return [(where, selector) for where, selector in found if selector.metric not in made_here]


def test_metrics_exist(scrape: Scrape) -> None:
    """No rule and no panel waits for a metric that is never exposed."""
    missing = {(where, selector.metric) for where, selector in selectors() if selector.metric not in scrape.labels}
    assert missing == set()
    assert len(selectors()) > 50


def test_labels_exist(scrape: Scrape) -> None:
    """No selector asks for a label that its metric does not have."""
    for where, selector in selectors():
        known = set().union(*scrape.labels[selector.metric]) | ADDED_BY_PROMETHEUS
        assert {label for label, _, _ in selector.matchers} <= known, (where, selector)


def test_thresholds_are_buckets(scrape: Scrape) -> None:
    """A bound is one of the buckets, spelt as there ("5.0", not "5"); with any other the alert would be silent for ever."""
    asked = [(where, each.metric, bound) for where, each in selectors() if (bound := each.value_of("le"))]
    for where, metric, bound in asked:
        assert bound in scrape.values_of(metric, "le"), (where, metric, bound)
    assert len(asked) >= 3


def test_refusals_have_the_reason_that_is_asked_for(scrape: Scrape) -> None:
    """The words in rules are the words of the server."""
    asked = [selector for _, selector in selectors() if selector.metric == "tlserve_requests_total"]
    reasons = {reason for selector in asked if (reason := selector.value_of("reason"))}
    assert reasons
    assert reasons <= scrape.values_of("tlserve_requests_total", "reason")


def test_rates_are_of_counters(scrape: Scrape) -> None:
    """rate() of a gauge is nonsense, and so is a bare counter in a panel."""
    for where, text in expressions():
        for name in scrape.types:
            if re.search(rf"rate\({name}(_bucket|_count|_sum)?\b", text):
                assert scrape.types[name] in {"counter", "histogram"}, (where, name)


def test_autoscaler_reads_gauges(scrape: Scrape) -> None:
    """The HPA's metrics exist, and are levels, not totals."""
    metrics = render("overlays/hpa").one("HorizontalPodAutoscaler")["spec"]["metrics"]
    assert [scrape.types[metric["pods"]["metric"]["name"]] for metric in metrics] == ["gauge"] * len(metrics)


def test_endpoint_picker_finds_its_metrics(scrape: Scrape) -> None:
    """What the gateway overlay switches on is there under the picker's names."""
    for name in ("vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc"):
        assert scrape.types[name] == "gauge"


def test_readme_names_every_metric(scrape: Scrape) -> None:
    """Its table has what is exposed and nothing else; the process's own and those of vLLM are told as groups."""
    table = re.findall(r"^\| `tl(?:serve|_engine)_.*$", (ROOT / "README.md").read_text(), flags=re.MULTILINE)
    told = set(re.findall(r"`(tl[a-z]*_\w+)", "\n".join(row.split(" | ")[0] for row in table)))
    exposed = {
        re.sub(r"_(bucket|sum|count)$", "", name) if kind == "histogram" else name
        for name, kind in scrape.types.items()
        if name.startswith("tl")
    }
    assert told == exposed


def test_dashboard_can_be_imported() -> None:
    """It is bound to no installation: no numeric id, no fixed data source, and every panel shows something."""
    document = dashboard()
    assert document["uid"] == "tlserve"
    assert not {"id", "__inputs"} & document.keys()
    ids = [panel["id"] for panel in document["panels"]]
    assert len(set(ids)) == len(ids)
    panels = [panel for panel in document["panels"] if panel["type"] != "row"]
    for panel in panels:
        assert panel["targets"]
        assert panel["description"]
        assert panel["fieldConfig"]["defaults"]["unit"]
        assert {target["datasource"]["uid"] for target in panel["targets"]} == {"${datasource}"}
