"""Backups on a disk that are killed with SIGKILL while four processes write and maintenance runs."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

import sparklog
from sparklog.compaction.run import CompactOptions
from sparklog.errors import Conflict
from sparklog.groups.lag import Groups
from sparklog.log.topic.root import Root, open_root
from sparklog.maintenance.work_items import InProcess, Settings
from sparklog.retention.retain import retain_root
from sparklog.storage import LocalStore
from sparklog.tools.backup.repository import Repository
from sparklog.tools.backup.restore_point import RestorePoint
from sparklog.tools.backup.restoring import restore
from sparklog.tools.verification.run import verify_root
from sparklog.transactions.producer import transactional
from tests.support.compaction import compact_topic
from tests.tools.backup.backup_world import end_what_is_open

pytestmark = pytest.mark.sweep

REPOSITORY = Path(__file__).parents[3]
TOPICS = ("a", "b")
TURNS = 200
"""The maximum number of appends of a writer, which bounds the records to compare if backups are slow."""


def writer(directory: Path, number: int, over: threading.Event, failed: list[BaseException]) -> None:
    """Append odd numbers, and write other values to both topics in a transaction; commit group offsets."""
    try:
        root = open_root(LocalStore(directory, durable=False))
        i = 0
        while not over.is_set() and i < TURNS:
            i += 1
            try:
                rows = pa.table({"value": [b"w%d-%d" % (number, i)] * 3})
                if number % 2:
                    root.topic(TOPICS[i % 2]).append(rows)
                else:
                    with transactional(root, f"id-{number}").begin() as writing:
                        for name in TOPICS:
                            writing.append(name, rows)
                        writing.send_offsets(f"group-{number}", {"a": {0: i}})
            except Conflict:
                # The writer is so slow that the vacuum, whose clock is hours ahead, has passed the upload.
                continue
            time.sleep(0.01)
    except BaseException as error:  # noqa: BLE001
        failed.append(error)


def keeper(directory: Path, over: threading.Event, failed: list[BaseException]) -> None:
    """Merge, seal and vacuum with a clock hours ahead, so that files are deleted while they are copied."""
    try:
        root = open_root(LocalStore(directory, durable=False))
        while not over.is_set():
            for name in TOPICS:
                compact_topic(
                    root.topic(name), Settings(now_ms=root.env.wall_ms()), InProcess(), CompactOptions(roll=True)
                )
            retain_root(root, Settings(now_ms=root.env.wall_ms() + 3 * 3_600_000))
            time.sleep(0.1)
    except BaseException as error:  # noqa: BLE001
        failed.append(error)


def values(root: Root, name: str) -> list[bytes]:
    return sorted(value for part in root.topic(name).scan(columns=("value",)) for value in part.column(0).to_pylist())


def backup_process(source: Path, directory: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "sparklog", "backup", "--root", str(source), "--to", str(directory)]
    return subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def marks(directory: Path) -> set[str]:
    """Return the marks of running and killed runs."""
    return {path.name for path in (directory / "_backups" / "running").glob("*")}


def check(restored: Path, source: Root) -> None:
    """Check that a root is sound, transactions are complete, groups match, and all records are in the source."""
    assert not verify_root(LocalStore(restored)).findings
    root = sparklog.open(restored)
    end_what_is_open(root)
    found = {name: values(root, name) for name in TOPICS}
    for number in (0, 2):
        moved = [[value for value in found[name] if value.startswith(b"w%d-" % number)] for name in TOPICS]
        assert moved[0] == moved[1]
        newest = max((int(value.split(b"-")[1]) for value in moved[0]), default=None)
        committed = Groups(root).group(f"group-{number}").committed()
        assert newest == (committed["a", 0].offset if committed else None)
    for name in TOPICS:
        assert set(found[name]) <= set(values(source, name))


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_killed_backup_is_repeated_with_four_concurrent_writers(tmp_path: Path, seed: int) -> None:
    chances = random.Random(seed)
    source, directory = tmp_path / "source", tmp_path / "place"
    root = sparklog.open(source, create=True)
    for name in TOPICS:
        root.create_topic(name, configs={"file.delete.delay.ms": 3_600_000})
        root.topic(name).append(pa.table({"value": [b"first"]}))
    over = threading.Event()
    failed: list[BaseException] = []
    bodies: list[tuple[Callable[..., None], tuple[object, ...]]] = [
        (writer, (source, n, over, failed)) for n in range(4)
    ]
    bodies.append((keeper, (source, over, failed)))
    threads = [threading.Thread(target=body, args=given) for body, given in bodies]
    for thread in threads:
        thread.start()
    try:
        for _ in range(4):
            before = marks(directory)
            process = backup_process(source, directory)
            # Imports take most of the life of a process on a slow machine, so wait until it starts to work.
            while process.poll() is None and marks(directory) <= before:
                time.sleep(0.002)
            time.sleep(chances.uniform(0, 1))
            process.kill()
            process.communicate()
        process = backup_process(source, directory)
        _, said = process.communicate(timeout=400)
        assert process.returncode == 0, said
    finally:
        over.set()
        for thread in threads:
            thread.join()
    assert not failed
    source_now = sparklog.open(source)
    for manifest in Repository.open(LocalStore(directory)).manifests():
        target = tmp_path / f"restored-{manifest.number}"
        restore(LocalStore(directory), LocalStore(target), RestorePoint(number=manifest.number))
        check(target, source_now)
    process = backup_process(source, directory)
    _, said = process.communicate(timeout=400)
    assert process.returncode == 0, said
    restore(LocalStore(directory), LocalStore(tmp_path / "last"))
    for name in TOPICS:
        assert values(sparklog.open(tmp_path / "last"), name) == values(source_now, name)
