"""Checks of Python, packages, Java and Spark settings, and the remedies that they print."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

import pytest

from sparklog.datasource.session import SETTINGS, workers_python
from sparklog.doctor import FAIL, OK, WARN
from sparklog.doctor.checks import (
    HERE,
    SESSION,
    Machine,
    ProgramOutput,
    SparkSettings,
    check_java,
    check_kernels,
    check_packages,
    check_settings,
    out_of_range,
    read_requirements,
    spark_settings,
)
from sparklog.doctor.worker_checks import check_workers
from sparklog.errors import BadRequest
from sparklog.format.kernels import warm
from tests.doctor.machines import EMPTY, HEALTHY, JAVA_17, machine, python_says

REPOSITORY = Path(__file__).parents[2]
NEXT_MINOR = [sys.version_info[0], sys.version_info[1] + 1, 0]


def test_suitable_worker_python_is_ok() -> None:
    (finding,) = check_workers(HEALTHY, None, spark=True)
    assert (finding.status, finding.fix) == (OK, "")
    assert "by python3 on the PATH" in finding.found


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (ProgramOutput(0, python_says(version=NEXT_MINOR)), "Spark does not support different versions"),
        (
            ProgramOutput(0, python_says(sparklog=None, error="ModuleNotFoundError")),
            "cannot import sparklog: ModuleNotFound",
        ),
        (ProgramOutput(0, python_says(pyarrow=None, error="x")), "cannot import pyarrow"),
        (ProgramOutput(1, "Segmentation fault"), "does not run: Segmentation fault"),
        (ProgramOutput(0, ""), "does not run"),
        (ProgramOutput(None, "timed out"), "does not run: timed out"),
    ],
)
def test_unsuitable_worker_python_fails(answer: ProgramOutput, says: str) -> None:
    broken = machine({"/bin/python3": answer}, {"PYSPARK_PYTHON": "python3"})
    (finding,) = check_workers(broken, None, spark=True)
    assert finding.status == FAIL
    assert says in finding.found
    assert finding.fix == f"export PYSPARK_PYTHON={workers_python()}"
    assert check_workers(broken, None, spark=False)[0].status == WARN


def test_wrong_python3_is_a_warning_if_no_setting_selects_it() -> None:
    wrong = machine({"/bin/python3": ProgramOutput(0, python_says(sparklog=None, error="ModuleNotFoundError"))})
    (finding,) = check_workers(wrong, None, spark=True)
    assert finding.status == WARN
    assert "cannot import sparklog: ModuleNotFound" in finding.found
    assert f"programs that call sparklog.configure use {sys.executable}" in finding.found
    assert finding.fix == f"export PYSPARK_PYTHON={workers_python()}"
    assert check_workers(wrong, "/bin/python3", spark=True)[0].status == FAIL


def test_worker_python_is_selected_by_precedence() -> None:
    """The precedence is spark.pyspark.python, PYSPARK_PYTHON, python3."""
    programs = {
        path: ProgramOutput(0, python_says(executable=path)) for path in ("/a/python", "/b/python", "/bin/python3")
    }
    both = machine(programs, {"PYSPARK_PYTHON": "/b/python"})
    assert "(/a/python, by spark.pyspark.python)" in check_workers(both, "/a/python", spark=True)[0].found
    assert "(/b/python, by PYSPARK_PYTHON)" in check_workers(both, None, spark=True)[0].found
    lost = check_workers(both, "/c/python", spark=True)[0]
    assert lost.found == "spark.pyspark.python is /c/python, which does not exist"
    assert lost.fix == f"spark.pyspark.python {workers_python()} in spark-defaults.conf"
    assert "which does not exist" in check_workers(EMPTY, None, spark=True)[0].found


@pytest.mark.parametrize(
    ("environ", "setting", "found"),
    [
        ({}, None, None),
        ({"PYSPARK_PYTHON": "/a/python", "PYSPARK_DRIVER_PYTHON": "/a/python"}, None, None),
        ({}, "/a/python", "(/bin/python3, by python3 on the PATH)"),
        ({"PYSPARK_PYTHON": "/b/python"}, "/a/python", "(/b/python, by PYSPARK_PYTHON)"),
        ({"PYSPARK_DRIVER_PYTHON": "/b/python"}, "/a/python", "(/b/python, by PYSPARK_DRIVER_PYTHON)"),
        ({"PYSPARK_DRIVER_PYTHON": "jupyter"}, "/a/python", "PYSPARK_DRIVER_PYTHON is jupyter, which does not exist"),
    ],
)
def test_different_data_source_python_is_a_warning(
    environ: dict[str, str], setting: str | None, found: str | None
) -> None:
    programs = {
        path: ProgramOutput(0, python_says(executable=path)) for path in ("/a/python", "/b/python", "/bin/python3")
    }
    _, *others = check_workers(machine(programs, environ), setting, spark=True)
    assert len(others) == (found is not None)
    for finding in others:
        assert (finding.check, finding.status) == ("data source's python", WARN)
        assert str(found) in finding.found
        assert "instead of /a/python (spark.pyspark.python)" in finding.found
        assert finding.fix.endswith("export PYSPARK_PYTHON=/a/python, or call sparklog.register(spark)")


def test_python_that_compiles_pyspark_at_each_start_is_a_warning() -> None:
    answer = ProgramOutput(0, python_says(executable="/a/python3"))
    launched = {"/a/sparklog-python": answer, "/a/python3": answer}
    (finding,) = check_workers(machine(launched, {"PYSPARK_PYTHON": "/a/python3"}), None, spark=True)
    assert finding.status == WARN
    assert "sparklog-python saves 1 s of CPU time at each of seven starts before the first row" in finding.found
    assert finding.fix == f"export PYSPARK_PYTHON={workers_python()}"
    for programs, python in ((launched, "/a/sparklog-python"), ({"/a/python3": answer}, "/a/python3")):
        assert check_workers(machine(programs, {"PYSPARK_PYTHON": python}), None, spark=True)[0].status == OK


def test_worker_check_works_with_a_real_python() -> None:
    """The check runs in another directory, as on a worker of another machine."""
    (finding,) = check_workers(Machine({"PYSPARK_PYTHON": sys.executable}), None, spark=True)
    assert f"({sys.executable}, by PYSPARK_PYTHON)" in finding.found
    assert (finding.status == OK) == (workers_python() == sys.executable)
    real = HERE.run([sys.executable, "-c", "import os; print(os.getcwd())"])
    assert (real.code, real.text.strip()) == (0, "/")
    assert HERE.run(["/no/such/program"]).code is None


@pytest.mark.parametrize(
    ("said", "status", "says"),
    [
        (JAVA_17, OK, "Java 17.0.15 (/bin/java)"),
        ('java version "1.8.0_392"', FAIL, "Java 1.8.0_392 (/bin/java), Spark requires 17 or newer"),
        ('openjdk version "21" 2023-09-19', OK, "Java 21 (/bin/java)"),
        ("The operation couldn't be completed.", FAIL, "does not print its version"),
    ],
)
def test_java_check_uses_the_printed_version(said: str, status: str, says: str) -> None:
    finding = check_java(machine({"/bin/java": ProgramOutput(0, said)}), spark=True)
    assert finding.status == status
    assert says in finding.found


def test_missing_java() -> None:
    assert check_java(EMPTY, spark=False).status == WARN
    home = machine({"/bin/java": ProgramOutput(0, JAVA_17)}, {"JAVA_HOME": "/opt/java"})
    finding = check_java(home, spark=True)
    assert (finding.status, finding.found.split(";")[0]) == (FAIL, "/opt/java/bin/java was not found")
    assert "openjdk-17" in finding.fix


@pytest.mark.parametrize(
    ("version", "wanted", "outside"),
    [
        ("1.26", ">=1.26,<3", False),
        ("1.26.0", ">=1.26,<3", False),
        ("1.25.9", ">=1.26,<3", True),
        ("3.0", "<3,>=1.26", True),
        ("2.99.1rc1", "<3,>=1.26", False),
        ("4.2.1", ">=4.2,<4.3", False),
        ("4.3", ">=4.2,<4.3", True),
        ("10.0", ">=9.5", False),
        ("1.0", "==1.0.0", False),
        ("1.1", "!=1.1", True),
        ("2.9.post0", ">=2.7", False),
        ("1", "", False),
    ],
)
def test_out_of_range_compares_versions(version: str, wanted: str, outside: bool) -> None:
    assert out_of_range(version, wanted) is outside


def test_read_requirements_parses_metadata() -> None:
    given = ["tomli<3,>=2.0.1; python_version < '3.10'", 'later>=1; python_version < "3.99"']
    assert read_requirements(given) == [("later", ">=1", "")]
    given = ["numpy<3,>=1.26", "pandas<3,>=2.2; extra == 'connect'", 'pyspark[connect] (<4.3,>=4.2) ; extra == "spark"']
    assert read_requirements(given) == [
        ("numpy", "<3,>=1.26", ""),
        ("pandas", "<3,>=2.2", "connect"),
        ("pyspark", "<4.3,>=4.2", "spark"),
    ]


def test_missing_and_outdated_packages_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    have = {"numpy": "1.20", "pyspark": "4.2.1"}

    def version(name: str) -> str:
        if name not in have:
            raise metadata.PackageNotFoundError(name)
        return have[name]

    needs = ["numpy<3,>=1.26", "lz4<5,>=4.3.3", "pyspark<4.3,>=4.2; extra == 'spark'", "ruff; extra == 'dev'"]
    monkeypatch.setattr(metadata, "requires", lambda name: needs)
    monkeypatch.setattr(metadata, "version", version)
    packages, pyspark = check_packages()
    assert packages.found == "numpy 1.20 (expected <3,>=1.26), lz4 missing (expected <5,>=4.3.3)"
    assert (packages.status, pyspark.status) == (FAIL, OK)
    assert "without" not in pyspark.found
    needs[2] = "pyspark<4.4,>=4.0; extra == 'spark'"
    have["pyspark"] = "4.1.4"
    assert check_packages()[1].found == "pyspark 4.1.4, with fewer features than 4.2 (docs/reference/spark-versions.md)"
    have.update(numpy="2.0", lz4="4.4", pyspark="3.5.1")
    assert [each.status for each in check_packages()] == [OK, FAIL]
    del have["pyspark"]
    missing = check_packages()[1]
    assert (missing.status, missing.fix.endswith('pip install "pyspark<4.4,>=4.0"')) == (WARN, True)

    def not_installed(name: str) -> list[str]:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "requires", not_installed)
    assert [each.status for each in check_packages()] == [WARN]


def test_kernels_that_fail_to_load(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sparklog.format.kernels.machine_code", None)
    finding = check_kernels()
    assert (finding.check, finding.status, finding.fix) == ("kernels", FAIL, "see the packages check")
    assert "failed to load the kernels" in finding.found


def test_uncompiled_or_uncached_kernels_are_a_warning(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from sparklog.format.kernels import machine_code

    assert warm.warm_up() == machine_code.CACHE_DIRECTORY
    assert check_kernels().status == OK
    monkeypatch.setattr(machine_code, "CACHE_DIRECTORY", str(tmp_path))
    cold = check_kernels()
    assert (cold.status, cold.fix) == (WARN, f"{sys.executable} -m sparklog.format.kernels.warm")
    monkeypatch.setattr(machine_code, "CACHE_DIRECTORY", None)
    assert "compiles them again" in check_kernels().found


def test_recommended_settings_match_the_shipped_file() -> None:
    ours = spark_settings(EMPTY, str(REPOSITORY / "conf" / "spark-defaults.conf"))
    assert dict(ours.values) == SETTINGS
    assert [finding.status for finding in check_settings(EMPTY, ours)] == [OK, OK]


def write(folder: Path, text: str) -> str:
    folder.mkdir(exist_ok=True)
    (folder / "spark-defaults.conf").write_text(text)
    return str(folder)


def test_settings_file_is_found_like_spark_does(tmp_path: Path) -> None:
    conf_dir = write(tmp_path / "dir", "spark.master local[1]")
    home = tmp_path / "home"
    home.mkdir()
    of_home = write(home / "conf", "spark.master local[2]")
    both = machine({}, {"SPARK_CONF_DIR": conf_dir, "SPARK_HOME": str(home)})
    assert spark_settings(both).values == {"spark.master": "local[1]"}
    assert spark_settings(machine({}, {"SPARK_HOME": str(home)})).values == {"spark.master": "local[2]"}
    none = machine({}, {"SPARK_CONF_DIR": str(tmp_path)})
    assert spark_settings(none) == SparkSettings(None, {})
    with pytest.raises(BadRequest, match="check --conf-file"):
        spark_settings(both, str(tmp_path / "none.conf"))
    assert spark_settings(both, f"{of_home}/spark-defaults.conf").values == {"spark.master": "local[2]"}


@pytest.mark.parametrize(
    "line",
    [
        lambda name, value: "",
        lambda name, value: f"# {name} {value}",
        lambda name, value: f"{name} 67108864",
        lambda name, value: f"{name}=false",
    ],
)
def test_deviating_settings_are_warnings(tmp_path: Path, line: Callable[[str, str], str]) -> None:
    text = "\n".join(line(name, value) for name, value in SETTINGS.items())
    folder = write(tmp_path / "conf", text)
    here = machine({}, {"SPARK_CONF_DIR": folder})
    findings = check_settings(here, spark_settings(here))
    assert [finding.status for finding in findings] == [WARN, WARN]
    assert findings[1].fix == f"echo 'spark.python.unix.domain.socket.enabled true' >> {folder}/spark-defaults.conf"
    # The printed remedy clears the warning.
    for finding in findings:
        setting = finding.fix.split("'")[1]
        with (tmp_path / "fixed").open("a") as file:
            file.write(f"{setting}\n")
    fixed = spark_settings(here, str(tmp_path / "fixed"))
    assert [finding.status for finding in check_settings(here, fixed)] == [OK, OK]


def test_session_settings_are_fixed_in_the_defaults_file(tmp_path: Path) -> None:
    folder = tmp_path / "conf"
    here = machine({}, {"SPARK_CONF_DIR": str(folder)})
    said = {next(iter(SETTINGS)): "2147483647b"}
    first, second = check_settings(here, SparkSettings(SESSION, said))
    assert (first.status, second.status) == (OK, WARN)
    file = f"{folder}/spark-defaults.conf"
    assert second.fix == f"mkdir -p {folder} && echo 'spark.python.unix.domain.socket.enabled true' >> {file}"


def test_settings_file_with_a_duplicate_name(tmp_path: Path) -> None:
    here = machine({}, {"SPARK_CONF_DIR": write(tmp_path / "conf", "a b\na c\n")})
    (finding,) = check_settings(here, spark_settings(here))
    assert (finding.status, "already set in line 1" in finding.found) == (WARN, True)
