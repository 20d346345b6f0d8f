"""Run examples/first_ten_minutes.sh in an empty environment, without access to this checkout and its packages."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.datasource.spark_session import REPOSITORY, has_java


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.skipif(not has_java(), reason="needs Java")
@pytest.mark.parametrize("source", ["clone", "wheel"])
def test_the_first_ten_minutes(source: str, tmp_path: Path) -> None:
    what = REPOSITORY
    if source == "wheel":
        subprocess.run([sys.executable, "-m", "pip", "--quiet", "wheel", "--no-deps", "-w", tmp_path, what], check=True)
        [what] = tmp_path.glob("*.whl")
    kept = {
        name: value for name, value in os.environ.items() if name.startswith("PIP_") or name in ("HOME", "JAVA_HOME")
    }
    environment = {**kept, "PATH": "/usr/local/bin:/usr/bin:/bin", "SPARK_LOCAL_IP": "127.0.0.1"}
    script = REPOSITORY / "examples" / "first_ten_minutes.sh"
    done = subprocess.run(
        ["sh", script, tmp_path / "first", what, sys.executable],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    for line in ("anna\t/home", "2 records in clicks", "2 records in clicks-copy", "Wrote report.html."):
        assert line in lines
    assert any(line.startswith("every byte accounted for: 3 topics") for line in lines)
    assert lines[-1].endswith("s  done")
