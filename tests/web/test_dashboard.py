"""docs/grafana-dashboard.json and docs/prometheus-alerts.yml, compared with the metrics that exist."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from kbroker.web.exposition import process_metrics
from kbroker.web.metrics import COUNTER, DECLARED, GAUGE, HISTOGRAM
from tests.web.asking import get
from tests.web.test_pages import create, find_coordinator, join, observed, produce

DOCS = Path(__file__).parents[2] / "docs"
OF_TARGETS = {"job", "instance"}
"""Labels that Prometheus adds."""
FUNCTIONS = {"sum", "rate", "increase", "topk", "histogram_quantile", "predict_linear", "by", "and", "or"}
_SELECTOR = re.compile(r"([a-z_][a-z0-9_]*)\s*(?:\{([^}]*)\})?(\[[^]]*\])?")


def existing() -> dict[str, tuple[str, set[str]]]:
    """The kind and the labels of each series that the page can have."""
    found: dict[str, tuple[str, set[str]]] = {"up": (GAUGE, set())}
    for one in DECLARED:
        labels = set(one.labels)
        if one.kind == HISTOGRAM:
            found[f"{one.name}_bucket"] = COUNTER, labels | {"le"}
            found |= {f"{one.name}_{part}": (COUNTER, labels) for part in ("sum", "count")}
        else:
            found[one.name] = one.kind, labels
    for family in process_metrics():
        name = f"{family.name}_total" if family.type == "counter" else family.name
        found[name] = family.type, set()
    return found


def problems(expression: str) -> Iterator[str]:
    """What is wrong with an expression: unknown metrics and labels, counters without a rate, rates of gauges."""
    known = existing()
    text = re.sub(r'"[^"]*"', '""', re.sub(r"\bby\s*\(([^)]*)\)", "", expression))
    available: set[str] = set(OF_TARGETS)
    for found in _SELECTOR.finditer(text):
        name, matchers, window = found.groups()
        if name in FUNCTIONS:
            continue
        if name not in known:
            yield f"{name} does not exist"
            continue
        kind, labels = known[name]
        available |= labels
        for matcher in filter(None, (one.strip() for one in (matchers or "").split(","))):
            label = re.split(r"[=!]", matcher)[0].strip()
            if label not in labels | OF_TARGETS:
                yield f"{name} has no label {label}"
        before = text[: found.start()].rstrip("( ")
        is_rated = before.endswith(("rate", "increase"))
        if (kind == COUNTER) != is_rated or (is_rated and not window):
            yield f"{name} is a {kind}"
    for labels_text in re.findall(r"\bby\s*\(([^)]*)\)", expression):
        for label in (one.strip() for one in labels_text.split(",")):
            if label not in available:
                yield f"nothing has the label {label}"


def alerts() -> dict[str, str]:
    text = (DOCS / "prometheus-alerts.yml").read_text()
    return dict(re.findall(r"- alert: (\w+)\n +expr: (.+)\n", text))


def panels() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((DOCS / "grafana-dashboard.json").read_text())["panels"]
    return [panel for panel in found if panel["type"] != "row"]


def test_alerts_use_metrics_and_labels_that_exist() -> None:
    found = alerts()
    assert len(found) == (DOCS / "prometheus-alerts.yml").read_text().count("- alert:") > 10
    assert {name: wrong for name, text in found.items() if (wrong := list(problems(text)))} == {}


def test_panels_use_metrics_and_labels_that_exist() -> None:
    wrong = {}
    for panel in panels():
        for target in panel["targets"]:
            unknown = list(problems(target["expr"].replace("$__rate_interval", "5m")))
            shown = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
            kept = re.findall(r"\bby\s*\(([^)]*)\)", target["expr"])
            labels = {one.strip() for text in kept for one in text.split(",")} if kept else OF_TARGETS
            unknown += [f"the legend has no {label}" for label in shown - labels]
            if unknown:
                wrong[panel["title"]] = unknown
    assert wrong == {}


def test_panels_do_not_overlap_and_have_ids() -> None:
    document = json.loads((DOCS / "grafana-dashboard.json").read_text())
    ids = [panel["id"] for panel in document["panels"]]
    assert len(ids) == len(set(ids))
    cells = [
        (x, y)
        for panel in document["panels"]
        for x in range(panel["gridPos"]["x"], panel["gridPos"]["x"] + panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["y"], panel["gridPos"]["y"] + panel["gridPos"]["h"])
    ]
    assert len(cells) == len(set(cells))
    assert {x for x, _ in cells} == set(range(24))


@pytest.mark.parametrize(
    "expression",
    [
        "kafka_server_nothing",
        'kafka_log_log_size{broker="1"}',
        "sum by (broker) (kafka_log_log_size)",
        "kbroker_request_faults_total",
        "rate(kafka_log_log_size[5m])",
        "kbroker_network_requestmetrics_totaltimems",
    ],
)
def test_the_check_finds_mistakes(expression: str) -> None:
    assert list(problems(expression))


def test_promtool_accepts_the_alerts() -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed: `apt install prometheus`")
    subprocess.run([promtool, "check", "rules", DOCS / "prometheus-alerts.yml"], check=True)


async def test_no_metric_has_a_total_among_its_series() -> None:
    """`sum()` over a metric must count nothing twice."""
    async with observed() as (broker, client):
        await create(client, "t", partitions=2)
        await produce(client, "t", records=1)
        await find_coordinator(client, "g")
        await join(client, "g")
        text = (await get(broker.env, "/metrics")).body.decode()
    for family in text_string_to_metric_families(text):
        labels = {frozenset(sample.labels) - {"le"} for sample in family.samples}
        assert len(labels) <= 1, family.name


def test_no_two_metrics_are_the_same() -> None:
    helps = [one.help for one in DECLARED if "throttle_time" not in one.name]
    assert len(helps) == len(set(helps))
