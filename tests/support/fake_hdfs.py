"""HDFS in memory, with the calls and errors of hdfs-native's client: what a namenode says, and what may go wrong."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

STACK = "\\n\\tat org.apache.hadoop.hdfs.server.namenode.FSDirectory.resolvePath(FSDirectory.java:756)"


def remote(name: str, message: str) -> RuntimeError:
    """Return the error of an exception that the namenode has thrown."""
    return RuntimeError(f'RPCError("org.apache.hadoop.{name}", "{message}{STACK}")')


@dataclass
class Status:
    path: str
    isdir: bool
    length: int
    modification_time: int


@dataclass
class FakeHdfs:
    """A namenode. `before` and `after` hold errors that the next call of a name raises, without or with its effect."""

    files: dict[str, tuple[bytes, int]] = field(default_factory=dict)
    folders: dict[str, int] = field(default_factory=lambda: {"/": 0})
    before: dict[str, list[Exception]] = field(default_factory=dict)
    after: dict[str, list[Exception]] = field(default_factory=dict)
    calls: list[str] = field(default_factory=list)
    synced: set[str] = field(default_factory=set)
    lock: Any = field(default_factory=threading.RLock)

    def get_file_info(self, path: str) -> Status:
        return self._run("get_file_info", lambda: self._status(path))

    def list_status(self, path: str) -> Iterator[Status]:
        def listed() -> list[Status]:
            self._check_folders(path)
            if not self._status(path).isdir:
                return [self._status(path)]
            below = [*self.files, *self.folders]
            return [self._status(one) for one in sorted(below) if one != "/" and _above(one) == path]

        return iter(self._run("list_status", listed))

    def read(self, path: str) -> _Reader:
        def opened() -> _Reader:
            self._check_folders(path)
            if path not in self.files:
                raise FileNotFoundError(f"File does not exist: {path}\n\tat org.apache.hadoop")
            return _Reader(self, path, self.files[path][0])

        return self._run("read", opened)

    def create(self, path: str) -> _Writer:
        def made() -> _Writer:
            folder = _above(path)
            missing = []
            while folder not in self.folders:
                if folder in self.files:
                    raise remote("fs.ParentNotDirectoryException", f"{folder} (is not a directory)")
                missing.append(folder)
                folder = _above(folder)
            if path in self.files:
                raise FileExistsError(f"{path} for client 127.0.0.1 already exists\n\tat org.apache.hadoop")
            self.folders.update(dict.fromkeys(missing, _now()))
            self.files[path] = (b"", _now())
            return _Writer(self, path)

        return self._run("create", made)

    def rename(self, source: str, target: str, overwrite: bool) -> None:
        def renamed() -> None:
            if source not in self.files:
                raise FileNotFoundError(f"rename source {source} is not found.\n\tat org.apache.hadoop")
            if target in self.folders:
                raise remote("IOException", f"Source {source} and destination {target} must both be directories")
            if target in self.files and not overwrite:
                raise FileExistsError(f"rename destination {target} already exists\n\tat org.apache.hadoop")
            self.files[target] = self.files.pop(source)

        self._run("rename", renamed)

    def delete(self, path: str, recursive: bool) -> bool:
        def deleted() -> bool:
            assert not recursive
            self._check_folders(path)
            if path in self.folders:
                if any(_above(one) == path for one in [*self.files, *self.folders] if one != path):
                    raise remote("fs.PathIsNotEmptyDirectoryException", f"`{path} is non empty'")
                return self.folders.pop(path) >= 0
            return self.files.pop(path, None) is not None

        return self._run("delete", deleted)

    def _run(self, name: str, call: Any) -> Any:
        with self.lock:
            self.calls.append(name)
            if self.before.get(name):
                raise self.before[name].pop(0)
            answer = call()
            if self.after.get(name):
                raise self.after[name].pop(0)
            return answer

    def _status(self, path: str) -> Status:
        if path in self.folders:
            return Status(path, True, 0, self.folders[path])
        if path in self.files:
            data, modified = self.files[path]
            return Status(path, False, len(data), modified)
        raise FileNotFoundError(path)

    def _check_folders(self, path: str) -> None:
        while path != "/":
            path = _above(path)
            if path in self.files:
                raise remote("security.AccessControlException", f"{path} (is not a directory)")


class _Reader:
    def __init__(self, hdfs: FakeHdfs, path: str, data: bytes) -> None:
        self.hdfs, self.path, self.data = hdfs, path, data

    def __len__(self) -> int:
        return len(self.data)

    def read_range(self, start: int, length: int) -> bytes:
        assert start + length <= len(self.data), "the client panics"
        return self.hdfs._run("read_range", lambda: self.data[start : start + length])


class _Writer:
    def __init__(self, hdfs: FakeHdfs, path: str) -> None:
        self.hdfs, self.path, self.data = hdfs, path, b""

    def write(self, data: bytes) -> int:
        def wrote() -> int:
            self.data += data
            return len(data)

        return self.hdfs._run("write", wrote)

    def hsync(self) -> None:
        self.hdfs._run("hsync", lambda: self.hdfs.synced.add(self.path))

    def close(self) -> None:
        def closed() -> None:
            if self.path not in self.hdfs.files:
                raise FileNotFoundError(f"File does not exist: {self.path}\n\tat org.apache.hadoop")
            self.hdfs.files[self.path] = (self.data, _now())

        self.hdfs._run("close", closed)


def _above(path: str) -> str:
    return path.rpartition("/")[0] or "/"


def _now() -> int:
    return time.time_ns() // 1_000_000
