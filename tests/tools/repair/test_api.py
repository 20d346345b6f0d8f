"""`sparklog.repair` of a root, a topic directory and a Kafka directory."""

from __future__ import annotations

from pathlib import Path

import pytest

import sparklog
from sparklog.errors import BadRequest, NotFound
from tests.fixture_data import copied


def test_repair_root_and_topic_directory(tmp_path: Path) -> None:
    root = sparklog.open(tmp_path / "log", create=True)
    for name in ("a", "b"):
        topic = root.create_topic(name)
        topic.append({"value": ["x", "y"]})
        (commit,) = (tmp_path / "log" / name / "_log").glob("*1.json")
        commit.write_bytes(commit.read_bytes() + b"rest of another file")
    planned = sparklog.repair(root)
    assert ([item.file[0] for item in planned.repaired], planned.executed) == (["a", "b"], False)
    assert not sparklog.verify(root).sound
    assert [item.file[0] for item in sparklog.repair(tmp_path / "log" / "b", execute=True).repaired] == ["b"]
    assert not sparklog.verify(root).sound
    assert sparklog.repair(tmp_path / "log", topics=["a"], execute=True).sound
    assert sparklog.verify(root).sound
    for place in (tmp_path / "log", root):
        with pytest.raises(BadRequest, match="only applies to Kafka directories"):
            sparklog.repair(place, index_interval_bytes=4096)
    with pytest.raises(NotFound):
        sparklog.repair(tmp_path / "nothing", execute=True)
    assert not (tmp_path / "nothing").exists()


def test_repair_kafka_directory(fixtures: Path, tmp_path: Path) -> None:
    folder = copied(fixtures / "damaged/indexes-missing/data", tmp_path / "log")
    assert sparklog.repair(folder, index_interval_bytes=4096).sound
    assert not sparklog.verify(folder).sound
    assert sparklog.repair(folder, index_interval_bytes=4096, execute=True).sound
    assert sparklog.verify(folder).sound
