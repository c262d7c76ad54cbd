"""The alert rules and the dashboard name only metrics and labels that there are."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from pelton.metrics import CATALOGUE, Metric
from pelton.server import monitoring as server_metrics

FOLDER = Path(__file__).parents[2] / "examples" / "prometheus"
ALERTS = FOLDER / "alerts.yaml"
NAMES = {metric.name + ("_total" if metric.kind == "counter" else ""): metric for metric in CATALOGUE.values()} | {
    f"pelton_server_{name}": Metric(f"pelton_server_{name}", "gauge", (), text)
    for name, (_, text) in server_metrics._OF_SERVER.items()
}
_NAME = re.compile(r"\b(?:jetstream|pelton)_\w+")
# Those that Prometheus itself adds.
ADDED = {"instance", "job"}


def rules() -> list[Any]:
    (group,) = yaml.safe_load(ALERTS.read_text())["groups"]
    assert group["name"] == "pelton"
    return list(group["rules"])


def panels() -> list[Any]:
    return list(json.loads((FOLDER / "grafana.json").read_text())["panels"])


def expressions() -> list[str]:
    asked = [variable["query"] for variable in json.loads((FOLDER / "grafana.json").read_text())["templating"]["list"]]
    return [
        *(rule["expr"] for rule in rules()),
        *(target["expr"] for panel in panels() for target in panel["targets"]),
        *(query for query in asked if query.startswith("label_values")),
    ]


@pytest.mark.parametrize("expression", expressions())
def test_every_metric_and_label_is_there(expression: str) -> None:
    named = _NAME.findall(expression)
    assert named
    assert set(named) <= set(NAMES)
    labels = {label for name in named for label in NAMES[name].labels} | ADDED
    assert set(re.findall(r"(\w+)\s*=~?\s*\"", expression)) <= labels
    for listed in re.findall(r"(?:by|on)\s*\(([^)]*)\)", expression):
        assert {label.strip() for label in listed.split(",")} <= labels


def test_each_rule_leads_to_its_section_of_the_guide() -> None:
    guide = (FOLDER.parents[1] / "docs/guides/operating/incidents.md").read_text()
    sections = {
        heading.lower().replace(" ", "-"): text
        for heading, _, text in (part.partition("\n") for part in guide.split("\n## ")[1:])
    }
    for rule in rules():
        page, _, section = rule["annotations"]["runbook_url"].partition("/#")
        assert page == "https://docs.example.com/pelton/guides/operating/incidents"
        assert f"`{rule['alert']}`" in sections[section].partition("**Look**")[0]
    for text in sections.values():
        assert re.findall(r"\*\*(Symptom|Look|Do)\*\*", text)[::2] == ["Symptom", "Do"] or "old version" in text


def test_rules_say_what_they_are_about() -> None:
    for rule in rules():
        labels = {label for name in _NAME.findall(rule["expr"]) for label in NAMES[name].labels} | ADDED
        for text in rule["annotations"].values():
            assert set(re.findall(r"\$labels\.(\w+)", text)) <= labels
        assert rule["labels"]["severity"] in ("warning", "critical")
    assert len({rule["alert"] for rule in rules()}) == len(rules())
    what = " ".join(rule["expr"] for rule in rules())
    for name in ("pelton_consumer_lag", "jobs_ended_total", "jobs_dead_total", "limit_bytes", "disk_free_bytes"):
        assert name in what


def test_every_kind_of_metric_has_a_panel() -> None:
    shown = " ".join(target["expr"] for panel in panels() for target in panel["targets"])
    for kind in ("pelton_queue_jobs", "pelton_limit", "recent_flows", "schedules", "pelton_server", "pelton_store"):
        assert kind in shown


def test_panels_do_not_lie_upon_each_other() -> None:
    places = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in panels()]
    assert len(set(places)) == len(places)
    assert len({panel["id"] for panel in panels()}) == len(places)


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
def test_prometheus_accepts_the_rules() -> None:
    done = subprocess.run(["promtool", "check", "rules", ALERTS], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
def test_the_rules_fire(tmp_path: Path) -> None:
    """What Prometheus does with values that grow, fall and stand still (``alerts_test.yaml``)."""
    test = tmp_path / "test.yaml"
    test.write_text((Path(__file__).parent / "alerts_test.yaml").read_text().replace("[ALERTS]", f"[{ALERTS}]"))
    done = subprocess.run(["promtool", "test", "rules", test], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
