"""After a power loss, an entry of a log must not refer to an entry of another log that was lost.

A writer is stopped between the link and the fsync of the directory. Its object can be read, but is not durable. A
process that writes an entry based on this object must make the object durable first.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import sparklog
from sparklog.groups.lag import Groups
from sparklog.log.topic.root import Root
from sparklog.storage import LocalStore
from sparklog.transactions.completion import prune_recorded, resolve_topic
from sparklog.transactions.producer import transactional
from tests.storage.test_power_loss import Disk
from tests.support.records import rows

pytestmark = pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="needs /proc to follow descriptors")


class Power:
    """A root on a disk that may lose power."""

    def __init__(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.disk = Disk(monkeypatch, tmp_path)
        self.path = tmp_path / "root"
        self._monkeypatch = monkeypatch
        root = sparklog.open(self.path, create=True)
        for name in ("a", "b"):
            root.create_topic(name)

    def root(self) -> Root:
        return sparklog.open(self.path)

    @contextmanager
    def slow(self, folder: str) -> Iterator[None]:
        """Make the sync of directories wait: the name of a new object exists, but is not durable."""
        real = LocalStore._sync_name

        def settle(store: LocalStore, path: str, key: str) -> None:
            if not key.startswith(folder):
                real(store, path, key)

        with self._monkeypatch.context() as patch:
            patch.setattr(LocalStore, "_sync_name", settle)
            yield

    def kept(self, folder: str) -> list[int]:
        """Return the numbers that would survive a power loss."""
        names = sorted(path for path in (self.path / folder / "_log").iterdir() if path.suffix == ".json")
        return [int(path.stem) for path in names if self.disk.after_power_loss(path) is not None]


@pytest.fixture
def power(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Power:
    return Power(tmp_path, monkeypatch)


def test_records_are_durable_before_offsets_are_committed(power: Power) -> None:
    with power.slow("a/_log"):
        power.root().topic("a").append(rows("x"))
    assert power.kept("a") == [0]
    consumer = sparklog.consumer(
        power.root(), "g", topics=["a"], auto_offset_reset="earliest", enable_auto_commit=False
    )
    assert [batch.num_rows for batch in consumer.poll()] == [1]
    consumer.commit()
    assert consumer.committed()["a", 0].offset == 1
    assert power.kept("a") == [0, 1]


def test_records_are_durable_before_a_copy_is_written(power: Power) -> None:
    with power.slow("a/_log"):
        power.root().topic("a").append(rows("x"))
    assert power.kept("a") == [0]
    assert sparklog.repartition(power.root(), "a", "copy", partitions=2).records == 1
    assert power.kept("a") == [0, 1]


def test_decisions_are_durable_before_a_copy_is_written(power: Power) -> None:
    transaction = transactional(power.root(), "job").begin()
    transaction.append("a", rows("x"))
    before = power.kept("_transactions/job")
    with power.slow("_transactions/job"):
        transaction.commit()
    assert power.kept("_transactions/job") == before
    assert sparklog.repartition(power.root(), "a", "copy", partitions=2).records == 1
    assert power.kept("_transactions/job") == [*before, len(before)]


def test_decisions_are_durable_before_topics_record_outcomes(power: Power) -> None:
    transaction = transactional(power.root(), "job").begin()
    transaction.append("a", rows("x"))
    transaction.append("b", rows("y"))
    before = power.kept("_transactions/job")
    with power.slow("_transactions/job"):
        transaction.commit()
    assert power.kept("_transactions/job") == before
    assert resolve_topic(power.root().topic("a"))
    assert power.kept("_transactions/job") == [*before, len(before)]


def test_decisions_are_durable_before_groups_record_outcomes(power: Power) -> None:
    transaction = transactional(power.root(), "job").begin()
    transaction.send_offsets("g", {"a": {0: 0}})
    before = power.kept("_transactions/job")
    with power.slow("_transactions/job"):
        transaction.commit()
    Groups(power.root()).group("g").resolve_pending()
    assert power.kept("_transactions/job") == [*before, len(before)]


def test_a_decision_is_not_pruned_before_its_records_are_durable(power: Power) -> None:
    producer = transactional(power.root(), "job")
    transaction = producer.begin()
    transaction.append("a", rows("x"))
    transaction.commit()
    producer.begin().abort()
    with power.slow("a/_log"):
        resolve_topic(power.root().topic("a"))
    newest = max(power.kept("a"))
    root = power.root()
    assert prune_recorded(root, root.engine.decisions.log("job")) == 1
    assert power.kept("a") == [*range(newest + 2)]


def test_durable_entries_are_not_synced_again(power: Power, monkeypatch: pytest.MonkeyPatch) -> None:
    power.root().topic("a").append(rows("x"))
    member = Groups(power.root()).group("g").join("one")
    settled: list[str] = []
    monkeypatch.setattr(LocalStore, "settle", lambda store, key: settled.append(key))
    for _ in range(3):
        member.commit({"a": {0: 1}})
    assert len(settled) == 1
