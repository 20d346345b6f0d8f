"""A store on a mount with a name cache: reads wait for objects that are listed but hidden by the cache."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeVar

from sparklog.errors import NotFound, Unavailable
from sparklog.storage.retries import Backoff, Timer
from sparklog.storage.store import ObjectInfo, Store
from sparklog.storage.wrapper_store import WrapperStore

T = TypeVar("T")


def patient(store: Store, clock: Timer | None) -> Store:
    """Return a `PatientStore` if the store may hide names and a clock is given. Otherwise, return the store."""
    return store if clock is None or not store.hides_names else PatientStore(store, clock)


class PatientStore(WrapperStore):
    """Waits up to 90 s for an object that is listed but hidden, and then raises `Unavailable`.

    A name cache hides an object if its name, or the name of a parent directory, was looked up before it was created.
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
            # Read the object again, to raise the store's own error, which describes the missing object.
            return self.inner.get(key, start, length)
        return data

    def stat(self, key: str) -> ObjectInfo | None:
        return self._awaited(key, lambda: self.inner.stat(key))

    def obstacles(self, folder: str) -> Iterator[str]:
        return self.inner.obstacles(folder)

    def _awaited(self, key: str, read: Callable[[], T | None]) -> T | None:
        backoff: Backoff | None = None
        while (found := read()) is None and any(info.key == key for info in self.inner.list(key)):
            backoff = backoff or Backoff(self._clock)
            if not backoff.wait():
                problem = f"{key} in {self.location} is listed but cannot be read: a name cache may hide it"
                raise Unavailable(f"{problem}; try again")
        return found
