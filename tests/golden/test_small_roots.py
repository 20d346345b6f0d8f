"""Roots of releases 0.2.0 and 0.3.1 (`make_small_root`): read, appended to and compacted, without new features."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import sparklog
from sparklog.compaction.run import CompactOptions, compact_root
from sparklog.log.journal.documents import INLINE_RECORDS, document_of
from sparklog.log.state.writer_runs import WriterKey
from sparklog.maintenance.work_items import InProcess
from sparklog.tools.verification.run import verify_root
from tests.fixture_archive import unpacked
from tests.fixture_data import copied
from tests.golden.test_root_0_1_0 import DAY_MS, Machine, committed, facts_of, rows, values_by_key

RELEASES = ("0_2_0", "0_3_1")


@pytest.fixture(scope="module", params=RELEASES)
def tree(request: pytest.FixtureRequest) -> Path:
    return unpacked(Path(__file__).with_name(f"root_{request.param}.tar.xz"))


@pytest.fixture(scope="module")
def expected(tree: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((tree / "expected.json").read_text())
    return found


@pytest.fixture
def machine(tree: Path, expected: dict[str, Any]) -> Machine:
    return Machine(tree, expected["endMs"])


def features(machine: Machine) -> set[str]:
    """What any commit asks of readers and writers."""
    keys = [info.key for info in machine.store.list("") if "/_log/0" in info.key]
    documents = [json.loads(document_of(machine.store.get(key))) for key in keys]
    return {name for found in documents for name in (*found["readFeatures"], *found.get("writeFeatures", ()))}


def test_everything_is_read_as_the_release_read_it(tree: Path, tmp_path: Path, expected: dict[str, Any]) -> None:
    root = sparklog.open(copied(tree / "root", tmp_path / "root"))
    found = facts_of(root)
    assert found["groups"] == expected["groups"]
    assert found["topics"] == expected["topics"]
    assert {"events", "events-clone", "stamped", "state"} == set(found["topics"])
    assert verify_root(root.store).sound


def test_it_is_appended_to_as_before(machine: Machine, expected: dict[str, Any]) -> None:
    """By files: who shares the root with that release goes on to share it."""
    assert not features(machine)
    files = len(list(machine.store.list("events/append/")))
    for name in machine.root.topics():
        machine.root.topic(name).append(rows(3))
    assert machine.root.topic("events").append(rows(3), writer=WriterKey("query", 3, "run-b")).records == 3
    assert len(list(machine.store.list("events/append/"))) == files + 2
    after = committed(machine.facts())
    for name, records in committed(expected).items():
        assert [record for record in after[name] if record in records] == records
        assert len(after[name]) == len(records) + (6 if name == "events" else 3)
    assert not features(machine)
    machine.assert_sound()


def test_it_is_compacted(machine: Machine, expected: dict[str, Any]) -> None:
    before = committed(expected)
    machine.now_ms += DAY_MS
    reports = compact_root(machine.root, machine.settings(), InProcess(), CompactOptions(roll=True))
    assert not [report for report in reports if report.failures]
    after = committed(machine.facts())
    assert values_by_key(after["state"]) == values_by_key(before["state"])
    assert {name: records for name, records in after.items() if name != "state"} == {
        name: records for name, records in before.items() if name != "state"
    }
    assert not features(machine)
    machine.assert_sound()


def test_records_go_into_its_commits_once_it_is_said_so(machine: Machine, expected: dict[str, Any]) -> None:
    topic = machine.root.topic("events")
    topic.alter(configs={"inline.records.bytes": 16384})
    files = len(list(machine.store.list("events/append/")))
    topic.append(rows(3))
    assert len(list(machine.store.list("events/append/"))) == files
    assert features(machine) == {INLINE_RECORDS}
    assert len(committed(machine.facts())["events"]) == len(committed(expected)["events"]) + 3
    machine.root.create_topic("new").append(rows(3))
    assert list(machine.store.list("new/append/")) == []
    machine.assert_sound()
