"""The dashboard that ships: it shows what we export, and nothing else."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from relaybox.observe.measures import MEASURES
from relaybox.observe.prometheus import BACKLOG, INBOX

DASHBOARD = Path(__file__).resolve().parents[2] / "docs" / "operate" / "grafana.json"
SUFFIXES = {"counter": ("_total",), "gauge": ("",), "histogram": ("_bucket", "_sum", "_count")}


def panels() -> list[Any]:
    return [panel for panel in json.loads(DASHBOARD.read_text())["panels"] if panel["type"] != "row"]


def exported() -> set[str]:
    facts = {
        f"relaybox_{measure.name.replace('.', '_')}{suffix}"
        for measure in MEASURES
        for suffix in SUFFIXES[measure.kind]
    }
    return facts | {f"relaybox_{name}" for name, *_ in BACKLOG} | {f"relaybox_inbox_{name}" for name, *_ in INBOX}


def test_every_metric_of_the_dashboard_exists() -> None:
    queries = [target["expr"] for panel in panels() for target in panel["targets"]]
    texts = [re.sub(r'"[^"]*"', "", query) for query in queries]
    named = {name for text in texts for name in re.findall(r"\brelaybox_\w+", text)}
    assert named - exported() == set()
    assert all(re.search(r"\brelaybox_\w+", text) for text in texts)
    assert {f"relaybox_inbox_{name}" for name, *_ in INBOX} - named == {"relaybox_inbox_processors"}


def test_labels_are_those_of_the_metrics() -> None:
    known = {measure.label for measure in MEASURES if measure.label} | {"inbox", "le"}
    for panel in panels():
        for target in panel["targets"]:
            assert set(re.findall(r"by \((\w+)\)", target["expr"])) <= known
            assert set(re.findall(r"{{(\w+)}}", target["legendFormat"])) <= set(
                re.findall(r"by \((\w+)\)", target["expr"])
            )


def test_it_shows_what_an_operator_asks() -> None:
    titles = {panel["title"] for panel in panels()}
    assert {"Consumer lag", "Dead letters", "Pending backlog", "Inbox throughput", "Health"} <= titles
    numbers = [panel["id"] for panel in json.loads(DASHBOARD.read_text())["panels"]]
    assert len(numbers) == len(set(numbers))
