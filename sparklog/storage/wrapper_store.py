"""Base classes of stores that wrap another store."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, TypeVar

from sparklog.limits import Limits
from sparklog.storage.store import ObjectInfo, ObjectWriter, Store

T = TypeVar("T")
BULK = 1000
"""Maximum number of keys in a bulk delete, as in S3."""


def _inner(name: str) -> Any:
    """Return a property with the value of `inner`."""
    return property(lambda self: getattr(self.inner, name))


class WrapperStore(Store):
    """Forwards all calls to `inner`. Subclasses override single methods, or override `request`, which all methods call.

    Limits and most capabilities are those of `inner`. Exceptions are temporary files and links, which would bypass the
    wrapper.
    """

    location = _inner("location")
    server = _inner("server")
    writable = _inner("writable")
    needs_probe = _inner("needs_probe")
    probe_rounds = _inner("probe_rounds")
    clock_step_ms = _inner("clock_step_ms")
    parallel_reads = _inner("parallel_reads")
    lists_after = _inner("lists_after")
    hides_names = _inner("hides_names")

    def __init__(self, inner: Store) -> None:
        self.inner = inner

    def request(self, verb: str, key: str, send: Callable[[], T]) -> T:
        """Return the result of `send`. `verb` is the name of the store method, and `key` is the key or prefix of the
        request.
        """
        return send()

    @property
    def limits(self) -> Limits:
        return self.inner.limits

    @limits.setter
    def limits(self, limits: Limits) -> None:
        self.inner.limits = limits

    def get(self, key: str, start: int = 0, length: int | None = None) -> bytes:
        return self.request("get", key, lambda: self.inner.get(key, start, length))

    def create(self, key: str, data: bytes) -> bool:
        return self.request("create", key, lambda: self.inner.create(key, data))

    def overwrite(self, key: str, parts: Iterable[bytes]) -> None:
        self.request("overwrite", key, lambda: self.inner.overwrite(key, parts))

    def writer(self, key: str) -> ObjectWriter:
        return self.request("writer", key, lambda: self.inner.writer(key))

    def list(self, prefix: str, after: str = "") -> Iterator[ObjectInfo]:
        return self.request("list", prefix, lambda: self.inner.list(prefix, after))

    def list_folders(self, prefix: str) -> Iterator[str]:
        return self.request("list_folders", prefix, lambda: self.inner.list_folders(prefix))

    def stat(self, key: str) -> ObjectInfo | None:
        return self.request("stat", key, lambda: self.inner.stat(key))

    def delete(self, key: str) -> None:
        self.request("delete", key, lambda: self.inner.delete(key))

    def delete_many(self, keys: Iterable[str]) -> None:
        """Delete objects. If `inner` supports bulk deletes, one request is sent per 1,000 keys. Otherwise, one request
        is sent per key.
        """
        if not _deletes_in_bulk(self.inner):
            super().delete_many(keys)
            return
        names = list(keys)
        for first in range(0, len(names), BULK):
            some = names[first : first + BULK]
            self.request("delete_many", some[0], partial(self.inner.delete_many, some))

    def now_ms(self) -> int:
        return self.request("now_ms", "", self.inner.now_ms)


class WrapperWriter:
    """Forwards the calls of a data object's writer. Derived classes override them."""

    def __init__(self, store: Any, key: str, inner: ObjectWriter) -> None:
        self._store = store
        self._key = key
        self._inner = inner

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self._inner.write(data)

    def close(self) -> None:
        self._inner.close()

    def discard(self) -> None:
        self._inner.discard()


def _deletes_in_bulk(store: Store) -> bool:
    while isinstance(store, WrapperStore) and type(store).delete_many is WrapperStore.delete_many:
        store = store.inner
    return type(store).delete_many is not Store.delete_many
