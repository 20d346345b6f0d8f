"""Test that the archive of fixtures preserves bytes and modification times, and that only complete trees are used."""

from __future__ import annotations

import json
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.fixture_archive import OTHER_MTIME_MS, pack, unpacked
from tests.fixture_data import fixture_tree


@pytest.fixture
def archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    tree = tmp_path / "tree"
    (tree / "one/data/t-0").mkdir(parents=True)
    (tree / "one/data/t-0/00000000000000000000.log").write_bytes(b"")
    (tree / "one/data/.kafka_cleanshutdown").write_bytes(b"x")
    stage = {"stage": "data", "mtimesMs": {"t-0/00000000000000000000.log": 1704157200764}}
    (tree / "one/fixture.json").write_text(json.dumps({"stages": [stage]}))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert pack(tree, tmp_path / "a.tar.xz") == 3
    return tmp_path / "a.tar.xz"


def test_archive_preserves_bytes_and_times(archive: Path) -> None:
    tree = unpacked(archive)
    log = tree / "one/data/t-0/00000000000000000000.log"
    assert log.read_bytes() == b""
    assert log.stat().st_mtime_ns == 1704157200764 * 1_000_000
    assert (tree / "one/data/.kafka_cleanshutdown").read_bytes() == b"x"
    assert (tree / "one/fixture.json").stat().st_mtime_ns == OTHER_MTIME_MS * 1_000_000


def test_archive_is_deterministic(archive: Path, tmp_path: Path) -> None:
    pack(tmp_path / "tree", tmp_path / "b.tar.xz")
    assert (tmp_path / "b.tar.xz").read_bytes() == archive.read_bytes()
    pack(unpacked(archive) / "one", tmp_path / "c.tar.xz")
    assert unpacked(tmp_path / "c.tar.xz") != unpacked(archive)


def test_concurrent_runs_share_one_complete_tree(archive: Path, tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        trees = set(pool.map(lambda _: unpacked(archive), range(16)))
    assert len(trees) == 1
    assert [path for path in tmp_path.iterdir() if path.name.startswith("sparklog-fixtures-")] == list(trees)


def test_deleted_tree_is_unpacked_again(archive: Path) -> None:
    tree = unpacked(archive)
    (tree / "one/fixture.json").unlink()
    assert unpacked(archive) == tree
    assert (tree / "one/fixture.json").exists()


def test_environment_selects_another_tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fixture_tree.cache_clear()
    monkeypatch.setenv("SPARKLOG_FIXTURES", str(tmp_path))
    assert fixture_tree() == tmp_path
    fixture_tree.cache_clear()


def test_archive_of_the_repository_is_complete(fixtures: Path) -> None:
    assert sum(1 for path in fixtures.rglob("*") if path.is_file() and path.name != ".complete") == 8511
    log = fixtures / "retention/ms/before/expiring-0/00000000000000000000.log"
    assert log.stat().st_mtime_ns == 1704157200764 * 1_000_000
