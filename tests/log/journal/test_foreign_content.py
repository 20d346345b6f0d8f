"""New and empty directories become a root automatically; directories with other files do not."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import sparklog
from sparklog.errors import BadRequest
from sparklog.storage import LocalStore
from sparklog.storage.memory import MemoryStore
from sparklog.tools.backup.restoring import restore
from tests.tools.backup.backup_world import BackupWorld

ROWS = pa.table({"value": [b"1"]})


def everything(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def parquet(folder: Path) -> None:
    pq.write_table(ROWS, folder / "part-00000.parquet")
    (folder / "_SUCCESS").touch()


def configuration(folder: Path) -> None:
    (folder / "my settings.conf").write_text("x")


def folders(folder: Path) -> None:
    (folder / "data").mkdir()


def delta(folder: Path) -> None:
    (folder / "_delta_log").mkdir()


@pytest.mark.parametrize("fill", [parquet, configuration, folders, delta])
def test_a_directory_with_other_files_does_not_become_a_root(tmp_path: Path, fill: object) -> None:
    fill(tmp_path)  # type: ignore[operator]
    before = everything(tmp_path)
    first = min(os.listdir(tmp_path))
    with pytest.raises(BadRequest) as caught:
        sparklog.open(tmp_path, create=True)
    assert str(caught.value) == (
        f"{tmp_path} is neither a sparklog root nor empty, found {first}: use an empty or new directory, such as "
        f"{tmp_path}/sparklog"
    )
    world = BackupWorld()
    world.root().create_topic("t")
    with pytest.raises(BadRequest, match=f"is not empty, found {first}"):
        restore(world.store, LocalStore(tmp_path), env=world.env())
    assert everything(tmp_path) == before
    assert sparklog.open(tmp_path / "sparklog", create=True).create_topic("t")


def test_the_error_suggests_the_intended_root(tmp_path: Path) -> None:
    root = tmp_path / "log"
    sparklog.open(root, create=True).create_topic("orders").append(ROWS)
    with pytest.raises(BadRequest, match=f"did you mean the root {root}\\?"):
        sparklog.open(tmp_path, create=True)
    with pytest.raises(BadRequest, match=f"it is inside the root {root}: use this"):
        sparklog.open(root / "orders", create=True)
    (root / "_root.json").unlink()
    with pytest.raises(BadRequest, match=r"it contains topics but no _root.json: restore this file"):
        sparklog.open(root, create=True)


def test_files_of_file_systems_probes_and_checkpoints_are_ignored(tmp_path: Path) -> None:
    for name in ("lost+found", "_probe/x", ".snapshot", "_checkpoints/query", "query/offsets"):
        (tmp_path / name).mkdir(parents=True)
    for name in (".DS_Store", ".nfs0000000012ab", "query/metadata", f"~{'0' * 24}"):
        (tmp_path / name).touch()
    topic = sparklog.open(tmp_path, create=True).create_topic("t")
    topic.append(ROWS)
    assert sparklog.open(tmp_path).topics() == ["t"]


def test_a_bucket_with_other_keys_does_not_become_a_root() -> None:
    store = MemoryStore(lambda: 0)
    store.create("_probe/x", b"")
    store.create("a/b", b"")
    with pytest.raises(BadRequest, match=r"found a/b: use an empty or new directory"):
        sparklog.open(store, create=True)
    store.delete("a/b")
    assert sparklog.open(store, create=True).topics() == []


def test_a_root_that_another_process_creates_concurrently_is_opened(tmp_path: Path) -> None:
    class Slow(LocalStore):
        """Another process creates the root and a topic just before the content of the directory is checked."""

        def names(self) -> Sequence[str]:
            sparklog.open(LocalStore(self.location), create=True).create_topic("t")
            return super().names()

    assert sparklog.open(Slow(tmp_path), create=True).topics() == ["t"]
