"""A root that release 0.1.0 made (`make_root_0_1_0`): it is read as that release read it, written to and maintained."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import sparklog
from sparklog.compaction.run import CompactOptions, compact_root
from sparklog.groups.lag import Groups
from sparklog.kafka.importing.run import import_log_dir
from sparklog.log.journal.clocks import Env
from sparklog.log.state.writer_runs import WriterKey
from sparklog.log.topic.root import Root, open_root
from sparklog.maintenance.work_items import InProcess, Settings
from sparklog.retention.retain import retain_root
from sparklog.storage import LocalStore
from sparklog.storage.memory import MemoryStore
from sparklog.storage.store import Store
from sparklog.tools.backup.backing_up import back_up
from sparklog.tools.backup.restore_point import RestorePoint
from sparklog.tools.backup.restoring import restore
from sparklog.tools.verification.run import verify_root
from sparklog.transactions.producer import transactional
from tests.fixture_archive import unpacked
from tests.fixture_data import copied
from tests.golden.facts import facts

ARCHIVE = Path(__file__).with_name("root_0_1_0.tar.xz")
HOUR_MS, DAY_MS = 3_600_000, 86_400_000


@pytest.fixture(scope="module")
def tree() -> Path:
    return unpacked(ARCHIVE)


@pytest.fixture(scope="module")
def expected(tree: Path) -> dict[str, Any]:
    return json.loads((tree / "expected.json").read_text())


class Machine:
    """The golden root in memory, and a clock that goes on where that of the release ended."""

    def __init__(self, tree: Path, now_ms: int) -> None:
        self.now_ms = now_ms
        self.env = Env(lambda: self.now_ms, lambda: self.now_ms, self.sleep, random.Random(5))
        self.store = self.filled(tree / "root")
        self.root = open_root(self.store, env=self.env)

    def sleep(self, seconds: float) -> None:
        self.now_ms += 1 + int(seconds * 1000)

    def empty(self) -> MemoryStore:
        return MemoryStore(lambda: self.now_ms)

    def filled(self, folder: Path) -> MemoryStore:
        files = [path for path in folder.rglob("*") if path.is_file()]
        store = self.empty()
        store.restore({path.relative_to(folder).as_posix(): (path.read_bytes(), self.now_ms) for path in files})
        return store

    def settings(self) -> Settings:
        return Settings(now_ms=self.now_ms)

    def facts(self, store: Store | None = None) -> dict[str, Any]:
        """What one more process reads."""
        return facts_of(open_root(self.store if store is None else store, env=self.env))

    def assert_sound(self, store: Store | None = None) -> None:
        report = verify_root(self.store if store is None else store, env=self.env)
        assert report.sound, report.findings
        assert report.counts.records > 100


@pytest.fixture
def machine(tree: Path, expected: dict[str, Any]) -> Machine:
    return Machine(tree, expected["endMs"])


def facts_of(root: Root) -> dict[str, Any]:
    # As JSON: what is compared has been JSON, too.
    return json.loads(json.dumps(facts(root, Groups(root))))


def committed(found: dict[str, Any]) -> dict[str, Any]:
    """Topic -> its records, as those see them who wait for transactions."""
    return {name: topic["read_committed"] for name, topic in found["topics"].items()}


def values_by_key(records: list[list[Any]]) -> dict[str, str]:
    """The latest value of each key that was not deleted."""
    latest = {record[4]: record[5] for record in records}
    return {key: value for key, value in latest.items() if value is not None}


def rows(n: int) -> pa.Table:
    return pa.table({"key": [f"new-{at}".encode() for at in range(n)], "value": [b"new"] * n})


def test_everything_is_read_as_the_release_read_it(tree: Path, tmp_path: Path, expected: dict[str, Any]) -> None:
    """On a disk, with the clock of today."""
    found = facts_of(sparklog.open(copied(tree / "root", tmp_path / "root")))
    assert found["groups"] == expected["groups"]
    assert found["topics"].keys() == expected["topics"].keys()
    for name, topic in expected["topics"].items():
        assert found["topics"][name] == topic, name


def test_the_fixture_has_what_it_is_for(expected: dict[str, Any]) -> None:
    topics = expected["topics"]
    assert topics["payments"]["bounds"][0][2] < topics["payments"]["bounds"][0][1], "a transaction is open"
    assert len(topics["orders"]["read_committed"]) < len(topics["orders"]["read_uncommitted"]), "one was aborted"
    assert [bounds[0] for bounds in topics["orders"]["bounds"]] == [3, 11], "records were deleted"
    assert topics["short"]["bounds"][0][0] > 0, "records expired"
    assert len(topics["state"]["read_committed"]) < topics["state"]["bounds"][0][1], "records were compacted away"
    assert {"orders-clone", "events-then", "txn-a", "txn-b", "empty"} <= topics.keys()
    assert expected["groups"]["readers"]


def test_it_is_verified_without_an_error(tree: Path, tmp_path: Path) -> None:
    store = LocalStore(str(copied(tree / "root", tmp_path / "root")))
    report = verify_root(store)
    assert report.sound, report.findings
    assert report.counts.topics > 10


def test_it_is_written_to(machine: Machine, expected: dict[str, Any], fixtures: Path) -> None:
    root = machine.root
    assert import_log_dir(root, fixtures / "transactions" / "data", dry_run=True).topics
    before = committed(expected)
    machine.now_ms += 3 * HOUR_MS
    for name in root.topics():
        root.topic(name).append(rows(3))
    with transactional(root, "billing").begin() as transaction:
        transaction.append("orders", rows(2))
        transaction.send_offsets("billing", {"events": {0: 4}})
    Groups(root).group("readers").alter({"events": {0: 2}})
    after = machine.facts()
    for name, records in committed(after).items():
        assert records != before[name]
        assert [record for record in records if record in before[name]] == before[name], name
    values = [record[5] for record in after["topics"]["orders"]["read_committed"]]
    assert len(values) == len(before["orders"]) + 5
    offsets = {name: {tuple(item[:2]): item[2] for item in items} for name, items in after["groups"].items()}
    assert offsets["billing"]["events", 0] == 4
    assert offsets["readers"]["events", 0] == 2
    assert "late" not in offsets or not offsets["late"], "its transaction has run out"
    machine.assert_sound()


def test_batches_that_the_release_took_are_known(machine: Machine) -> None:
    events = machine.root.topic("events")
    assert events.append(rows(3), writer=WriterKey("job", 7, mode="txn")).skipped
    with pytest.raises(sparklog.Fenced):
        events.append(rows(3), writer=WriterKey("query", 3, "run-a"))
    assert not events.append(rows(3), writer=WriterKey("query", 3, "run-b")).skipped


def test_it_is_maintained(machine: Machine, expected: dict[str, Any]) -> None:
    before = committed(expected)
    for name in ("state", "orders", "short"):
        machine.root.topic(name).append(rows(20))
    for passed_ms in (3 * HOUR_MS, 30 * DAY_MS):
        machine.now_ms += passed_ms
        compacted = compact_root(machine.root, machine.settings(), InProcess(), CompactOptions(roll=passed_ms > DAY_MS))
        assert not [failure for report in compacted for failure in report.failures]
        retained = retain_root(machine.root, machine.settings(), runner=InProcess())
        assert not [failure for report in retained for failure in report.failures]
    machine.assert_sound()
    after = committed(machine.facts())
    latest = values_by_key(before["state"])
    assert latest.items() <= values_by_key(after["state"]).items()
    assert latest
    assert after["events"] == before["events"], "retention.ms is -1"
    assert after["short"] == [], "all of it has expired"


def test_it_is_backed_up_and_restored(machine: Machine, tree: Path) -> None:
    machine.now_ms += 3 * HOUR_MS
    machine.root.topic("payments").append(rows(1))
    found = machine.facts()
    # Into a place of its own, and into the one with the release's backups.
    for place in (machine.empty(), machine.filled(tree / "backups")):
        back_up(machine.root, place)
        target = machine.empty()
        restore(place, target, env=machine.env)
        restored = machine.facts(target)
        assert committed(restored) == committed(found)
        assert restored["groups"] == found["groups"]
        machine.assert_sound(target)


def test_the_releases_backups_are_restored(machine: Machine, tree: Path, expected: dict[str, Any]) -> None:
    place = machine.filled(tree / "backups")
    newest, first = machine.empty(), machine.empty()
    restore(place, newest, env=machine.env)
    restored = machine.facts(newest)
    for name, records in committed(expected).items():
        # The transaction that is open in the backup is aborted: what it held back is seen.
        assert committed(restored)[name][: len(records)] == records
        assert restored["topics"][name]["configs"] == expected["topics"][name]["configs"]
    assert restored["groups"] == expected["groups"]
    restore(place, first, RestorePoint(number=1), rename={"both": "both-before"}, env=machine.env)
    before = committed(machine.facts(first))["both-before"]
    assert before == expected["topics"]["both"]["read_committed"][: len(before)]
    assert len(before) == len(expected["topics"]["both"]["read_committed"]) - 130
    machine.assert_sound(newest)
