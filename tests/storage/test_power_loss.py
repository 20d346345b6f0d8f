"""Power loss: only synced data of files and directories survives.

`Disk` observes the system calls of the local store, and contains what a disk without writeback would contain: the bytes
of a file as of its last fsync, and the names in a directory as of its last fsync. All objects that the store has
acknowledged must be on this disk.
"""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

import pytest

from sparklog.storage import LocalStore


class Disk:
    """The surviving directories and files, by inode."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, base: Path) -> None:
        self.base = base
        self.names: dict[int, dict[str, int]] = {os.stat(base).st_ino: {}}
        self.contents: dict[int, bytes] = {}
        real_open, real_mkdir, real_fsync = os.open, os.mkdir, os.fsync

        def opened(path: Any, flags: int, mode: int = 0o777) -> int:
            fd = real_open(path, flags, mode)
            if flags & os.O_CREAT or flags & os.O_TMPFILE == os.O_TMPFILE:
                self.contents.pop(os.fstat(fd).st_ino, None)
            return fd

        def made(path: Any, mode: int = 0o777) -> None:
            real_mkdir(path, mode)
            self.names.pop(os.stat(path).st_ino, None)

        def synced(fd: int) -> None:
            real_fsync(fd)
            found = os.fstat(fd)
            path = os.readlink(f"/proc/self/fd/{fd}")
            if os.path.isdir(path):
                self.names[found.st_ino] = {name: os.stat(os.path.join(path, name)).st_ino for name in os.listdir(path)}
            else:
                with open(f"/proc/self/fd/{fd}", "rb") as file:
                    self.contents[found.st_ino] = file.read()

        monkeypatch.setattr(os, "open", opened)
        monkeypatch.setattr(os, "mkdir", made)
        monkeypatch.setattr(os, "fsync", synced)

    def after_power_loss(self, path: Path) -> bytes | None:
        """Return the bytes of the file; None if its name or the name of a directory above it is lost."""
        inode = os.stat(self.base).st_ino
        for name in path.relative_to(self.base).parts:
            found = self.names.get(inode, {}).get(name)
            if found is None:
                return None
            inode = found
        return self.contents.get(inode)


def run(disk: Disk, base: Path, seed: int, steps: int) -> int:
    """Two processes create, write and delete at random. Each acknowledged object survives after each step."""
    source = random.Random(seed)
    root = base / "new" / "root"
    processes = [LocalStore(root), LocalStore(root)]
    there: dict[str, bytes] = {}
    for step in range(steps):
        store = source.choice(processes)
        key = f"{source.choice('ab')}/{source.choice(['_log', 'append', 'x/y'])}/{source.randrange(4)}"
        body = b"%d" % step
        what = source.random()
        if what < 0.5:
            if store.create(key, body):
                there[key] = body
        elif what < 0.7:
            if key not in there:
                writer = store.writer(key)
                writer.write(body)
                writer.close()
                there[key] = body
        else:
            store.delete(key)
            there.pop(key, None)
        if source.random() < 0.1:
            processes[source.randrange(2)] = LocalStore(root)
        for kept, expected in there.items():
            survived = disk.after_power_loss(root / kept)
            assert survived == expected, f"step {step}: {kept} was acknowledged and would be lost ({survived!r})"
    return len(there)


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="needs /proc to follow descriptors")
class TestPowerLoss:
    def test_acknowledged_objects_survive_a_power_loss(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        for seed in range(10):
            base = tmp_path / str(seed)
            base.mkdir()
            with monkeypatch.context() as patch:
                assert run(Disk(patch, base), base, seed, 60) > 0

    @pytest.mark.parametrize("forgotten", ["_sync", "_sync_folder", "_sync_name"])
    def test_a_missing_fsync_is_detected(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, forgotten: str) -> None:
        monkeypatch.setattr(LocalStore, forgotten, lambda *args, **how: 0)
        disk = Disk(monkeypatch, tmp_path)
        with pytest.raises(AssertionError, match="would be lost"):
            run(disk, tmp_path, 1, 60)

    def test_a_directory_that_another_process_created_and_did_not_sync_is_synced(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        disk = Disk(monkeypatch, tmp_path)
        store = LocalStore(tmp_path / "root")
        store.create("first", b"x")
        os.makedirs(tmp_path / "root" / "a" / "b")
        assert store.create("a/b/c", b"1")
        assert disk.after_power_loss(tmp_path / "root" / "a" / "b" / "c") == b"1"

    def test_an_existing_name_is_made_durable_before_it_is_reported(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The process died between link and fsync. Another process that gets "exists" continues from this object."""
        disk = Disk(monkeypatch, tmp_path)
        store = LocalStore(tmp_path / "root")
        with monkeypatch.context() as patch:
            patch.setattr(LocalStore, "_sync_name", lambda *args: None)
            assert store.create("a", b"1")
        assert disk.after_power_loss(tmp_path / "root" / "a") is None
        assert store.create("a", b"2") is False
        assert disk.after_power_loss(tmp_path / "root" / "a") == b"1"
