"""A store as a machine sees it whose caches hide names: from reads and from listings."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator

from sparklog.errors import NotFound
from sparklog.storage.store import ObjectInfo, Store
from sparklog.testing.faulty_store import FaultyStore


class HidingStore(FaultyStore):
    """Hides what `hides` says, or the keys in a collection, which may change."""

    def __init__(
        self, inner: Store, hides: Callable[[str], bool] | Collection[str], sleep: Callable[[float], object]
    ) -> None:
        super().__init__(inner, lambda call: None, sleep)
        self.hides = hides if callable(hides) else hides.__contains__

    def get(self, key: str, start: int = 0, length: int | None = None) -> bytes:
        if self.hides(key):
            raise NotFound(f"{key}: not seen here yet")
        return super().get(key, start, length)

    def stat(self, key: str) -> ObjectInfo | None:
        return None if self.hides(key) else super().stat(key)

    def list(self, prefix: str, after: str = "") -> Iterator[ObjectInfo]:
        return (info for info in super().list(prefix, after) if not self.hides(info.key))
