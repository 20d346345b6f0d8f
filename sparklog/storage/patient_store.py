"""A store on a mount that caches names: reads wait for objects that a listing shows and the cache denies."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeVar

from sparklog.errors import NotFound, Unavailable
from sparklog.storage.retries import Backoff, Timer
from sparklog.storage.store import ObjectInfo, Store
from sparklog.storage.wrapper_store import WrapperStore

T = TypeVar("T")


def patient(store: Store, clock: Timer | None) -> Store:
    """Return the store, as a `PatientStore` if it may hide names and there is a clock to wait by."""
    return store if clock is None or not store.hides_names else PatientStore(store, clock)


class PatientStore(WrapperStore):
    """Wait up to 90 s for an object that is listed and denied, then raise `Unavailable`.

    A cache of names denies an object if the name, or that of a folder above it, was looked up before it was created.
    """

    def __init__(self, inner: Store, clock: Timer) -> None:
        super().__init__(inner)
        self._clock = clock

    def get(self, key: str, start: int = 0, length: int | None = None) -> bytes:
        def read() -> bytes | None:
            try:
                return self.inner.get(key, start, length)
            except NotFound:
                return None

        if (data := self._awaited(key, read)) is None:
            # Once more: the error says which object it is, and why it is not there.
            return self.inner.get(key, start, length)
        return data

    def stat(self, key: str) -> ObjectInfo | None:
        return self._awaited(key, lambda: self.inner.stat(key))

    def obstacles(self, folder: str) -> Iterator[str]:
        return self.inner.obstacles(folder)

    def _awaited(self, key: str, look: Callable[[], T | None]) -> T | None:
        backoff: Backoff | None = None
        while (found := look()) is None and any(info.key == key for info in self.inner.list(key)):
            backoff = backoff or Backoff(self._clock)
            if not backoff.wait():
                problem = f"{key} in {self.location} is listed and cannot be read: a cache of names may hide it"
                raise Unavailable(f"{problem}; try again")
        return found
