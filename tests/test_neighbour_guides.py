"""Test the pages about other systems: their YAML and JSON is well-formed, their commands are valid, and their programs
run.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from sparklog.datasource.session import SETTINGS
from tests.maintenance.test_operations_guide import job_of
from tests.support.command_line import invoke

GUIDES = Path(__file__).parents[1] / "docs" / "guides"
NAMES = ("kubernetes", "airflow", "emr", "databricks", "duckdb", "grafana", "pytest")


def blocks(name: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", (GUIDES / f"{name}.md").read_text(), re.MULTILINE | re.DOTALL)


def documents(name: str) -> list[Any]:
    yaml = pytest.importorskip("yaml", reason="needs PyYAML")
    return [document for text in blocks(name, "yaml") for document in yaml.safe_load_all(text)]


@pytest.mark.parametrize("name", NAMES)
def test_page_lists_untested_parts(name: str) -> None:
    text = (GUIDES / f"{name}.md").read_text()
    assert name in ("duckdb", "pytest") or "\n**Not tested**" in text


def test_documents_of_kubernetes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARKLOG_ROOT", "s3://bucket/log")
    job, probe, role, binding = documents("kubernetes")
    assert invoke([*probe["command"][1:], "--help"], {}).exit_code == 0
    spec = job["spec"]["jobTemplate"]["spec"]
    (container,) = spec["template"]["spec"]["containers"]
    assert (job["kind"], spec["backoffLimit"], job_of(container["command"])) == ("CronJob", 0, "compact")
    assert binding["roleRef"]["name"] == role["metadata"]["name"]


def test_programs_of_airflow(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for text in blocks("airflow", "python"):
        exec(compile(text.replace("/data/log", str(tmp_path / "log")), "airflow.md", "exec"), {})
    count, day_is_over = capsys.readouterr().out.split()
    assert count == "2"
    assert day_is_over == "True"


def test_documents_of_emr() -> None:
    steps, driver = map(json.loads, blocks("emr", "json"))
    assert job_of(steps[0]["Args"]) == "compact"
    submit = driver["sparkSubmit"]
    assert job_of([submit["entryPoint"], *submit["entryPointArguments"]]) == "compact"
    assert len(re.findall("--conf spark", submit["sparkSubmitParameters"])) == 4


def test_documents_of_databricks() -> None:
    cluster, job = map(json.loads, blocks("databricks", "json"))
    assert cluster["spark_conf"] == SETTINGS
    tasks = [task["spark_python_task"] for task in job["tasks"]]
    assert [job_of([task["python_file"], *task["parameters"]]) for task in tasks] == ["compact", "retain"]
