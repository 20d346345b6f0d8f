"""Keys: what names an object may have, and what kind of object a key names.

A key is what a file system, an object store and a URL all take without escaping: parts of letters, digits and
`._-%=+@,` joined by `/`. `~` is kept for temporary files of the local store, so no key can collide with one.

| key                                       | kind         |
|-------------------------------------------|--------------|
| `_root.json`                              | `root`       |
| `<log>/_log/<20 digits>.json`             | `commit`     |
| `<log>/_log/checkpoints/...`              | `checkpoint` |
| `<topic>/append/...`                      | `append`     |
| `<topic>/sealed/...`                      | `sealed`     |
| anything else                             | `other`      |

The `Store` protocol: all that sparklog asks of the place where objects live.

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

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from sparklog.errors import BadRequest

MAX_PART = 255
"""Bytes of one part: the limit of every common file system."""
MAX_KEY = 1024
"""Bytes of a key: the limit of S3, GCS and Azure."""
MAX_DOCUMENT = 256 << 20
"""Bytes of a JSON object: some millions of slices. What is longer was not written by sparklog, and is not read."""
DOCUMENT_SUFFIX = ".json"

KEY_KINDS = ("root", "commit", "checkpoint", "append", "sealed", "other")

_PART = re.compile(r"[A-Za-z0-9._\-%=+@,]{1,255}\Z")
_KEY = re.compile(r"[A-Za-z0-9._\-%=+@,]{1,255}(?:/[A-Za-z0-9._\-%=+@,]{1,255})*\Z")
_KINDS = re.compile(
    r"(?:.*/)?(?:(?P<commit>_log/[0-9]{20}\.json)|(?P<checkpoint>_log/checkpoints/[^/]+)|(?P<append>append/[^/]+)"
    r"|(?P<sealed>sealed/.+))\Z"
)


def is_part(name: str) -> bool:
    """Whether `name` can be one part of a key."""
    return _PART.match(name) is not None and name not in (".", "..")


def check_key(key: str) -> str:
    """The key itself, if it is one. `BadRequest` if it is absolute, climbs out, is too long or has odd characters."""
    if _KEY.match(key) is not None and len(key) <= MAX_KEY and not _has_dots(key):
        return key
    raise BadRequest(f"not a key: {_show(key)}; {_reason(key)}")


def check_prefix(prefix: str, *, folder: bool = False) -> str:
    """The prefix itself: the beginning of a key. With `folder`, it must be empty or end in `/`."""
    if folder and prefix and not prefix.endswith("/"):
        raise BadRequest(f"not a folder prefix: {_show(prefix)}; it must be empty or end in '/'")
    whole = prefix.removesuffix("/")
    # The last part may be any beginning of a name, also "." or "..": a name may begin with dots.
    folders, slash, start = whole.rpartition("/")
    if prefix.endswith("/"):
        check_key(whole)
    elif slash:
        check_key(folders)
    if start and _PART.match(start) is None:
        raise BadRequest(f"not a prefix of keys: {_show(prefix)}; {_reason(prefix)}")
    return prefix


def key_kind(key: str) -> str:
    """Which of `KEY_KINDS` a key is; wrappers count and inject faults by it."""
    if key == "_root.json":
        return "root"
    found = _KINDS.match(key)
    return (found.lastgroup or "other") if found else "other"


def _has_dots(key: str) -> bool:
    return "." in key and any(part in (".", "..") for part in key.split("/"))


def _show(key: str) -> str:
    return repr(key if len(key) <= 80 else key[:77] + "...")


def _reason(key: str) -> str:
    if not key:
        return "it is empty"
    if len(key.encode("utf-8", "replace")) > MAX_KEY:
        return f"it is longer than {MAX_KEY} bytes"
    if key.startswith("/"):
        return "it must be relative to the root"
    for part in key.split("/"):
        if part in ("", ".", ".."):
            return "it must not have empty, '.' or '..' parts"
        if len(part) > MAX_PART:
            return f"a part is longer than {MAX_PART} characters"
    return "allowed are letters, digits and ._-%=+@, joined by '/'"


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
