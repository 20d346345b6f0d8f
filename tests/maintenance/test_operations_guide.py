"""The jobs accept the commands in conf/crontab and docs/guides, and the numbers there match the code."""

from __future__ import annotations

import re
import runpy
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from configparser import ConfigParser
from contextlib import contextmanager
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from sparklog.cli.commands.jobs import HELP
from sparklog.format.offset_map import slot_count
from sparklog.jobs import compact, from_delta, mirror, retain, to_delta, to_delta_without_spark, to_iceberg, verify
from sparklog.jobs.common import INTERRUPTED
from sparklog.jobs.table_options import TableJob
from sparklog.limits import DEFAULTS
from sparklog.maintenance.leases import LEASE_MS
from sparklog.maintenance.work_items import Settings

REPOSITORY = Path(__file__).parents[2]
CONF = REPOSITORY / "conf"
CRONTAB = CONF / "crontab"
GUIDES = "\n".join(page.read_text() for page in sorted((REPOSITORY / "docs" / "guides").glob("*.md")))
JOBS: dict[str, Callable[[list[str]], object]] = {
    "jobs/compact.py": compact.arguments,
    "jobs/retain.py": retain.arguments,
    "jobs/mirror.py": mirror.arguments,
    "jobs/verify.py": verify.arguments,
    "jobs/to_delta.py": to_delta.arguments,
    "jobs/from_delta.py": from_delta.arguments,
    "jobs/to_iceberg.py": to_iceberg.arguments,
}
MAINTENANCE = {"jobs/compact.py", "jobs/retain.py"}
FIELDS = re.compile(r"(\S+ +\S+ +\S+ +\S+ +\S+) +(.*)")


def commands(text: str) -> list[str]:
    return [line for line in text.splitlines() if "jobs/" in line and not line.startswith("#")]


def check(command: str) -> str:
    """Parse the options of a command as its job does, and return the job."""
    words = shlex.split(command.split(" >> ")[0])
    at = next(index for index, word in enumerate(words) if word in JOBS)
    JOBS[words[at]](words[at + 1 :])
    for before, word in pairwise(words):
        if before == "--properties-file":
            assert (REPOSITORY / word).is_file()
    return words[at]


@pytest.fixture(autouse=True)
def in_the_repository(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(REPOSITORY)
    monkeypatch.setenv("SPARKLOG_ROOT", "/data/log")


def cron_commands(crontab: Path) -> Iterator[str]:
    """Yield the commands of a crontab file without their redirections."""
    for line in crontab.read_text().splitlines():
        match = FIELDS.fullmatch(line)
        if line.startswith("#") or match is None:
            continue
        assert re.fullmatch(r"[\d*/, -]+", match.group(1)), line
        assert "%" not in match.group(2), "cron treats % as a newline"
        assert "flock" not in line, "a lock works on one host only; the lease in the root works across hosts"
        yield match.group(2).split(" >> ")[0]


def test_crontab_runs_both_jobs_with_valid_options() -> None:
    """The lines do not need a checkout, because they run commands that the wheel installs."""
    ran = []
    for command in cron_commands(CRONTAB):
        program, name, option, file = shlex.split(command)
        assert program == "sparklog"
        assert JOBS[f"jobs/{name}.py"]([option, str(CONF / Path(file).name)])
        ran.append(name)
    assert ran == ["compact", "retain"]


def parsed(name: str) -> ConfigParser:
    """Parse a unit file of systemd."""
    parser = ConfigParser(strict=False, interpolation=None)
    parser.optionxform = str  # type: ignore[assignment, method-assign]
    parser.read_string((CONF / name).read_text())
    return parser


TABLE_JOBS = {"to-iceberg": to_iceberg.arguments, "to-delta": to_delta_without_spark.arguments}


def table_job(words: Sequence[str]) -> TableJob:
    """Parse the options of a command that copies a topic to a table."""
    at = next(index for index, word in enumerate(words) if word in TABLE_JOBS)
    assert words[at - 1].rpartition("/")[2] == "sparklog"
    return TABLE_JOBS[words[at]](list(words[at + 1 :]))


def test_crontab_of_table_copies_has_valid_options() -> None:
    jobs = [table_job(shlex.split(command)) for command in cron_commands(CONF / "tables.crontab")]
    assert [(job.topic, job.mode, job.follow) for job in jobs] == [
        ("orders", "append", False),
        ("customers", "upsert", False),
    ]


def test_systemd_service_follows_a_topic() -> None:
    text = (CONF / "sparklog-table@.service").read_text()
    service = parsed("sparklog-table@.service")["Service"]
    [example] = re.findall(r"^#   COPY=(.*)$", text, re.MULTILINE)
    job = table_job(shlex.split(service["ExecStart"].replace("$COPY", example)))
    assert (job.topic, job.follow, job.interval_ms) == ("orders", True, 60_000)
    assert (service["SuccessExitStatus"], service["Restart"]) == (str(INTERRUPTED), "on-failure")


def test_kubernetes_deployment_follows_a_topic() -> None:
    yaml = pytest.importorskip("yaml", reason="needs PyYAML")
    text = (CONF / "kubernetes-table.yaml").read_text()
    document = yaml.safe_load(text)
    assert (document["kind"], document["spec"]["replicas"]) == ("Deployment", 1)
    assert document["spec"]["strategy"] == {"type": "Recreate"}
    assert document["spec"]["selector"]["matchLabels"] == document["spec"]["template"]["metadata"]["labels"]
    (container,) = document["spec"]["template"]["spec"]["containers"]
    job = table_job(container["command"])
    assert (job.topic, job.follow) == ("orders", True)
    [other] = re.findall(r"the command `(sparklog to-delta .*)`", text)
    assert table_job(shlex.split(other)).topic == "orders"


def test_systemd_timers_start_both_jobs() -> None:
    service = parsed("sparklog@.service")["Service"]
    assert (service["Type"], service["Restart"]) == ("oneshot", "no")
    for job, arguments in (("compact", compact.arguments), ("retain", retain.arguments)):
        timer = parsed(f"sparklog-{job}.timer")
        assert timer["Timer"]["Unit"] == f"sparklog@{job}.service"
        assert re.fullmatch(r"\*-\*-\* \*:\d\d:00", timer["Timer"]["OnCalendar"])
        assert timer["Install"]["WantedBy"] == "timers.target"
        program, name, option, file = shlex.split(service["ExecStart"].replace("%i", job))
        assert (program.endswith("/bin/sparklog"), name) == (True, job)
        assert arguments([option, str(CONF / Path(file).name)]).settings


def job_of(words: Sequence[str]) -> str:
    """Parse the arguments after `spark_job.py` as the job does, and return the job's name."""
    at = next(index for index, word in enumerate(words) if word.endswith("spark_job.py"))
    name = words[at + 1]
    import_module(f"sparklog.jobs.{name}").arguments(list(words[at + 2 :]))
    return name


def test_kubernetes_cron_jobs_run_both_jobs() -> None:
    yaml = pytest.importorskip("yaml", reason="needs PyYAML")
    ran = set()
    for document in yaml.safe_load_all((CONF / "kubernetes-cronjob.yaml").read_text()):
        assert (document["apiVersion"], document["kind"]) == ("batch/v1", "CronJob")
        job = document["spec"]["jobTemplate"]["spec"]
        assert job["backoffLimit"] == 0, "a pod that restarts immediately would encounter the lease of the crashed pod"
        (container,) = job["template"]["spec"]["containers"]
        named = {each["name"] for each in container["env"]}
        assert "SPARKLOG_ROOT" in named
        assert set(re.findall(r"\$\((\w+)\)", " ".join(container["command"]))) <= named
        ran.add(job_of(container["command"]))
    assert ran == {"compact", "retain"}


class Operator:
    """The part of Airflow's operators that the DAG uses."""

    made: ClassVar[list[Operator]] = []

    def __init__(self, task_id: str, bash_command: str) -> None:
        self.command = shlex.split(bash_command)
        self.before: list[Operator] = []
        self.made.append(self)

    def __rshift__(self, other: Operator) -> Operator:
        other.before.append(self)
        return other


def run_dag(monkeypatch: pytest.MonkeyPatch, file: str) -> dict[str, Any]:
    """Execute a DAG file with stubs for Airflow's classes, and return the options of the DAG."""
    monkeypatch.setattr(Operator, "made", [])
    given: dict[str, Any] = {}

    @contextmanager
    def dag(name: str, **options: Any) -> Iterator[None]:
        given.update(options)
        yield

    for name, module in {
        "airflow": SimpleNamespace(DAG=dag),
        "airflow.providers.standard.operators.bash": SimpleNamespace(BashOperator=Operator),
    }.items():
        monkeypatch.setitem(sys.modules, name, module)  # type: ignore[arg-type]
    exec(compile((CONF / file).read_text(), file, "exec"), {})
    return given


def test_airflow_dag_copies_topics_to_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    given = run_dag(monkeypatch, "airflow_tables_dag.py")
    assert [table_job(each.command).topic for each in Operator.made] == ["orders", "customers"]
    assert (given["catchup"], given["max_active_runs"]) == (False, 1)


def test_airflow_dag_runs_both_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    given = run_dag(monkeypatch, "airflow_dag.py")
    assert [job_of(each.command) for each in Operator.made] == ["compact", "retain"]
    assert Operator.made[1].before == Operator.made[:1]
    retry = given["default_args"]["retry_delay"]
    assert retry.total_seconds() * 1000 > LEASE_MS, "sooner it would find the lease of the run that died"


def test_spark_job_file_runs_all_jobs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job = runpy.run_path(str(CONF / "spark_job.py"))
    assert job["main"](["compact", "--root", str(tmp_path / "none")]) == 1
    assert "sparklog compact: " in capsys.readouterr().err
    for given in ([], ["compakt"]):
        assert job["main"](given) == 2
        assert "expected one of compact, retain, verify, stream, mirror" in capsys.readouterr().err
    assert set(job["JOBS"]) == {*HELP, "verify"}


def test_spark_job_file_names_an_older_sparklog(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delattr("sparklog.jobs.job_module")
    assert runpy.run_path(str(CONF / "spark_job.py"))["main"](["compact"]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "install the release of sparklog that printed this file" in said


@pytest.mark.parametrize("script", ["conf/spark_job.py", "jobs/to_delta.py"])
@pytest.mark.parametrize(("given", "option"), [((), "--storage-option"), (("--checkpoint", "c"), "--metadata")])
def test_submitted_to_delta_is_a_query_only_with_a_checkpoint(
    script: str,
    given: tuple[str, ...],
    option: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = [*(["to-delta"] if script.startswith("conf") else []), *given, "--help"]
    monkeypatch.setattr(sys, "argv", [script, *words])
    with pytest.raises(SystemExit) as done:
        runpy.run_path(str(REPOSITORY / script), run_name="__main__")
    assert done.value.code == 0
    assert option in capsys.readouterr().out


def test_commands_in_the_guide_are_valid() -> None:
    fences = re.findall(r"^```sh\n(.*?)^```$", GUIDES, re.MULTILINE | re.DOTALL)
    assert {check(line) for text in fences for line in commands(text)} == set(JOBS)


def test_guide_starts_jobs_with_the_spark_submit_file() -> None:
    fences = re.findall(r"^```sh\n(.*?)^```$", GUIDES, re.MULTILINE | re.DOTALL)
    lines = [line for text in fences for line in text.splitlines() if re.search(r"\bspark_job\.py [a-z]", line)]
    assert {job_of(shlex.split(line)) for line in lines} == {"compact", "retain", "verify"}


def test_all_job_options_are_in_the_guide(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in JOBS.values():
        with pytest.raises(SystemExit):
            arguments(["--help"])
        options = set(re.findall(r"--[a-z-]+", capsys.readouterr().out)) - {"--help"}
        assert options
        assert {option for option in options if option not in GUIDES} == set()


def test_documented_buffer_sizes_hold_the_documented_keys() -> None:
    rows = re.findall(r"^\| ([\d.]+) million \| ([\d,]+) ", GUIDES, re.MULTILINE)
    assert len(rows) == 4
    for millions, nbytes in rows:
        keys = int(slot_count(int(nbytes.replace(",", ""))) * Settings(0).dedupe_load_factor)
        assert float(millions) * 1e6 - 1 <= keys < float(millions) * 1.01e6
    assert Settings(0).dedupe_buffer_bytes == 134_217_728


def test_warning_threshold_matches_the_guide() -> None:
    assert f"If a topic has {DEFAULTS.many_unsealed:,} unsealed slices or more, writers log a warning" in GUIDES
