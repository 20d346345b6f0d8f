"""Alerts and the dashboard: their queries are valid PromQL and use names and labels of `sparklog metrics`."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from prometheus_client.parser import text_string_to_metric_families

import sparklog
from sparklog.datasource import watch
from sparklog.log.topic.root import RootView
from sparklog.maintenance.work_items import Settings
from sparklog.testing.world import DAY_MS, HOUR_MS, World
from sparklog.tools.report.gather import gather
from sparklog.tools.report.metrics import exposition

REPOSITORY = Path(__file__).parents[2]
CONF = REPOSITORY / "conf"
DASHBOARD = json.loads((CONF / "grafana-dashboard.json").read_text())
PAGE = (REPOSITORY / "docs" / "guides" / "grafana.md").read_text()


def rules() -> list[dict[str, Any]]:
    yaml = pytest.importorskip("yaml", reason="needs PyYAML")
    (group,) = yaml.safe_load((CONF / "alerts.yml").read_text())["groups"]
    return list(group["rules"])


def panels() -> list[dict[str, Any]]:
    return [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]


def queries() -> list[str]:
    of_panels = [target["expr"] for panel in panels() for target in panel["targets"]]
    of_page = re.findall(r"`([^`]*sparklog_\w+[^`]*)`", PAGE[PAGE.index("| Panel |") :])
    return [*(rule["expr"] for rule in rules()), *of_panels, *of_page]


@pytest.fixture(scope="module")
def labels() -> Mapping[str, set[str]]:
    """Return the labels of each metric of a root that has objects of all types."""
    world = World()
    root = world.root()
    configs = {"cleanup.policy": "compact,delete", "retention.ms": DAY_MS, "segment.ms": HOUR_MS}
    root.create_topic("orders", configs=configs).append(pa.table({"key": ["a"], "value": ["b"]}))
    for _ in range(2):
        sparklog.retain(root)
        world.now_ms += 2 * HOUR_MS
    with sparklog.consumer(root, "billing", topics="orders", auto_offset_reset="earliest") as consumer:
        consumer.poll()
    transaction = sparklog.transactional(root, "job").begin()
    transaction.append("orders", pa.table({"key": ["c"], "value": ["d"]}))
    transaction.prepare()
    world.now_ms += 2 * DAY_MS
    text = exposition(gather(RootView(root), Settings(world.now_ms), maintenance=False))
    exported = {
        sample.name: {*sample.labels} for family in text_string_to_metric_families(text) for sample in family.samples
    }
    of_queries = re.findall(r'^ +\("(\w+)", "', Path(watch.__file__).read_text(), re.MULTILINE)
    return exported | {f"sparklog_query_{name}": {"query", "topic", "partition"} for name in of_queries}


def test_all_names_and_labels_are_exported(labels: Mapping[str, set[str]]) -> None:
    assert len(queries()) > 30
    for query in [*queries(), *(variable.get("query", "") for variable in DASHBOARD["templating"]["list"])]:
        names = set(re.findall(r"\bsparklog_\w+", query))
        assert names <= labels.keys(), query
        used = {label.strip() for by in re.findall(r"by \(([^)]*)\)", query) for label in by.split(",")}
        used |= set(re.findall(r"[{,](\w+)=~", query))
        assert all(used <= labels[name] for name in names), query
    for rule in rules():
        (name,) = set(re.findall(r"\bsparklog_\w+", rule["expr"]))
        assert set(re.findall(r"\$labels\.(\w+)", rule["annotations"]["summary"])) <= labels[name]
    assert {"sparklog_job_interval_seconds", "sparklog_topic_oldest_expired_timestamp_seconds"} <= labels.keys()


def test_all_alerts_are_documented() -> None:
    names = [rule["alert"] for rule in rules()]
    assert len(set(names)) == len(names)
    assert set(re.findall(r"`(Sparklog\w+)`", PAGE)) == set(names)
    assert {rule["labels"]["severity"] for rule in rules()} == {"info", "warning", "critical"}


def test_dashboard_panels_do_not_overlap() -> None:
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(ids)) == len(ids)
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        cells = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
        assert place["x"] + place["w"] <= 24
        assert not cells & taken, panel["title"]
        taken |= cells
    variables = {variable["name"] for variable in DASHBOARD["templating"]["list"]}
    for panel in panels():
        assert panel["datasource"]["uid"] == "${datasource}"
        assert set(re.findall(r"\$(\w+)", json.dumps(panel["targets"]))) <= variables
        for target in panel["targets"]:
            shown = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
            by = re.search(r"by \(([^)]*)\)", target["expr"])
            assert by is None or shown <= {label.strip() for label in by[1].split(",")}, panel["title"]


def test_all_queries_are_valid_promql() -> None:
    parser = pytest.importorskip("promql_parser", reason="needs promql-parser")
    for query in queries():
        assert parser.parse(query)
    with pytest.raises(ValueError, match=r"\w"):
        parser.parse("sum by topic (sparklog_partition_bytes)")


@pytest.mark.skipif(shutil.which("promtool") is None, reason="needs Prometheus' promtool")
def test_promtool_accepts_the_rules() -> None:
    command = ["promtool", "check", "rules", str(CONF / "alerts.yml")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
