"""The `Store` protocol: all that sparklog asks of the place where objects live.

An object is bytes under a key. Keys are relative, `/`-separated, without empty, `.` or `..` parts. Objects never change
once they exist: `create` and a closed writer make them, `delete` ends them, nothing rewrites them.

Three promises carry the whole commit protocol, and a store that cannot keep them must refuse to open:

* `create` is exclusive: of any number of callers, in any processes, exactly one succeeds for a key.
* What `create` or `ObjectWriter.close` has acknowledged survives power loss.
* An object is visible whole or not at all.

Errors: `NotFound` (get, of a key that does not exist), `Corrupt` (get, of a `.json` far longer than any), `Unavailable`
(the store failed; **the effect of a create is then unknown**), `BadRequest` (a key that is no key, or where something
lies that is no object).

Attributes that a store may have beside the protocol: `needs_probe` (False: its promises hold by construction, see
`probe.py`), `self_check()` (what a probe cannot see through keys), `parallel_reads` (more than 1: each request costs a
round trip, so reading ahead in parallel pays), `settle(key)` (an object can be read before its creator has been told
that it is durable: this makes it so), `temporary_files(folder)` and `delete_temporary(key)` (what writers
leave behind that no listing shows), `link(file, inode, key)` (a local file outside the store becomes the object `key`
as well, durably and without a copy; False, and nothing is there, where that cannot be: it lies on another file system,
links are not allowed, or the file of that name no longer has this inode).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol, runtime_checkable


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """One object in a listing: `size` in bytes, `modified_ms` by the store's clock (ms since the epoch)."""

    key: str
    size: int
    modified_ms: int


class ObjectWriter(Protocol):
    """A new object being written. It exists, whole and durable, once `close` returns; `discard` leaves nothing."""

    def write(self, data: bytes | bytearray | memoryview) -> None: ...

    def close(self) -> None: ...

    def discard(self) -> None: ...


@runtime_checkable
class Store(Protocol):
    """Where objects live. Implementations are picklable (or say so) and safe to use from threads."""

    @property
    def location(self) -> str:
        """What a person calls this place (a path or URL), for messages."""
        ...

    def get(self, key: str, start: int = 0, length: int | None = None) -> bytes:
        """Bytes `[start, start + length)` of an object, or to its end; shorter only if the object ends earlier."""
        ...

    def create(self, key: str, data: bytes) -> bool:
        """Create-if-absent, durably. True: this call created it. False: the key existed already."""
        ...

    def writer(self, key: str) -> ObjectWriter:
        """Begin a data object under a key nobody else uses (unique by construction)."""
        ...

    def list(self, prefix: str, after: str = "") -> Iterator[ObjectInfo]:
        """Objects whose key starts with `prefix` and is greater than `after`, in key order."""
        ...

    def list_folders(self, prefix: str) -> Iterator[str]:
        """Names of the folders directly below `prefix` (`""` or ending in `/`), in order, without the prefix."""
        ...

    def stat(self, key: str) -> ObjectInfo | None:
        """The object's size and time, or None if it does not exist."""
        ...

    def delete(self, key: str) -> None:
        """Remove an object; no error if there is none."""
        ...

    def now_ms(self) -> int:
        """The store's own clock, ms since the epoch (may cost a request)."""
        ...
