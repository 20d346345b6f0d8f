"""Exactly-once writes if the driver is killed, possibly between the commits of the sink and of Spark, or if a worker is
killed.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

import sparklog
from sparklog.groups.lag import Groups
from sparklog.log.read.read_plan import read_parts
from sparklog.log.state.view import READ_COMMITTED, OffsetRange
from sparklog.log.topic.root import RootView
from sparklog.storage.locations import join
from tests.datasource import spark_session
from tests.datasource.killing import JVM_FILE, KILL_AT, TOPICS, DieInTaskSource
from tests.datasource.query_driver import BATCH_RECORDS, GROUP, start_copy
from tests.datasource.streams import copy, failure, feed, finish, forget_commit, source, values

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

COMMIT_THEN_DIE = "sparklog_commit_then_die"
START_SECONDS = 400
"""A driver starts in 5 s, or in a minute on a host that runs many other processes."""
LEAD = 6 * BATCH_RECORDS

pytestmark = pytest.mark.timeout(3600)


@dataclass(frozen=True)
class Place:
    """A root on a disk or in a bucket, and the prefix of the names of its local files."""

    root: str
    beside: str

    def file(self, suffix: str) -> Path:
        return Path(f"{self.beside}.{suffix}")


def on_disk(folder: Path) -> Place:
    return Place(str(folder / "log"), str(folder / "log"))


def in_bucket(folder: Path, bucket: str) -> Place:
    return Place(join(bucket, "log"), str(folder / "log"))


class Feeder(threading.Thread):
    """Appends to topic `in`, in chunks of random size, while queries start and stop.

    The feeder runs until it is stopped, and is always a few batches ahead of `read`, so that a query always has records
    to read, however fast the query is and however late the test kills it.
    """

    def __init__(self, root: str, seed: int) -> None:
        super().__init__(daemon=True)
        self._root = root
        self._random = random.Random(seed)
        self.records = self.read = 0
        self.over = threading.Event()
        self.failed: BaseException | None = None
        feed(root, "in", range(0), partitions=2)

    def run(self) -> None:
        try:
            topic = sparklog.open(self._root).topic("in")
            while not self.over.is_set():
                if self.records < self.read + LEAD:
                    end = self.records + self._random.randrange(1, 80)
                    piece = [str(value) for value in range(self.records, end)]
                    topic.append(pa.table({"key": piece, "value": piece}))
                    self.records = end
                self.over.wait(self._random.random() * 0.1)
        except BaseException as error:  # noqa: BLE001  (shown by the test's own thread)
            self.failed = error


@contextmanager
def driver(
    folder: Path, place: Place, sink: str = "sparklog", kill_at: int | None = None, topics: str = ""
) -> Iterator[subprocess.Popen[bytes]]:
    """Start a driver process. At the end, its remaining processes are killed."""
    # This is before the driver can have written the file.
    jvm = place.file("jvm")
    jvm.unlink(missing_ok=True)
    environment = {**os.environ, **spark_session.environment(), JVM_FILE: str(jvm), TOPICS: topics}
    if kill_at is not None:
        environment[KILL_AT] = str(kill_at)
    command = [sys.executable, "-m", "tests.datasource.query_driver", str(folder), place.root, place.beside, sink]
    with open(place.file("log"), "ab") as log:
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=log, start_new_session=True)
    try:
        yield process
    finally:
        kill(process)


def kill(process: subprocess.Popen[bytes]) -> None:
    """Send SIGKILL to the Python driver and its JVM."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def batches(place: Place) -> int:
    """Return the number of batches that are committed in Spark's checkpoint."""
    folder = place.file("checkpoint") / "commits"
    return len([name for name in os.listdir(folder) if name.isdigit()]) if folder.exists() else 0


def wait(process: subprocess.Popen[bytes], place: Place, condition: Callable[[], bool]) -> None:
    end = time.monotonic() + START_SECONDS
    while not condition():
        assert process.poll() is None, place.file("log").read_text()[-3000:]
        assert time.monotonic() < end, "the driver did not get that far in time"
        time.sleep(0.01)


def check_order(root: str) -> None:
    """Assert that each partition of `out` contains the records of one partition of `in`, in the same order."""
    last: dict[int, int] = {}
    for batch in sparklog.open(root).topic("out").scan(columns=["value", "partition"]):
        for row in batch.to_pylist():
            assert int(row["value"]) > last.get(row["partition"], -1)
            last[row["partition"]] = int(row["value"])


def check_group(root: str, written: int, *, done: bool = False) -> None:
    """Assert that the committed offsets of the query are at its written records, or one batch before."""
    group = Groups(root).group(GROUP)
    seen = sum(item.offset for item in group.committed().values())
    assert (seen == written) if done else (written - BATCH_RECORDS - 2 <= seen <= written), (seen, written)


def finish_copy(spark: SparkSession, place: Place, topics: str) -> None:
    """Resume the query in a session that is not killed, until all records are read."""
    query = start_copy(spark, place.root, place.beside, topics=topics)
    query.processAllAvailable()
    time.sleep(0.2)
    query.stop()


def run_with_kills(
    sessions: tuple[SparkSession, Path], place: Place, kills: Sequence[int], seed: int, topics: str = ""
) -> None:
    """Run with the numbered `kills`. Every third kill is between the commits of the sink and of Spark, and the others
    are at random times.
    """
    root = place.root
    spark, folder = sessions
    rng = random.Random(seed)
    feeder = Feeder(root, seed)
    feeder.start()
    for number in kills:
        done = batches(place)
        feeder.read = len(check_topics_agree(root, topics or "out"))
        if number % 3 == 1:
            with driver(folder, place, COMMIT_THEN_DIE, kill_at=done + 1, topics=topics) as process:
                process_end(process, place)
            assert batches(place) == done + 1, "Spark must not have seen the sink's last commit"
            check_group(root, len(check_topics_agree(root, topics or "out")))
            continue
        with driver(folder, place, topics=topics) as process:
            wait(process, place, lambda done=done: batches(place) > done)  # type: ignore[misc]
            time.sleep(rng.random() * 1.2)
            kill(process)
        check_group(root, len(check_topics_agree(root, topics or "out")))
    feeder.over.set()
    feeder.join()
    assert feeder.failed is None
    records = feeder.records
    finish_copy(spark, place, topics)
    check_group(root, records, done=True)
    assert Groups(root).group(GROUP).description().generation == len(kills) + 1
    if topics:
        assert check_topics_agree(root, topics) == list(range(records))
        return
    assert values(root, "out") == list(range(records))
    check_order(root)


def check_topics_agree(root: str, topics: str) -> list[int]:
    """Assert that one read of all topics returns the same records from each topic, also during or after a kill."""
    names = [name for name in topics.split(",") if name and name in sparklog.open(root).topics()]
    view = RootView(sparklog.open(root))
    view.refresh(names)
    found = {}
    for name in names:
        ranges = [OffsetRange(name, p, own.log_start, own.last_stable) for p, own in view.bounds(name).items()]
        batches = read_parts(view.plan(ranges, READ_COMMITTED), ("value",))
        found[name] = sorted(int(value) for batch in batches for value in batch["value"].to_pylist())
    assert len({tuple(read) for read in found.values()}) <= 1, {name: len(read) for name, read in found.items()}
    return next(iter(found.values()), [])


def process_end(process: subprocess.Popen[bytes], place: Place) -> None:
    """Wait until the driver's JVM was killed from inside. The Python driver detects this and ends, or is killed."""
    jvm = place.file("jvm")
    # The driver creates the file and then writes it.
    wait(process, place, lambda: jvm.exists() and jvm.read_text() != "")
    pid = int(jvm.read_text())
    end = time.monotonic() + START_SECONDS
    while not is_dead(pid):
        assert time.monotonic() < end, "the driver was not killed in time"
        time.sleep(0.02)


def is_dead(pid: int) -> bool:
    """Return whether a process has ended, even if its parent has not waited for it."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True


@pytest.fixture
def sessions(spark: SparkSession, spark_folder: Path) -> tuple[SparkSession, Path]:
    """Start a session that is not killed, and return the directory for files of the killed drivers."""
    return spark, spark_folder


@pytest.mark.slow
def test_driver_killed_at_random_times(sessions: tuple[SparkSession, Path], tmp_path: Path) -> None:
    run_with_kills(sessions, on_disk(tmp_path), range(1), seed=1)


@pytest.mark.slow
def test_driver_killed_twenty_times(sessions: tuple[SparkSession, Path], tmp_path: Path) -> None:
    run_with_kills(sessions, on_disk(tmp_path), range(20), seed=2)


@pytest.mark.slow
def test_three_topics_agree_whenever_the_driver_is_killed(sessions: tuple[SparkSession, Path], tmp_path: Path) -> None:
    run_with_kills(sessions, on_disk(tmp_path), range(2), seed=3, topics="t0,t1,t2")


@pytest.mark.slow
def test_three_topics_agree_after_twenty_kills(sessions: tuple[SparkSession, Path], tmp_path: Path) -> None:
    run_with_kills(sessions, on_disk(tmp_path), range(20), seed=4, topics="t0,t1,t2")


@pytest.mark.slow
def test_driver_killed_before_spark_has_committed_to_a_bucket(
    sessions: tuple[SparkSession, Path], tmp_path: Path, bucket: str
) -> None:
    run_with_kills(sessions, in_bucket(tmp_path, bucket), range(1, 2), seed=5)


@pytest.mark.slow
def test_driver_killed_six_times_with_a_bucket(
    sessions: tuple[SparkSession, Path], tmp_path: Path, bucket: str
) -> None:
    run_with_kills(sessions, in_bucket(tmp_path, bucket), range(6), seed=6)


@pytest.mark.slow
def test_three_topics_in_a_bucket_agree_after_six_kills(
    sessions: tuple[SparkSession, Path], tmp_path: Path, bucket: str
) -> None:
    run_with_kills(sessions, in_bucket(tmp_path, bucket), range(6), seed=7, topics="t0,t1,t2")


def test_a_worker_killed_in_mid_task(spark: SparkSession, tmp_path: Path) -> None:
    root = str(tmp_path / "log")
    spark.dataSource.register(DieInTaskSource)
    feed(root, "in", range(100))

    def query(sink: str) -> object:
        stream = source(spark, f"{root}/in", maxOffsetsPerTrigger=30)
        return copy(stream, root, tmp_path / "c").format(sink)

    assert "crashed" in failure(query("sparklog_die_in_task"))
    assert Path(f"{root}.died").exists()
    uploaded = sparklog.open(root).topic("out").log.snapshot().state.log_end.sum()
    assert uploaded < 100
    finish(query("sparklog_die_in_task"))
    assert values(root, "out") == list(range(100))


@pytest.mark.slow
def test_two_runs_of_one_query_the_older_one_is_stopped(
    spark: SparkSession, spark_folder: Path, tmp_path: Path
) -> None:
    """The other run is a separate driver, because one Spark session stops a query that is started again."""
    place = on_disk(tmp_path)
    root = place.root
    feed(root, "in", range(10))
    with driver(spark_folder, place) as process:
        wait(process, place, lambda: batches(place) == 1)
        # Omit Spark's temporary files, which are deleted concurrently, and checksums, which are optional.
        shutil.copytree(place.file("checkpoint"), tmp_path / "copied", ignore=shutil.ignore_patterns(".*"))
        forget_commit(tmp_path / "copied", 0)
        finish(copy(source(spark, f"{root}/in"), root, tmp_path / "copied"))
        feed(root, "in", range(10, 20))
        end = time.monotonic() + START_SECONDS
        while process.poll() is None and time.monotonic() < end:
            time.sleep(0.05)
        assert process.returncode not in (None, 0)
    assert "[SPARKLOG_FENCED]: run " in place.file("log").read_text()
    assert values(root, "out") == list(range(10))
    finish(copy(source(spark, f"{root}/in"), root, tmp_path / "copied"))
    assert values(root, "out") == list(range(20))
