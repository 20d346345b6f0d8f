"""Foreign files in a root affect at most the topic that contains them, and never block a process."""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow as pa
import pytest

import sparklog
from sparklog.errors import BadRequest, Corrupt, SparklogError, Unavailable
from sparklog.groups.lag import Groups
from sparklog.log.journal.names import checkpoint_key, commit_key
from sparklog.log.topic.root import Root
from sparklog.maintenance.work_items import Settings
from sparklog.retention.retain import retain_root
from sparklog.storage import LocalStore
from sparklog.tools.backup.backing_up import back_up
from sparklog.tools.verification.run import verify_root

ROWS = pa.table({"value": [b"1"]})
SPARSE = 64 << 30


@pytest.fixture
def root(tmp_path: Path) -> Root:
    """Return two topics with one record each, as a new process sees them."""
    made = sparklog.open(LocalStore(tmp_path / "root", durable=False), create=True)
    for name in ("a", "b"):
        made.create_topic(name).append(ROWS)
    return sparklog.open(made.store)


def sparse(root: Root, key: str) -> None:
    """Create a sparse file, which is long and uses no disk space."""
    path = Path(root.location, key)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    os.truncate(path, SPARSE)


def values(root: Root, topic: str) -> list[bytes]:
    found: list[bytes] = root.topic(topic).scan().to_table()["value"].to_pylist()
    return found


@pytest.mark.usefixtures("records_in_files")
def test_links_and_fifos_do_not_prevent_a_root(root: Root, tmp_path: Path) -> None:
    folder = Path(root.location)
    for name, target in (("loop", "loop"), ("alias", "a"), ("self", ".")):
        (folder / name).symlink_to(target)
    (folder / "a" / "append" / "self").symlink_to(folder)
    (folder / "a" / "_log" / "checkpoints").mkdir(exist_ok=True)
    (folder / checkpoint_key("a", 1)).symlink_to("loop")
    os.mkfifo(folder / commit_key("a", 2))
    os.mkfifo(folder / "c")
    assert root.topics() == ["a", "b"]
    assert (root.topic("a").log.state().version, values(root, "a")) == (1, [b"1"])
    assert root.create_topic("d").append(ROWS)
    with pytest.raises(Unavailable, match="too many symbolic links: check the path"):
        root.topic("loop")
    with pytest.raises(BadRequest, match="the path exists, but is not a regular file; move it away"):
        root.topic("a").append(ROWS)
    with pytest.raises(SparklogError):
        root.create_topic("loop")
    reports = retain_root(root, Settings(now_ms=root.env.wall_ms()))
    assert [report.topic for report in reports if not report.failures] == ["a", "b", "d"]
    findings = verify_root(root.store).findings
    assert [(each.kind, each.file) for each in findings] == [
        ("commit", commit_key("a", 2)),
        ("commit", checkpoint_key("a", 1)),
    ]
    back_up(root, LocalStore(tmp_path / "place", durable=False), topics=["b"])


def test_verify_reports_conflicting_paths_in_any_log(root: Root) -> None:
    Groups(root).group("g").alter({"a": {0: 1}})
    root.engine.decisions.log("x").abort(0, "abort")
    assert verify_root(root.store).sound
    keys = [commit_key("_groups/g", 1), commit_key("_transactions/x", 5), checkpoint_key("_transactions/x", 0)]
    for key in keys:
        Path(root.location, key, "below").mkdir(parents=True)
    findings = verify_root(root.store).findings
    assert sorted(each.file for each in findings) == sorted(keys)
    assert {each.remedy for each in findings} == {"move the file away"}
    with pytest.raises(BadRequest, match="the path exists, but is not a regular file; move it away"):
        Groups(root).group("g").alter({"a": {0: 0}})


def test_sparse_json_affects_only_its_topic(root: Root) -> None:
    sparse(root, commit_key("a", 2))
    sparse(root, "_groups/g/_log/00000000000000000000.json")
    sparse(root, "_transactions/x/_log/00000000000000000000.json")
    failures: list[SparklogError] = []
    assert root.topics(failures) == ["b"]
    assert [(type(error), error.file) for error in failures if isinstance(error, Corrupt)] == [
        (Corrupt, commit_key("a", 2))
    ]
    with pytest.raises(Corrupt, match="expected JSON of at most"):
        root.topic("a")
    assert values(root, "b") == [b"1"]
    root.topic("b").append(ROWS)
    assert Groups(root).names(failures) == []
    reports = retain_root(root, Settings(now_ms=root.env.wall_ms()))
    assert {report.topic: bool(report.failures) for report in reports}["b"] is False
    found = verify_root(root.store)
    assert {finding.file for finding in found.findings} == {
        commit_key("a", 2),
        "_groups/g/_log/00000000000000000000.json",
        "_transactions/x/_log/00000000000000000000.json",
    }


def test_a_slice_table_is_read_up_to_the_length_in_its_header(root: Root) -> None:
    topic = root.topic("a")
    topic.log.write_checkpoint()
    (table,) = Path(root.location, "a", "_log", "checkpoints").glob("*.arrow")
    os.truncate(table, SPARSE)
    assert values(sparklog.open(root.store), "a") == [b"1"]
    assert {finding.file for finding in verify_root(root.store).findings} == {os.path.relpath(table, root.location)}
