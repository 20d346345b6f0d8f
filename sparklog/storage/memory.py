"""Objects in memory, for tests and simulations. The store is deterministic and has a given clock."""

from __future__ import annotations

import copy
from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterable, Iterator
from itertools import takewhile
from typing import Any, NoReturn

from sparklog.storage.fork_safety import ForkLock
from sparklog.storage.store import (
    ObjectInfo,
    ObjectWriter,
    Store,
    check_key,
    check_prefix,
    check_range,
    existing_object,
    missing_object,
)

Snapshot = dict[str, tuple[bytes, int]]


class MemoryStore(Store):
    """A store in a dictionary. The modification times of objects come from `clock` (ms since the epoch).

    The store is not picklable, because a copy would be a different store. `snapshot` and `restore` go back in time,
    like a restored backup or a crash. `copy.deepcopy` of an object with stores continues from its state, with copied
    clocks.
    """

    needs_probe = False
    parallel_reads = 1

    def __init__(self, clock: Callable[[], int], name: str = "test") -> None:
        self._clock = clock
        self._name = name
        self._lock = ForkLock()
        self._objects: Snapshot = {}
        self._keys: list[str] = []

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a MemoryStore exists only in one process and cannot be pickled: use a root on a disk (sparklog_disk_root)"
        )

    def __deepcopy__(self, memo: dict[int, Any]) -> MemoryStore:
        memo[id(self)] = copied = type(self).__new__(type(self))
        # Keys and bytes are immutable, so a shallow copy is sufficient.
        memo[id(self._objects)], memo[id(self._keys)] = dict(self._objects), list(self._keys)
        memo[id(self._lock)] = ForkLock()
        vars(copied).update(copy.deepcopy(vars(self), memo))
        return copied

    @property
    def location(self) -> str:
        return f"memory:{self._name}"

    def get(self, key: str, start: int = 0, length: int | None = None) -> bytes:
        check_range(key, start, length)
        stored = self._objects.get(check_key(key))
        if stored is None:
            raise missing_object(f"{key} in {self.location}")
        data = stored[0]
        return data[start:] if length is None else data[start : start + length]

    def create(self, key: str, data: bytes) -> bool:
        check_key(key)
        with self._lock:
            if key in self._objects:
                return False
            self._objects[key] = (bytes(data), self._clock())
            insort(self._keys, key)
            return True

    def overwrite(self, key: str, parts: Iterable[bytes]) -> None:
        data = b"".join(parts)
        if not self.create(key, data):
            with self._lock:
                self._objects[key] = (data, self._clock())

    def writer(self, key: str) -> ObjectWriter:
        return _MemoryWriter(self, check_key(key))

    def list(self, prefix: str, after: str = "") -> Iterator[ObjectInfo]:
        check_prefix(prefix)
        with self._lock:
            return iter([self._info(key) for key in self._keys_below(prefix, bisect_right(self._keys, after))])

    def list_folders(self, prefix: str) -> Iterator[str]:
        check_prefix(prefix, folder=True)
        with self._lock:
            below = [key[len(prefix) :] for key in self._keys_below(prefix)]
        folders = {name.partition("/")[0] for name in below if "/" in name}
        return iter(sorted(folders, key=lambda name: name + "/"))

    def stat(self, key: str) -> ObjectInfo | None:
        check_key(key)
        with self._lock:
            return self._info(key) if key in self._objects else None

    def delete(self, key: str) -> None:
        check_key(key)
        with self._lock:
            if self._objects.pop(key, None) is not None:
                del self._keys[bisect_left(self._keys, key)]

    def now_ms(self) -> int:
        return self._clock()

    def snapshot(self) -> Snapshot:
        with self._lock:
            return dict(self._objects)

    def restore(self, snapshot: Snapshot) -> None:
        with self._lock:
            self._objects = dict(snapshot)
            self._keys = sorted(snapshot)

    def replace(self, key: str, data: bytes) -> None:
        """Overwrite an existing object, to simulate corruption."""
        with self._lock:
            self._objects[key] = (data, self._objects[key][1])

    def _keys_below(self, prefix: str, first: int = 0) -> Iterator[str]:
        first = max(first, bisect_left(self._keys, prefix))
        return takewhile(lambda key: key.startswith(prefix), self._keys[first:])

    def _info(self, key: str) -> ObjectInfo:
        data, modified = self._objects[key]
        return ObjectInfo(key, len(data), modified)


class _MemoryWriter:
    def __init__(self, store: MemoryStore, key: str) -> None:
        self._store = store
        self._key = key
        self._parts: list[bytes] | None = []

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self._parts is None:
            raise ValueError(f"the writer of {self._key} is closed")
        self._parts.append(bytes(data))

    def close(self) -> None:
        if self._parts is None:
            return
        data, self._parts = b"".join(self._parts), None
        if not self._store.create(self._key, data):
            raise existing_object(self._key, self._store.location)

    def discard(self) -> None:
        self._parts = None
