"""Real processes with a real directory: they commit concurrently, and some of them are killed."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pyarrow as pa
import pytest

from sparklog.log.state.invariants import check_state
from sparklog.log.topic.root import open_root
from sparklog.storage.folder_store import TEMPORARY_PREFIX

pytestmark = pytest.mark.sweep

APPENDER = """
import sys
import threading
import pyarrow as pa
from sparklog.log.topic.root import open_root
topic = open_root(sys.argv[1]).topic("t")
for number in range(int(sys.argv[3])):
    value = f"{sys.argv[2]}/{number}".encode()
    topic.append(pa.table({"value": [value], "partition": pa.array([number % 2], pa.int32())}))
"""

STREAM = """
import os, sys, uuid
import pyarrow as pa
from sparklog.log.topic.root import open_root
from sparklog.log.topic.topic import WriterKey
root, checkpoint, end, run = sys.argv[1], sys.argv[2], sys.argv[3], uuid.uuid4().hex
topic = open_root(root).topic("t")
while not os.path.exists(end):
    batch = len(os.listdir(checkpoint))
    values = [f"{batch}/{row}".encode() for row in range(batch % 4 + 1)]
    table = pa.table({"value": values, "partition": pa.array([row % 2 for row in range(len(values))], pa.int32())})
    topic.append(table, writer=WriterKey("query", batch, run))
    open(os.path.join(checkpoint, str(batch)), "w").close()
"""


def start(program: str, *arguments: object) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", program, *map(str, arguments)], stderr=subprocess.PIPE)


def values_of(root: Path) -> dict[int, list[str]]:
    """Return the values of each partition in offset order, after checking the entire state."""
    topic = open_root(root).topic("t")
    snapshot = topic.log.snapshot()
    check_state(snapshot.state, snapshot.slices)
    table = topic.scan(columns=("partition", "offset", "value")).to_table()
    found: dict[int, list[tuple[int, str]]] = {}
    for partition, offset, value in zip(*(table[name].to_pylist() for name in table.column_names), strict=True):
        found.setdefault(partition, []).append((offset, value.decode()))
    for partition, records in found.items():
        assert [offset for offset, _ in records] == list(range(int(snapshot.state.log_end[partition])))
    return {partition: [value for _, value in records] for partition, records in found.items()}


def race(root: Path, writers: int, appends: int) -> None:
    open_root(root, create=True).create_topic("t", partitions=2)
    processes = [start(APPENDER, root, f"writer-{number}", appends) for number in range(writers)]
    for process in processes:
        _, errors = process.communicate()
        assert process.returncode == 0, errors.decode()
    values = values_of(root)
    everything = [value for partition in values.values() for value in partition]
    assert sorted(everything) == sorted(f"writer-{w}/{n}" for w in range(writers) for n in range(appends))
    for partition, records in values.items():
        for number in range(writers):
            own = [int(value.split("/")[1]) for value in records if value.startswith(f"writer-{number}/")]
            assert own == list(range(partition, appends, 2)), "a writer's appends lie in its order"
    assert open_root(root).topic("t").log.state().version == writers * appends


def test_concurrent_processes_commit_without_loss(tmp_path: Path) -> None:
    race(tmp_path / "root", 3, 10)


@pytest.mark.slow
def test_many_concurrent_processes_commit_without_loss(tmp_path: Path) -> None:
    race(tmp_path / "root", 16, 200)


def kill_and_restart(folder: Path, seed: int, kills: int) -> None:
    """A stream continues until it is stopped, so that each kill interrupts its work, however slow the processes are."""
    source = random.Random(seed)
    root, checkpoint, end = folder / "root", folder / "checkpoint", folder / "end"
    checkpoint.mkdir(parents=True)
    open_root(root, create=True).create_topic("t", partitions=2)
    for life in range(kills + 1):
        process = start(STREAM, root, checkpoint, end)
        before = len(list(checkpoint.iterdir()))
        # Most of the time of a process is spent on imports, so wait until it has started to work, plus a moment.
        while process.poll() is None and len(list(checkpoint.iterdir())) == before:
            time.sleep(0.002)
        time.sleep(source.random() * 0.05)
        if life < kills:
            process.send_signal(signal.SIGKILL)
        else:
            end.touch()
        _, errors = process.communicate()
        assert process.returncode == (-signal.SIGKILL if life < kills else 0), errors.decode()
    batches = len(list(checkpoint.iterdir()))
    values = values_of(root)
    expected = [(batch, row) for batch in range(batches) for row in range(batch % 4 + 1)]
    for partition in (0, 1):
        assert values[partition] == [f"{batch}/{row}" for batch, row in expected if row % 2 == partition]


def test_a_killed_stream_writes_every_batch_once(tmp_path: Path) -> None:
    kill_and_restart(tmp_path, 1, kills=2)


@pytest.mark.slow
def test_a_stream_killed_many_times_writes_every_batch_once(tmp_path: Path) -> None:
    for seed in range(10):
        kill_and_restart(tmp_path / str(seed), seed, kills=8)
    leftovers = list(tmp_path.rglob(f"{TEMPORARY_PREFIX}*"))
    assert all(path.is_file() for path in leftovers)


def test_threads_share_one_handle(tmp_path: Path) -> None:
    """One root and topic in one process, which many threads use concurrently, with checkpoints in between."""
    root = open_root(tmp_path / "root", create=True)
    topic = root.create_topic("t", partitions=2)
    failures: list[BaseException] = []

    def work(number: int) -> None:
        try:
            for row in range(25):
                if number == 0:
                    snapshot = topic.log.snapshot()
                    check_state(snapshot.state, snapshot.slices)
                else:
                    partition = pa.array([row % 2], pa.int32())
                    topic.append(pa.table({"value": [f"thread-{number}/{row}".encode()], "partition": partition}))
        except BaseException as error:
            failures.append(error)
            raise

    threads = [threading.Thread(target=work, args=(number,)) for number in range(7)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    everything = [value for partition in values_of(tmp_path / "root").values() for value in partition]
    assert sorted(everything) == sorted(f"thread-{n}/{row}" for n in range(1, 7) for row in range(25))
    assert 25 <= topic.log.state().version <= 6 * 25, "threads share commits"
