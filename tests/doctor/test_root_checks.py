"""Checks of the location and the state of a root, and all checks of doctor together."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

import sparklog as library
from sparklog.doctor import FAIL, OK, WARN, Check, checks, examine
from sparklog.doctor.checks import check_disk, check_root
from sparklog.doctor.examine import check_store, examine_root, failed
from sparklog.limits import Limits
from sparklog.log.topic.root import Root
from sparklog.log.topic.topic import Topic
from sparklog.storage import LocalStore
from sparklog.transactions.producer import transactional
from tests.doctor.machines import EMPTY, GIB, HEALTHY, machine
from tests.support.command_line import invoke
from tests.support.read_only import read_only
from tests.support.topics_world import TopicsWorld

KAFKA = Path(__file__).parents[2] / "examples" / "data" / "kafka-log-dir"
ROWS = pa.table({"value": [b"1"]})


class Careless(LocalStore):
    """A store that creates objects without a condition and reports success to all writers."""

    def create(self, key: str, data: bytes) -> bool:
        super().create(key, data)
        return True


class Elsewhere(LocalStore):
    """A store whose clock differs from the clock of the process."""

    behind_ms = 0

    def now_ms(self) -> int:
        return super().now_ms() - self.behind_ms


@pytest.fixture
def log(tmp_path: Path) -> Root:
    opened = library.open(tmp_path / "root", create=True)
    opened.create_topic("t")
    return opened


def by_check(found: list[Check]) -> dict[str, Check]:
    return {finding.check: finding for finding in found}


def test_store_that_meets_its_guarantees(tmp_path: Path) -> None:
    (tmp_path / "place").mkdir()
    found = by_check(check_store(LocalStore(tmp_path / "place")))
    assert {name: finding.status for name, finding in found.items()} == {"store": OK, "clock": OK}
    assert list((tmp_path / "place").iterdir()) == []


def test_store_that_violates_its_guarantees(tmp_path: Path) -> None:
    (finding,) = check_store(Careless(tmp_path))
    assert finding.status == FAIL
    assert "8 of 8 threads that created the same object concurrently succeeded" in finding.found
    assert finding.fix


@pytest.mark.parametrize(("behind_ms", "status"), [(0, OK), (60_000, WARN), (-60_000, WARN), (400_000, FAIL)])
def test_clock_differences_are_reported(tmp_path: Path, behind_ms: int, status: str) -> None:
    store = Elsewhere(tmp_path)
    store.behind_ms = behind_ms
    assert by_check(check_store(store))["clock"].status == status


@pytest.mark.parametrize(
    ("mount", "status", "says"),
    [
        ("/ (ext4)", OK, "/ (ext4)"),
        ("/data", OK, "/data"),
        ("/mnt (nfs4)", WARN, "network file system"),
        ("/mnt (fuse.sshfs)", WARN, "network file system"),
        ("/dev/shm (tmpfs)", WARN, "is in memory"),
    ],
)
def test_file_system_check_depends_on_its_type(
    monkeypatch: pytest.MonkeyPatch, mount: str, status: str, says: str
) -> None:
    monkeypatch.setattr(checks, "mount_of", lambda path: mount)
    finding = check_disk(HEALTHY, "/x")[0]
    assert finding.status == status
    assert says in finding.found


@pytest.mark.parametrize(
    ("free", "status"),
    [((50 * GIB, 100 * GIB), OK), ((4 * GIB, 100 * GIB), WARN), ((GIB // 2, GIB), WARN), ((9, 9), FAIL)],
)
def test_low_disk_space_is_a_warning_and_no_space_a_failure(free: tuple[int, int], status: str) -> None:
    assert check_disk(machine({}, free=free), "/")[1].status == status


def test_valid_root_has_one_ok_check(log: Root) -> None:
    log.topic("t").append(ROWS)
    assert check_root(log) == [Check("topics", OK, f"1 in {log.location}, and all of them can be opened")]


def _many_unsealed(log: Root, topic: Topic, patch: pytest.MonkeyPatch) -> tuple[str, str, str]:
    log.store.limits = Limits(many_unsealed=2)
    return "maintenance", "topic t has 3 unsealed slices, which slows down reads", "sparklog compact"


def _never_compacted(log: Root, topic: Topic, patch: pytest.MonkeyPatch) -> tuple[str, str, str]:
    log.store.limits = Limits(never_compacted_slices=3)
    return "maintenance", "have never been merged or sealed", "sparklog compact"


def _no_checkpoint(log: Root, topic: Topic, patch: pytest.MonkeyPatch) -> tuple[str, str, str]:
    for _ in range(4):
        topic.append(ROWS)
    log.store.limits = Limits(checkpoint_commits=1)
    message = "topic t has 8 commits since its latest checkpoint, expected a checkpoint every 1 commits"
    return "checkpoints", message, "_log/checkpoints"


def _overdue(log: Root, topic: Topic, patch: pytest.MonkeyPatch) -> tuple[str, str, str]:
    transaction = transactional(log, "a job").begin()
    transaction.append("t", ROWS)
    transaction._prepare_topics()
    assert by_check(check_root(log)).keys() == {"topics"}
    now_ms = LocalStore.now_ms
    patch.setattr(LocalStore, "now_ms", lambda self: now_ms(self) + 3_600_000)
    return (
        "transactions",
        "transaction a job has timed out and holds back readers of topic t",
        "sparklog transactions abort 'a job' --root ",
    )


@pytest.mark.parametrize("trouble", [_many_unsealed, _never_compacted, _no_checkpoint, _overdue])
def test_root_problems_are_reported(
    log: Root,
    monkeypatch: pytest.MonkeyPatch,
    trouble: Callable[[Root, Topic, pytest.MonkeyPatch], tuple[str, str, str]],
) -> None:
    topic = log.topic("t")
    for _ in range(3):
        topic.append(ROWS)
    check, says, fix = trouble(log, topic, monkeypatch)
    found = by_check(check_root(log))
    assert found.keys() == {"topics", check}
    assert found[check].status == WARN
    assert says in found[check].found
    assert fix in found[check].fix
    assert not failed(list(found.values()))


def test_merging_clears_the_maintenance_warning(log: Root) -> None:
    from sparklog.maintenance.work_items import InProcess, Settings
    from tests.support.compaction import compact_topic

    log.store.limits = Limits(never_compacted_slices=1)
    topic = log.topic("t")
    for _ in range(3):
        topic.append(ROWS)
    assert "maintenance" in by_check(check_root(log))
    compact_topic(topic, Settings(log.store.now_ms()), InProcess())
    assert "maintenance" not in by_check(check_root(log))


def test_open_kafka_transactions_are_reported(tmp_path: Path) -> None:
    from sparklog.kafka.importing.run import import_log_dir

    log = library.open(tmp_path / "root", create=True)
    import_log_dir(log, KAFKA)
    found = by_check(check_root(log))["transactions"]
    assert found.status == WARN
    assert "transaction tx-open, which is open in Kafka, holds back readers of imported topic txn-a" in found.found
    (command,) = found.fix.split("; ")
    subprocess.run([sys.executable, "-m", *shlex.split(command)], check=True)
    assert "transactions" not in by_check(check_root(log))


def test_topic_that_cannot_be_opened_fails(log: Root) -> None:
    log.create_topic("u")
    (Path(log.location) / "t" / "_log" / f"{0:020}.json").write_bytes(b"{}")
    found = check_root(library.open(log.location))
    assert [(finding.check, finding.status) for finding in found] == [("topics", FAIL)]
    assert found[0].found.startswith("t: ")
    assert "sparklog verify" in found[0].fix


def test_locations_that_are_not_roots(tmp_path: Path) -> None:
    (kafka,) = examine_root(str(KAFKA))
    assert (kafka.status, "read in place" in kafka.found) == (OK, True)
    (missing,) = examine_root(str(tmp_path / "none"))
    assert (missing.status, missing.fix) == (FAIL, f"mkdir -p {tmp_path / 'none'}")
    assert not (tmp_path / "none").exists()
    empty = by_check(examine_root(str(tmp_path)))
    assert (empty["store"].status, empty["root"].status) == (OK, WARN)
    assert list(tmp_path.iterdir()) == []
    for location in (KAFKA, tmp_path):
        assert by_check(examine_root(str(location), max_age_ms=1))["root"].status == FAIL, "the jobs are unknown"
    (tmp_path / "file").write_text("")
    assert by_check(examine_root(str(tmp_path / "file")))["root"].status == FAIL


def test_directory_with_other_files_is_not_suitable_for_a_root(tmp_path: Path) -> None:
    (tmp_path / "report.csv").write_text("")
    (foreign,) = examine_root(str(tmp_path))
    assert (foreign.check, foreign.status) == ("root", FAIL)
    assert "nor empty, found report.csv" in foreign.found
    assert [path.name for path in tmp_path.iterdir()] == ["report.csv"]


def test_examine_runs_all_checks(log: Root, tmp_path: Path) -> None:
    conf = Path(__file__).parents[2] / "conf" / "spark-defaults.conf"
    found = examine(str(log.location), conf_file=str(conf), machine=HEALTHY)
    checks = [finding.check for finding in found]
    assert checks[:2] == ["python", "packages"]
    assert checks[-7:] == ["file system", "space", "store", "clock", "compact", "retain", "topics"]
    assert not failed(found)
    assert failed(examine(machine=EMPTY))
    assert all(finding.fix for finding in examine(machine=EMPTY) if finding.status != OK)


def run(*arguments: str, **environ: str) -> tuple[int, str]:
    result = invoke(["doctor", *arguments], {"PYSPARK_PYTHON": sys.executable, **environ})
    return result.exit_code, result.stdout


@pytest.mark.java
def test_command_prints_checks_and_fails_if_one_fails(log: Root, tmp_path: Path) -> None:
    code, out = run("--json", "--root", log.location)
    found = json.loads(out)
    assert {item["status"] for item in found} <= {OK, WARN, FAIL}
    assert code == int(any(item["status"] == FAIL for item in found))
    assert found[-1] == {
        "check": "topics",
        "status": OK,
        "found": f"1 in {log.location}, and all of them can be opened",
        "fix": "",
    }
    code, out = run("--root", str(tmp_path / "none"))
    assert code == 1
    assert out.splitlines()[-1].strip() == f"fix: mkdir -p {tmp_path / 'none'}"
    assert run(SPARKLOG_ROOT=log.location)[1].splitlines()[-1].startswith("ok    topics")
    assert "sparklog doctor" in run("--help")[1].split("Example:")[1]


def test_doctor_runs_without_pyspark_and_java(tmp_path: Path) -> None:
    """Without pyspark and Java, doctor prints warnings and no failures."""
    program = (
        "import sys; sys.modules['pyspark'] = None\n"
        "from importlib import util\n"
        "find = util.find_spec\n"
        "util.find_spec = lambda name, *more: None if name == 'pyspark' else find(name, *more)\n"
        "from sparklog.cli import main; main()"
    )
    command = [sys.executable, "-c", program, "doctor", "--json"]
    environ = {"PATH": str(tmp_path), "PYTHONPATH": str(KAFKA.parents[2])}
    done = subprocess.run(command, capture_output=True, text=True, env=environ, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    found = {item["check"]: item["status"] for item in json.loads(done.stdout)}
    assert (found["java"], found["workers' python"]) == (WARN, WARN)


def test_open_transactions_are_checked_on_a_read_only_mount() -> None:
    world = TopicsWorld()
    world.prepare(world.producer("late", timeout_ms=1_000), a=["1"])
    world.now_ms += 2_000
    found = check_root(world.root(read_only(world.store)))
    assert [(item.check, item.status) for item in found] == [("topics", OK), ("transactions", WARN)]
