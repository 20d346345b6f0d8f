"""Test that workflows, hooks, classifiers and the page of supported versions agree, and that their commands exist."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.test_packaging import project

REPOSITORY = Path(__file__).parents[1]
WORKFLOWS = REPOSITORY / ".github" / "workflows"
COMPATIBILITY = (REPOSITORY / "docs" / "reference" / "compatibility.md").read_text()


def jobs(name: str) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((WORKFLOWS / name).read_text())["jobs"]
    return found


def minor_versions(oldest: str, newest: str) -> list[str]:
    """Return the versions of a range: 3.10, 3.12 -> 3.10, 3.11, 3.12."""
    (major, first), (_, last) = oldest.split("."), newest.split(".")
    return [f"{major}.{minor}" for minor in range(int(first), int(last) + 1)]


def supported(what: str) -> list[str]:
    """Return the versions on the page of supported versions for `what`."""
    row = re.search(rf"^\| {what} \| (\d+\.\d+) to (\d+\.\d+) \|", COMPATIBILITY, re.MULTILINE)
    assert row is not None, what
    return minor_versions(*row.groups())


def test_python_versions_are_the_same_everywhere() -> None:
    named = supported("Python")
    assert jobs("ci.yml")["python"]["strategy"]["matrix"]["python"] == named
    prefix = "Programming Language :: Python :: "
    classifiers = [text.removeprefix(prefix) for text in project()["project"]["classifiers"] if text.startswith(prefix)]
    assert classifiers == ["3 :: Only", *named]
    assert project()["project"]["requires-python"] == f">={named[0]}"


def test_spark_versions_are_the_same_everywhere() -> None:
    named = supported("PySpark")
    # The latest version is the one that `make venv` installs.
    assert jobs("ci.yml")["spark"]["strategy"]["matrix"]["spark"] == named[:-1]
    [wanted] = [text for text in project()["project"]["optional-dependencies"]["spark"] if text.startswith("pyspark")]
    major, minor = named[-1].split(".")
    assert wanted == f"pyspark>={named[0]},<{major}.{int(minor) + 1}"


@pytest.mark.parametrize("workflow", sorted(path.name for path in WORKFLOWS.iterdir()))
def test_workflows_run_existing_targets(workflow: str) -> None:
    makefile = (REPOSITORY / "Makefile").read_text()
    commands = [step["run"] for job in jobs(workflow).values() for step in job["steps"] if "run" in step]
    assert commands
    for command in commands:
        words = command.split()
        if words[0] == "make":
            assert re.search(rf"^{words[1]}:", makefile, re.MULTILINE), command
        elif words[0] == "bash":
            assert (REPOSITORY / words[1]).exists(), command
        elif words[:3] != ["sudo", "apt-get", "install"]:
            assert words[:2] == [".venv/bin/python", "-m"], command
            module = REPOSITORY.joinpath(*words[2].split("."))
            assert module.with_suffix(".py").exists() or (module / "__main__.py").exists(), command


def test_hooks_match_the_linters_of_make() -> None:
    makefile = (REPOSITORY / "Makefile").read_text()
    linters = re.findall(r"^\t\$\(PY\) (-m (?:ruff|mypy).*?)(?: \.)?$", makefile, re.MULTILINE)
    [hooks] = yaml.safe_load((REPOSITORY / ".pre-commit-config.yaml").read_text())["repos"]
    assert [hook["entry"].removeprefix(".venv/bin/python ") for hook in hooks["hooks"]] == linters


def test_commands_for_contributors_exist() -> None:
    makefile = (REPOSITORY / "Makefile").read_text()
    targets = re.findall(r"`?make ([\w-]+)", (REPOSITORY / "CONTRIBUTING.md").read_text())
    assert len(targets) >= 4
    assert [target for target in targets if not re.search(rf"^{target}:", makefile, re.MULTILINE)] == []
