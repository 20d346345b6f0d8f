"""The fixtures that pytest finds if sparklog is installed, and the examples in docs/guides/pytest.md."""

from __future__ import annotations

import json
import pickle
import re
import subprocess
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

import pyarrow as pa
import pytest

import sparklog
from sparklog.errors import BadRequest, NotFound, SparklogError, Unavailable
from sparklog.log.topic.root import Root
from sparklog.testing.faulty_store import FaultKind, Script
from sparklog.testing.plugin import __file__ as plugin
from sparklog.testing.records import RecordStream
from sparklog.testing.world import START_MS, ManualClock, World
from sparklog.testing.wrapper_stores import CountingStore
from tests.test_architecture import REPOSITORY
from tests.test_packaging import project

NAME = "sparklog.testing.plugin"
GUIDE = REPOSITORY / "docs" / "guides" / "pytest.md"
ROW = pa.table({"key": ["a"], "value": ["1"]})


def test_the_guide_lists_all_fixtures() -> None:
    fixtures = set(re.findall(r"^def (\w+)", Path(plugin).read_text(), re.MULTILINE))
    assert fixtures == set(re.findall(r"^\| `(\w+)` \|", GUIDE.read_text(), re.MULTILINE))


def test_pytest_finds_the_plugin_by_name() -> None:
    """Then `pytest_plugins` may also contain the module, because a module cannot be a plugin under two names."""
    assert project()["project"]["entry-points"]["pytest11"] == {NAME: NAME}
    manager = pytest.PytestPluginManager()
    manager.register(import_module(NAME), name=NAME)
    manager.import_plugin(NAME)
    assert manager.get_name(import_module(NAME)) == NAME


def test_loading_the_plugin_imports_no_other_module() -> None:
    code = f"import sys, pytest, json; before = {{*sys.modules}}; import {NAME}; "
    code += "print(json.dumps([*set(sys.modules) - before]))"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=REPOSITORY, check=True)
    own = {"sparklog", "sparklog.common", "sparklog.common.lazy", "sparklog.testing", "sparklog.version", NAME}
    assert set(json.loads(answer.stdout)) <= own


@pytest.mark.parametrize("turn", [1, 2])
def test_each_test_has_its_own_root_and_clock(
    turn: int,
    sparklog_root: Root,
    sparklog_disk_root: Root,
    sparklog_clock: ManualClock,
    sparklog_records: RecordStream,
) -> None:
    assert (sparklog_root.topics(), sparklog_disk_root.topics(), sparklog_clock.now_ms) == ([], [], START_MS)
    assert sparklog_records.taken().num_rows == 0
    assert sparklog_root.id == World().root().id != sparklog_disk_root.id
    for root in (sparklog_root, sparklog_disk_root):
        root.create_topic("t").append(sparklog_records.take(3))
    sparklog_clock.advance(hours=1)


def test_the_fixtures_share_one_root(
    sparklog_root: Root, sparklog_world: World, sparklog_clock: ManualClock, sparklog_requests: CountingStore
) -> None:
    sparklog_requests.reset()
    topic = sparklog_root.create_topic("t")
    assert sparklog_requests.counts["create"] == 1
    sparklog_clock.advance(minutes=1)
    topic.append(ROW)
    (seen,) = sparklog_world.root().topic("t").scan(columns=["timestamp"]).to_table()["timestamp"].to_pylist()
    assert seen.timestamp() * 1000 == START_MS + 60_000


def test_waiting_advances_the_clock_without_delay(sparklog_root: Root, sparklog_clock: ManualClock) -> None:
    sparklog_root.create_topic("t")
    with sparklog.consumer(sparklog_root, "g", topics="t") as consumer:
        assert consumer.poll(5.0) == []
    assert sparklog_clock.now_ms >= START_MS + 5_000
    assert sparklog_clock.slept


def test_faults_are_retried_up_to_a_limit(sparklog_root: Root, sparklog_faults: Script) -> None:
    topic = sparklog_root.create_topic("t")
    sparklog_faults.fail("create:commit", times=3)
    topic.append(ROW)
    assert [call.label for call in sparklog_faults.struck] == ["create:commit"] * 3
    sparklog_faults.fail("create:commit", times=1_000)
    with pytest.raises(Unavailable):
        topic.append(ROW)


def test_a_root_on_disk_can_be_opened_by_other_processes(sparklog_disk_root: Root) -> None:
    sparklog_disk_root.create_topic("t").append(ROW)
    assert sparklog.open(sparklog_disk_root.location).topic("t").scan().to_table().num_rows == 1
    assert pickle.loads(pickle.dumps(sparklog_disk_root)).topics() == ["t"]
    later = sparklog_disk_root.store.now_ms() + 8 * 86_400_000
    sparklog.compact(sparklog_disk_root, roll=True, now_ms=later)
    sparklog.retain(sparklog_disk_root, now_ms=later)
    assert sparklog_disk_root.topic("t").scan().to_table().num_rows == 0


@pytest.mark.parametrize(
    ("wrong", "kind", "line"),
    [
        (lambda root: ManualClock().advance(-1), BadRequest, "time cannot advance by -1 ms: use set_wall_clock"),
        (
            lambda root: Script().fail("create:comit"),
            BadRequest,
            "no call has the label 'create:comit': expected VERB",
        ),
        (lambda root: Script().fail("commit"), BadRequest, "no call has the label 'commit'"),
        (
            lambda root: Script().fail("create:commit", FaultKind.FLIP),
            BadRequest,
            "FLIP applies to get, not to 'create'",
        ),
        (
            lambda root: Script().fail("create:commit", times=0),
            BadRequest,
            "times of 'create:commit' must be at least 1",
        ),
        (lambda root: RecordStream(keys=-1), BadRequest, "keys of a RecordStream must not be negative, found -1"),
        (lambda root: RecordStream(tombstones=2), BadRequest, "tombstones of a RecordStream must be 0.0 to 1.0"),
        (lambda root: RecordStream(keys=0, tombstones=0.1), BadRequest, "and require keys"),
        (
            lambda root: RecordStream().take(-1),
            BadRequest,
            "the number of records must not be negative",
        ),
        (
            lambda root: sparklog.open(root.location),
            BadRequest,
            "it exists only in one process; .* sparklog_disk_root",
        ),
        (
            lambda root: pickle.dumps(root),
            TypeError,
            "cannot be pickled: use a root on a disk .sparklog_disk_root",
        ),
        (lambda root: sparklog.open(root.store).create_topic("t"), Unavailable, "clock is .* ahead of memory:test"),
        (lambda root: root.topic("t"), NotFound, "topic 't' does not exist in memory:test"),
    ],
)
def test_wrong_use_is_one_line(
    wrong: Callable[[Root], object], kind: type[Exception], line: str, sparklog_root: Root
) -> None:
    with pytest.raises(kind, match=line) as raised:
        wrong(sparklog_root)
    assert isinstance(raised.value, (SparklogError, TypeError))
    assert "\n" not in str(raised.value)
