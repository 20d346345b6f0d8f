"""Test the set-up: the errors of `make` on an unsuitable host, and that its targets exist."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from scripts import dependency_versions, install

REPOSITORY = Path(__file__).parents[1]
CHECK = REPOSITORY / "scripts" / "check_machine.py"
TARGETS = (
    "venv",
    "test",
    "test-slow",
    "test-packaging",
    "test-spark",
    "test-oldest",
    "demo",
    "lint",
    "bench",
    "clean",
    "help",
)


def script(folder: Path, name: str, text: str) -> Path:
    """Write an executable shell script that replaces a program."""
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def check(**environment: str) -> subprocess.CompletedProcess[str]:
    """Return the output of the host check with these variables changed. An empty variable is unset."""
    changed = {**os.environ, **environment}
    env = {name: value for name, value in changed.items() if value}
    return subprocess.run([sys.executable, CHECK], capture_output=True, text=True, env=env, check=False)


@pytest.mark.parametrize(
    ("says", "problem"),
    [
        ("echo 'openjdk version \"17.0.15\" 2025-04-15' >&2", ""),
        ("echo 'openjdk version \"21\" 2023-09-19' >&2", ""),
        ("echo 'java version \"1.8.0_401\"' >&2", "Spark requires Java 17 or newer, found Java 8 "),
        ("echo 'openjdk version \"11.0.2\" 2019-01-15' >&2", "Spark requires Java 17 or newer, found Java 11 "),
        ("echo 'Unable to locate a Java Runtime.' >&2; exit 1", "Spark requires Java 17 or newer, but "),
    ],
)
def test_java_is_found_where_spark_finds_it(tmp_path: Path, says: str, problem: str) -> None:
    java = script(tmp_path, "home/bin/java", says)
    for environment in ({"JAVA_HOME": str(tmp_path / "home")}, {"JAVA_HOME": "", "PATH": str(java.parent)}):
        done = check(**environment)
        assert done.returncode == (1 if problem else 0)
        assert done.stderr.startswith(problem)
        assert done.stderr.count("\n") == (1 if problem else 0)


def test_missing_java_is_reported_in_one_line(tmp_path: Path) -> None:
    done = check(JAVA_HOME="", PATH=str(tmp_path))
    assert done.returncode == 1
    assert done.stderr.startswith("Spark requires Java 17 or newer, but java was not found; install Java")
    assert done.stderr.count("\n") == 1


def test_old_python_is_reported_in_one_line(tmp_path: Path) -> None:
    patched = CHECK.read_text().replace("MIN_PYTHON = (3, 10)", "MIN_PYTHON = (9, 0)")
    old = tmp_path / "check_machine.py"
    old.write_text(patched)
    done = subprocess.run([sys.executable, old, "python"], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("sparklog requires Python 3.10 or newer, found 3.")
    assert done.stderr.count("\n") == 1


def test_set_up_skips_unsuitable_interpreters(tmp_path: Path) -> None:
    programs = tmp_path / "bin"
    script(programs, "python3", 'echo "sparklog requires Python 3.10 or newer, found 3.8.1" >&2; exit 1')
    script(programs, "python3.11", f'exec "{sys.executable}" "$@"')
    script(programs, "java", "echo 'openjdk version \"11\" 2019-01-15' >&2")
    done = set_up(tmp_path, programs)
    assert done.returncode == 1
    assert done.stderr.startswith("Spark requires Java 17 or newer, found Java 11"), "Python was found, Java was not"
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "venv").exists()


def test_missing_python_is_reported_in_one_line(tmp_path: Path) -> None:
    programs = tmp_path / "bin"
    programs.mkdir()
    done = set_up(tmp_path, programs)
    assert done.returncode == 1
    assert done.stderr == (
        "sparklog requires Python 3.10 or newer, found no working python3; install it, or make PYTHON=<path>\n"
    )


def set_up(folder: Path, programs: Path) -> subprocess.CompletedProcess[str]:
    """Run scripts/set_up.sh on a host that has only these programs."""
    env = {name: value for name, value in os.environ.items() if name != "JAVA_HOME"}
    return subprocess.run(
        ["/bin/sh", "scripts/set_up.sh", folder / "venv", "python3"],
        capture_output=True,
        text=True,
        cwd=REPOSITORY,
        env={**env, "PATH": str(programs)},
        check=False,
    )


PYTHON = """
folder=$(dirname "$(dirname "$0")")
case "$*" in
    "-m venv --clear "*) mkdir -p "$4/bin" && cp "$0" "$4/bin/python" ;;
    "-c import sysconfig"*) echo "$folder" ;;
    "scripts/dependency_versions.py lowest") echo "numpy==1" ;;
    "scripts/dependency_versions.py installed") echo "numpy 1.0" ;;
    "scripts/install.py -e "*) echo "installs with $(cat "$PIP_CONSTRAINT" "$PIP_BUILD_CONSTRAINT" | tr '\\n' ' ')" ;;
    "scripts/install.py "*) echo "installs $2 beside $(ls "$folder")" ;;
    "-m pytest"*) echo "with $(basename "$PYSPARK_PYTHON"), $(cat "$folder"/base.pth): $*" ;;
esac
"""


def spark_version(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run scripts/spark_version.sh in an environment whose Python only prints its arguments."""
    base = script(folder, "base/bin/python", PYTHON).parents[1]
    command = ["/bin/sh", REPOSITORY / "scripts" / "spark_version.sh", base, *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=folder, check=False)


@pytest.mark.parametrize(("release", "wanted"), [("4.1", "4.1.*"), ("4.0.2", "4.0.2")])
def test_environment_of_a_spark_release_is_created_once(tmp_path: Path, release: str, wanted: str) -> None:
    site = f"import site; site.addsitedir('{tmp_path}/base')"
    tests = f"with python, {site}: -m pytest -m spark and not slow tests"
    # pip must not see the PySpark of the parent environment.
    assert spark_version(tmp_path, release).stdout.splitlines() == [f"installs pyspark=={wanted} beside bin", tests]
    assert spark_version(tmp_path, release, "-x", "one").stdout == f"with python, {site}: -m pytest -x one\n"
    assert (tmp_path / f".venv-spark-{release}" / ".installed").exists()


def test_unknown_spark_release_is_reported_in_one_line(tmp_path: Path) -> None:
    done = spark_version(tmp_path, "four")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "expected a Spark release such as 4.1, found 'four'; example: make test-spark SPARK=4.1\n"


def test_set_up_installs_the_latest_versions(tmp_path: Path) -> None:
    """At first, PySpark's wheel is built in parallel with the other steps, without compression.

    A later call updates everything.
    """
    python = script(
        tmp_path,
        "bin/python3",
        f'case "$2" in venv) /bin/mkdir -p "$4/bin"; /bin/cp "$0" "$4/bin/python" ;; esac; echo "$@" >>{tmp_path}/calls'
        f'\ncase "$*" in *" wheel "*) /bin/cat "$DIST_EXTRA_CONFIG" >{tmp_path}/configured ;; esac',
    )
    for name in ("mkdir", "rm", "sed"):
        script(python.parent, name, f'PATH=/bin:/usr/bin exec {name} "$@"')
    everything, calls, folder = "-e .[spark,connect,state,dev,docs]", tmp_path / "calls", tmp_path / "venv"
    for _ in range(2):
        done = set_up(tmp_path, python.parent)
        assert done.returncode == 0, done.stderr
    *first, last = [call for call in calls.read_text().splitlines() if call.startswith(("-m", "scripts/install"))]
    assert sorted(first) == [
        f"-m pip --quiet --disable-pip-version-check wheel --no-deps --wheel-dir {folder}/wheels pyspark>=4.0,<4.4",
        f"-m venv --clear {folder}",
        f"scripts/install.py --no-compile --find-links {folder}/wheels {everything}",
        "scripts/install.py --no-compile -e .[dev,docs]",
    ]
    assert (tmp_path / "configured").read_text() == "[bdist_wheel]\ncompression = stored\n"
    assert not (folder / "wheels").exists()
    assert last == f"scripts/install.py --no-compile --upgrade --upgrade-strategy eager {everything}"


def oldest_versions(folder: Path, *arguments: str) -> list[str]:
    """Run scripts/oldest_versions.sh in such an environment, in which Python 3.10 is not installed."""
    base = script(folder, "base/bin/python", PYTHON).parents[1]
    script(folder, "bin/python3.10", "exit 1")
    command = ["/bin/sh", REPOSITORY / "scripts" / "oldest_versions.sh", base, *arguments]
    environ = {**os.environ, "PATH": f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}"}
    return subprocess.run(
        command, capture_output=True, text=True, cwd=folder, env=environ, check=True
    ).stdout.splitlines()


def test_environment_of_minimum_versions_is_reused_until_ranges_change(tmp_path: Path) -> None:
    ranges, stamp = tmp_path / "pyproject.toml", tmp_path / ".venv-oldest" / ".installed"
    ranges.touch()
    installs, shows = "installs with numpy==1 numpy==1 ", "numpy 1.0"
    assert oldest_versions(tmp_path)[:2] == [installs, shows]
    assert oldest_versions(tmp_path, "-x", "one") == [shows, "with python, : -m pytest -x one"]
    os.utime(ranges, (stamp.stat().st_mtime + 10,) * 2)
    assert oldest_versions(tmp_path)[:2] == [installs, shows]


def test_minimum_versions_match_the_ranges() -> None:
    tomllib = pytest.importorskip("tomllib")
    project = tomllib.loads(dependency_versions.PYPROJECT.read_text())
    groups = [project["build-system"]["requires"], project["project"]["dependencies"]]
    groups += project["project"]["optional-dependencies"].values()
    ranges = [text for group in groups for text in group if not text.startswith("sparklog[")]
    texts = [text for text in ranges if Requirement(text).marker is None or Requirement(text).marker.evaluate()]
    pairs = {(re.split(r"[\[>]", text)[0], text.partition(">=")[2].partition(",<")[0]) for text in texts}
    assert dict(pairs) == dependency_versions.lowest_versions()
    assert len(dict(pairs)) == len(pairs), "two ranges of a package begin differently"


@pytest.mark.parametrize("target", TARGETS)
def test_make_targets_exist(target: str) -> None:
    done = subprocess.run(["make", "-n", target], capture_output=True, text=True, cwd=REPOSITORY, check=False)
    assert done.returncode == 0, done.stderr


def test_ci_runs_lint_and_the_same_tests() -> None:
    text = (REPOSITORY / ".ci" / "run").read_text()
    assert re.search(r"^set -euo pipefail$", text, re.MULTILINE)
    assert "make --no-print-directory -j 2 lint ready" in text
    assert "make --no-print-directory test " in text
    assert os.access(REPOSITORY / ".ci" / "run", os.X_OK)


SILENT_PIP = """
import pathlib, sys, time
site, seen = map(pathlib.Path, sys.argv[1:3])
print("Collecting numpy<3 (from sparklog)", flush=True)
def wait(name):
    for _ in range(6000):
        if (seen / name).exists():
            return
        time.sleep(0.01)
    sys.exit(f"nothing was shown: {name}")
wait("Collecting numpy<3 (from sparklog)")
(site / "numpy-2.0.dist-info").mkdir()
wait("packages installed: 1")
(site / "lz4-4.0.dist-info").mkdir()
wait("packages installed: 2")
"""


def test_installation_shows_the_progress_of_pip(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    site, seen = tmp_path / "site", tmp_path / "seen"
    seen.mkdir()
    (site / "old-1.0.dist-info").mkdir(parents=True)
    show = install.Progress.show

    def show_and_tell(progress: install.Progress, text: str) -> None:
        show(progress, text)
        (seen / text).touch()

    monkeypatch.setattr(install.Progress, "show", show_and_tell)
    monkeypatch.setattr(install, "PIP", [sys.executable, "-c", SILENT_PIP, str(site), str(seen)])
    monkeypatch.setattr(install, "SITE", str(site))
    monkeypatch.setattr(install, "SILENT_SECONDS", 0.01)
    assert install.main([]) == 0
    printed = [line.split(" s  ")[1] for line in capsys.readouterr().out.splitlines()]
    shown = [
        text for text, before in zip(printed, ["", *printed], strict=False) if text != before and text != "starting pip"
    ]
    assert shown == ["Collecting numpy<3 (from sparklog)", "packages installed: 1", "packages installed: 2"]


def test_installation_shows_downloads_and_the_output_of_a_failed_pip(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    downloads = "  Downloading numpy-2.0-cp311.whl (18.3 MB)\n  Downloading six.whl (11 kB)\n"
    lines = f"{downloads}Installing collected packages: six\n"
    monkeypatch.setattr(install, "PIP", [sys.executable, "-c", f"print({lines!r}, end=''); raise SystemExit(3)"])
    assert install.main([]) == 3
    printed = capsys.readouterr()
    assert [line.split(" s  ")[1] for line in printed.out.splitlines()] == [
        "numpy-2.0-cp311.whl (18 MB), 18 MB so far",
        "installing collected packages",
    ]
    assert printed.err == lines
