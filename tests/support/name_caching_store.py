"""A store as a client of a network file system sees it: names are remembered for a while, and the memory is believed.

NFS, SMB and many FUSE mounts answer questions about names from a cache of the client. Two kinds are modelled:

| kind                     | remembered                                | until                                         |
|--------------------------|-------------------------------------------|-----------------------------------------------|
| per name (`name_ms`)     | "no such name", and the attributes of one | that long after the answer, name by name      |
| per folder (`folder_ms`) | listings, and every "no such name" in it  | that long after the folder was first asked of |

Data never comes from a cache: a name that is looked up and exists is read from the store itself (close-to-open).
What this client creates or deletes itself it knows at once. A create that meets an existing object changes nothing
of what is remembered: "exists, then absent" is what such a mount answers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from sparklog.errors import NotFound
from sparklog.storage.store import ObjectInfo, ObjectWriter, Store, check_prefix
from sparklog.testing.wrapper_stores import WrapperStore

__all__ = ["NameCachingStore"]


@dataclass
class _Folder:
    """The remembered state of one folder, believed before `expires_ms`."""

    expires_ms: int
    absent: set[str] = field(default_factory=set)
    files: dict[str, ObjectInfo] | None = None
    """Keys directly in it, once it was listed: a name that is not among them is absent."""
    folders: set[str] | None = None


@dataclass
class _Cache:
    """All that one client remembers."""

    clock: Callable[[], int]
    name_ms: int
    folder_ms: int
    absent: dict[str, int] = field(default_factory=dict)
    """Name to when its absence is no longer believed."""
    attributes: dict[str, tuple[ObjectInfo, int]] = field(default_factory=dict)
    folders: dict[str, _Folder] = field(default_factory=dict)

    def folder(self, name: str) -> _Folder | None:
        """The folder as it is remembered; asked of for the first time (or again), its time begins."""
        if self.folder_ms <= 0:
            return None
        found = self.folders.get(name)
        if found is None or self.clock() >= found.expires_ms:
            found = self.folders[name] = _Folder(self.clock() + self.folder_ms)
        return found

    def is_absent(self, key: str) -> bool:
        """True if the client answers "no such name" without asking."""
        if self.clock() < self.absent.get(key, 0):
            return True
        folder = self.folder(_folder_of(key))
        return folder is not None and (key in folder.absent or (folder.files is not None and key not in folder.files))

    def missed(self, key: str) -> None:
        """The store has answered that there is no such name."""
        self.absent[key] = self.clock() + self.name_ms
        self.attributes.pop(key, None)
        folder = self.folder(_folder_of(key))
        if folder is not None:
            folder.absent.add(key)
            if folder.files is not None:
                folder.files.pop(key, None)

    def met(self, info: ObjectInfo) -> None:
        """The name exists: this client made it, or has asked."""
        self.absent.pop(info.key, None)
        self.attributes[info.key] = (info, self.clock() + self.name_ms)
        folder = self.folder(_folder_of(info.key))
        if folder is not None:
            folder.absent.discard(info.key)
            if folder.files is not None:
                folder.files[info.key] = info


class NameCachingStore(WrapperStore):
    """One client of `inner`, which other clients share. Times are in ms of `clock`; 0 remembers nothing of that kind.

    Not for threads of one client.
    """

    hides_names = True

    def __init__(self, inner: Store, clock: Callable[[], int], *, name_ms: int = 0, folder_ms: int = 0) -> None:
        super().__init__(inner)
        self._cache = _Cache(clock, name_ms, folder_ms)

    def through(self, inner: Store) -> NameCachingStore:
        """Another process on the same machine: a connection of its own, what is remembered in common."""
        other = NameCachingStore(inner, self._cache.clock)
        other._cache = self._cache
        return other

    def get(self, key: str, start: int = 0, length: int | None = None) -> bytes:
        if self._cache.is_absent(key):
            raise NotFound(f"no object {key} in {self.location}, as this client remembers it")
        try:
            return self.inner.get(key, start, length)
        except NotFound:
            self._cache.missed(key)
            raise

    def stat(self, key: str) -> ObjectInfo | None:
        if self._cache.is_absent(key):
            return None
        known = self._cache.attributes.get(key)
        if known is not None and self._cache.clock() < known[1]:
            return known[0]
        found = self.inner.stat(key)
        if found is None:
            self._cache.missed(key)
        else:
            self._cache.met(found)
        return found

    def create(self, key: str, data: bytes) -> bool:
        created = self.inner.create(key, data)
        if created:
            self._cache.met(ObjectInfo(key, len(data), self.inner.now_ms()))
        return created

    def writer(self, key: str) -> ObjectWriter:
        return _Writer(self._cache, key, self.inner)

    def list(self, prefix: str, after: str = "") -> Iterator[ObjectInfo]:
        top = _folder_of(check_prefix(prefix))
        found = self._remembered(top)
        return iter([info for info in found if info.key.startswith(prefix) and info.key > after])

    def list_folders(self, prefix: str) -> Iterator[str]:
        folder = self._cache.folder(check_prefix(prefix, folder=True).rstrip("/"))
        if folder is None:
            return self.inner.list_folders(prefix)
        if folder.folders is None:
            folder.folders = set(self.inner.list_folders(prefix))
        return iter(sorted(folder.folders, key=lambda name: name + "/"))

    def delete(self, key: str) -> None:
        self.inner.delete(key)
        self._cache.missed(key)

    def _remembered(self, top: str) -> list[ObjectInfo]:
        """All objects below a folder, those of each folder as they were when it was listed last."""
        fresh = list(self.inner.list(top + "/" if top else ""))
        if self._cache.folder_ms <= 0:
            return fresh
        contents: dict[str, dict[str, ObjectInfo]] = {top: {}}
        for info in fresh:
            contents.setdefault(_folder_of(info.key), {})[info.key] = info
        for name, files in contents.items():
            folder = self._cache.folder(name)
            if folder is not None and folder.files is None:
                # A listing names what it finds, also what a look-up of before did not find.
                folder.files = dict(files)
                folder.absent -= set(files)
            elif folder is not None and folder.files is not None:
                contents[name] = folder.files
        return sorted((info for files in contents.values() for info in files.values()), key=lambda info: info.key)


class _Writer:
    """A data object of this client: it knows the name once it is closed."""

    def __init__(self, cache: _Cache, key: str, inner: Store) -> None:
        self._cache = cache
        self._key = key
        self._store = inner
        self._size = 0
        self._inner = inner.writer(key)

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self._inner.write(data)
        self._size += len(data)

    def close(self) -> None:
        self._inner.close()
        self._cache.met(ObjectInfo(self._key, self._size, self._store.now_ms()))

    def discard(self) -> None:
        self._inner.discard()


def _folder_of(key: str) -> str:
    return key.rpartition("/")[0]
