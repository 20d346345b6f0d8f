"""A store that passes every call on to another one: the base of test doubles."""

from __future__ import annotations

from collections.abc import Iterator

from sparklog.storage.store import ObjectInfo, ObjectWriter, Store


class WrapperStore(Store):
    """Pass every call on to `inner`; derived classes override what they count, delay or break.

    Of the capabilities only `needs_probe` and `parallel_reads` are those of `inner`: temporary files and links would
    go past the wrapper.
    """

    def __init__(self, inner: Store) -> None:
        self.inner = inner

    @property
    def location(self) -> str:
        return self.inner.location

    @property
    def needs_probe(self) -> bool:
        return self.inner.needs_probe

    @property
    def parallel_reads(self) -> int:
        return self.inner.parallel_reads

    def get(self, key: str, start: int = 0, length: int | None = None) -> bytes:
        return self.inner.get(key, start, length)

    def create(self, key: str, data: bytes) -> bool:
        return self.inner.create(key, data)

    def writer(self, key: str) -> ObjectWriter:
        return self.inner.writer(key)

    def list(self, prefix: str, after: str = "") -> Iterator[ObjectInfo]:
        return self.inner.list(prefix, after)

    def list_folders(self, prefix: str) -> Iterator[str]:
        return self.inner.list_folders(prefix)

    def stat(self, key: str) -> ObjectInfo | None:
        return self.inner.stat(key)

    def delete(self, key: str) -> None:
        self.inner.delete(key)

    def now_ms(self) -> int:
        return self.inner.now_ms()
