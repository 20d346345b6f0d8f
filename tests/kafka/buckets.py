"""Copy Kafka directories to an object store, as `aws s3 sync` copies them to a bucket."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sparklog.kafka.in_place.files import StorePath, store_path
from sparklog.storage.memory import MemoryStore
from sparklog.testing.wrapper_stores import CountingStore

_BUCKETS: dict[str, Bucket] = {}


class Bucket(MemoryStore):
    """A store in memory that handles parallel requests, and can be pickled within this process."""

    parallel_reads = 4

    def __init__(self, name: str) -> None:
        self.now = 0
        super().__init__(lambda: self.now, name)
        _BUCKETS[name] = self

    def __reduce__(self) -> Any:
        return bucket_named, (self._name,)


def bucket_named(name: str) -> Bucket:
    return _BUCKETS[name]


def upload(folder: Path, store: MemoryStore, key: str = "kafka") -> StorePath:
    """Copy all files of a directory to a key prefix. Times have whole seconds, as in a bucket."""
    bucket = store if isinstance(store, Bucket) else None
    for file in sorted(folder.rglob("*")):
        if file.is_file():
            if bucket is not None:
                bucket.now = int(file.stat().st_mtime) * 1000
            put(store, f"{key}/{file.relative_to(folder)}", file.read_bytes())
    return store_path(store, key)


def put(store: MemoryStore, key: str, data: bytes) -> None:
    """Write an object, or overwrite an existing one."""
    if not store.create(key, data):
        store.delete(key)
        store.create(key, data)


def counted(path: StorePath) -> tuple[CountingStore, StorePath]:
    """Return a store that counts requests, and the same path in it."""
    store = CountingStore(path.files.store)
    return store, store_path(store, path.key)
