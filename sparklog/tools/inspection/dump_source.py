"""One file that `dump-log` looks into, wherever it lies, and the files beside it."""

from __future__ import annotations

from dataclasses import dataclass

from sparklog.errors import NotFound
from sparklog.storage import Store

MAX_INT = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Source:
    """An object of a store. `shown`: its path as the caller gave it; `absolute`: as Kafka's tool names it in errors."""

    store: Store
    key: str
    shown: str
    absolute: str

    @property
    def name(self) -> str:
        return self.key.rpartition("/")[2]

    @property
    def stem(self) -> str:
        """The name up to its first dot: a segment's base offset."""
        return self.name.partition(".")[0]

    def size(self) -> int:
        """Bytes. `NotFound` if it is gone."""
        info = self.store.stat(self.key)
        if info is None:
            raise NotFound(f"there is no file {self.shown}")
        return info.size

    def read(self, position: int = 0, length: int | None = None) -> bytes:
        """Bytes from `position`; fewer than `length` only at its end."""
        return self.store.get(self.key, position, length)

    def beside(self, suffix: str) -> Source:
        """The file of the same segment with another suffix."""
        old, new = self.name, f"{self.stem}.{suffix}"
        shown, absolute = (path.removesuffix(old) + new for path in (self.shown, self.absolute))
        return Source(self.store, self.key.removesuffix(old) + new, shown, absolute)

    def exists(self) -> bool:
        return self.store.stat(self.key) is not None

    def as_records(self, size: int | None = None, start: int = 0, end: int = MAX_INT, name: str | None = None) -> str:
        """How Kafka's messages name a `.log`, or a part of it."""
        whole = self.size() if size is None else size
        return f"FileRecords(size={whole}, file={name or self.absolute}, start={start}, end={end})"
