"""Test that the functions of `import sparklog` do the same as the commands, and run the examples of the docs."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

import sparklog

KAFKA = Path(__file__).parents[1] / "examples" / "data" / "kafka-log-dir"


@pytest.fixture
def root(tmp_path: Path) -> sparklog.Root:
    root = sparklog.open(tmp_path / "log", create=True)
    root.create_topic("t").append(pa.table({"key": ["a", "b"], "value": ["1", "2"], "timestamp": [1_000, 2_000]}))
    return root


def values(scan: sparklog.Scan) -> list[bytes]:
    return [value.as_py() for value in scan.to_table()["value"]]


def test_public_names_are_complete() -> None:
    assert [name for name in sparklog.__all__ if getattr(sparklog, name) is None] == []
    assert dir(sparklog) == sorted(sparklog.__all__)
    with pytest.raises(AttributeError, match="module 'sparklog' has no attribute 'opne'"):
        sparklog.opne  # type: ignore[attr-defined]  # noqa: B018


def test_view_of_a_root_a_topic_and_a_kafka_directory(root: sparklog.Root) -> None:
    for path in (root.location, f"{root.location}/t"):
        view = sparklog.open_view(path)
        assert view.topics() == ["t"]
        assert values(view.topic("t").scan(start=1)) == [b"2"]
        found = view.topic("t").offset_for_timestamp(1_500)[0]
        assert found is not None
        assert (found.offset, view.topic("t").bounds()[0].log_end) == (1, 2)
    view = sparklog.open_view(KAFKA)
    topic = next(name for name in view.topics() if not name.startswith("_"))
    committed = len(values(view.topic(topic).scan()))
    assert 0 < committed <= len(values(view.topic(topic).scan(isolation_level="read_uncommitted")))
    with pytest.raises(sparklog.NotFound, match="does not exist"):
        sparklog.open_view(f"{root.location}/nothing/at/all")
    assert values(sparklog.open_view(root.location, corrupt_records="skip").topic("t").scan()) == [b"1", b"2"]
    with pytest.raises(sparklog.BadRequest, match="corrupt_records"):
        sparklog.open_view(root.location, corrupt_records="hide")  # type: ignore[arg-type]


def test_scan_without_columns_counts_rows(root: sparklog.Root) -> None:
    topic = root.topic("t")
    for read in (topic.scan(columns=[]), topic.scan(columns=[], threads=2), topic.table(columns=[])):
        table = read.to_table()
        assert (table.num_rows, table.column_names) == (2, [])
        assert (sum(batch.num_rows for batch in read), pa.table(read).num_rows) == (2, 2)
    assert topic.scan(columns=[], keys=["a"]).to_table().num_rows == 1
    dataset = sparklog.datasets(root)["t"]
    assert (dataset.to_table(columns=[]).num_rows, dataset.count_rows()) == (2, 2)
    with sparklog.consumer(root, "g", topics="t", auto_offset_reset="earliest", columns=[]) as consumer:
        assert [batch.num_rows for batch in consumer.poll()] == [2]
    view = sparklog.open_view(KAFKA)
    for name in view.topics():
        assert view.topic(name).scan(columns=[]).to_table().num_rows == view.topic(name).scan().to_table().num_rows


def test_verify_accepts_roots_topics_and_kafka_directories(root: sparklog.Root) -> None:
    for place in (root, root.store, root.location, f"{root.location}/t", KAFKA):
        assert sparklog.verify(place).sound
    with pytest.raises(sparklog.BadRequest, match="omit quick"):
        sparklog.verify(KAFKA, quick=True)


def test_dry_runs_change_nothing(root: sparklog.Root, tmp_path: Path) -> None:
    before = {info.key for info in root.store.list("")}
    assert [report.topic for report in sparklog.compact(root, roll=True, dry_run=True)] == ["t"]
    assert [report.topic for report in sparklog.retain(root, topics=["t"], dry_run=True)] == ["t"]
    assert sparklog.clone(root, "t", "u", dry_run=True).records == 2
    assert sparklog.restore(root.location, tmp_path / "again", dry_run=True).files == 1
    assert sparklog.import_kafka(tmp_path / "new", KAFKA, dry_run=True).topics
    assert {info.key for info in root.store.list("")} == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["log"]


def test_invalid_input_creates_no_root_and_no_backup(root: sparklog.Root, tmp_path: Path) -> None:
    with pytest.raises(sparklog.NotFound):
        sparklog.import_kafka(tmp_path / "new", KAFKA, topics=["no-such-topic"])
    with pytest.raises(sparklog.BadRequest, match="is inside the root"):
        sparklog.backup(root, f"{root.location}/backups")
    with pytest.raises(sparklog.BadRequest, match="is inside the root"):
        sparklog.restore(root.location, f"{root.location}/again")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["log"]
