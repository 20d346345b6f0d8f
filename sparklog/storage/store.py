"""`Store`, the base class of object stores, and the keys of objects.

An object consists of bytes under a key. Objects are immutable: `create` and closed writers create objects, and `delete`
deletes them. A key consists of parts that are joined by `/`. Parts contain letters, digits and `._-%=+@,`, which file
systems, object stores and URLs accept without escaping. The names of temporary files start with `~`, so they never
collide with a key.

| key                         | kind         |
|-----------------------------|--------------|
| `_root.json`                | `root`       |
| `.../_log/<20 digits>.json` | `commit`     |
| `.../_log/checkpoints/...`  | `checkpoint` |
| `<topic>/append/...`        | `append`     |
| `<topic>/sealed/...`        | `sealed`     |
| other keys                  | `other`      |

To implement a custom store, derive it from `Store`, and test it with `sparklog.testing.store_tests.StoreTests`.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from sparklog.errors import BadRequest, Corrupt, NotFound, Unavailable
from sparklog.limits import DEFAULTS, Limits

MAX_PART = 255
"""Maximum size of a part in bytes, which is the limit of all common file systems."""
MAX_KEY = 1024
"""Maximum size of a key in bytes, which is the limit of S3, GCS and Azure."""
MAX_DOCUMENT = 256 << 20
"""Maximum size of a JSON object in bytes, which is enough for a few million slices.

sparklog does not write larger objects.
"""

PROBE_FOLDER = "_probe"
"""Prefix of the objects of probes (`sparklog.storage.probe`)."""

_PART = re.compile(r"[A-Za-z0-9._\-%=+@,]{1,255}\Z")
_KEY = re.compile(r"[A-Za-z0-9._\-%=+@,]{1,255}(?:/[A-Za-z0-9._\-%=+@,]{1,255})*\Z")
_KINDS = re.compile(
    r"(?:.*/)?(?:(?P<commit>_log/[0-9]{20}\.json)|(?P<checkpoint>_log/checkpoints/[^/]+)|(?P<append>append/[^/]+)"
    r"|(?P<sealed>sealed/.+))\Z"
)


def is_part(name: str) -> bool:
    return _PART.match(name) is not None and name not in (".", "..")


def check_key(key: str) -> str:
    """Validate a key. Raises `BadRequest` if it is absolute, outside the root, too long, or has invalid characters."""
    has_dots = (key[:1] == "." or "/." in key) and any(part in (".", "..") for part in key.split("/"))
    if _KEY.match(key) is not None and len(key) <= MAX_KEY and not has_dots:
        return key
    raise BadRequest(f"{_show(key)} is not a key: {_reason(key)}")


def is_key(key: str) -> bool:
    """Return True if a key is valid. Listings skip objects with other names."""
    try:
        return check_key(key) == key
    except BadRequest:
        return False


def check_prefix(prefix: str, *, folder: bool = False) -> str:
    """Validate a prefix of keys. If `folder` is True, the prefix must be empty or end in `/`."""
    if folder and prefix and not prefix.endswith("/"):
        raise BadRequest(f"{_show(prefix)} is not a directory prefix: it must be empty or end in '/'")
    whole = prefix.removesuffix("/")
    # The last part may be "." or "..", because names may start with dots.
    folders, slash, start = whole.rpartition("/")
    if prefix.endswith("/"):
        check_key(whole)
    elif slash:
        check_key(folders)
    if start and _PART.match(start) is None:
        raise BadRequest(f"{_show(prefix)} is not a key prefix: {_reason(prefix)}")
    return prefix


def key_kind(key: str) -> str:
    """Return the kind of a key, according to the table above.

    Stores in `sparklog.testing` count requests and fail by kind.
    """
    if key == "_root.json":
        return "root"
    match = _KINDS.match(key)
    return (match.lastgroup or "other") if match else "other"


def check_range(key: str, start: int, length: int | None) -> None:
    """Raise `BadRequest` if a byte range is invalid."""
    if start < 0 or (length is not None and length < 0):
        raise BadRequest(f"cannot read {key} from byte {start} for {length} bytes: both numbers must not be negative")


def check_document(key: str, size: int) -> None:
    """Raise `Corrupt` if a JSON object is larger than `MAX_DOCUMENT`, so that parsing it cannot exhaust the memory."""
    if size > MAX_DOCUMENT and key.endswith(".json"):
        raise Corrupt(f"expected JSON of at most {MAX_DOCUMENT} bytes, found {size} bytes; restore it", file=key)


def missing_object(what: str) -> NotFound:
    return NotFound(f"no object {what}: it was never written, or has been deleted")


def existing_object(key: str, location: str) -> Unavailable:
    return Unavailable(f"{key} already exists in {location}: write the data again with a new name")


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
    return "a key consists of letters, digits and ._-%=+@, joined by '/'"


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """An object in a listing, with its size in bytes and its modification time according to the store's clock."""

    key: str
    size: int
    modified_ms: int


class ObjectWriter(Protocol):
    """A writer of a new object.

    Once `close` returns, the object exists completely and durably. After `discard`, no object exists.
    """

    def write(self, data: bytes | bytearray | memoryview) -> None: ...
    def close(self) -> None: ...
    def discard(self) -> None: ...


class Store(ABC):
    """A store of objects. Stores are thread-safe. They are picklable, or raise an error when they are pickled.

    The commit protocol relies on three guarantees. A store that does not have them must not be opened:

    * `create` is exclusive. If several callers, in any processes, create the same key, exactly one succeeds.
    * Objects that `create` or `ObjectWriter.close` has acknowledged survive a power loss.
    * Objects become visible atomically.

    Stores raise these errors: `NotFound` if a key to read does not exist, `Corrupt` if a `.json` object is too large,
    `Unavailable` if the store failed (**the effect of a create is then unknown**), and `BadRequest` if a key is invalid
    or its path is not an object.
    """

    limits: Limits = DEFAULTS
    """Limits of the root in this store. They are pickled with the store."""

    @property
    @abstractmethod
    def location(self) -> str:
        """Return the path or URL of the store, for messages."""

    @abstractmethod
    def get(self, key: str, start: int = 0, length: int | None = None) -> bytes:
        """Return bytes `[start, start + length)` of an object, or fewer bytes if the object ends earlier."""

    def read(self, key: str, start: int, length: int) -> memoryview:
        """Return the same bytes as `get`, as a view. The store may reuse the memory of the view once it is released."""
        return memoryview(self.get(key, start, length))

    @abstractmethod
    def create(self, key: str, data: bytes) -> bool:
        """Create an object durably if it does not exist.

        Returns True if this call created the object, and False if it exists. False is not conclusive: after a lost
        response, the object may be the caller's own, and after a conflict, it may not exist. The caller must read the
        object (`sparklog.log.journal.create_object`).
        """

    @abstractmethod
    def writer(self, key: str) -> ObjectWriter:
        """Start to write a data object. Its key must not be used by anything else."""

    @abstractmethod
    def list(self, prefix: str, after: str = "") -> Iterator[ObjectInfo]:
        """Yield the objects whose keys start with `prefix` and are greater than `after`, in key order.

        If a mount lists an object, but its name cache hides it, the object has size 0 and the current time.
        """

    @abstractmethod
    def list_folders(self, prefix: str) -> Iterator[str]:
        """Yield the sorted names of the directories directly below `prefix` (`""` or ending in `/`)."""

    @abstractmethod
    def stat(self, key: str) -> ObjectInfo | None:
        """Return the size and time of an object, or None if it does not exist."""

    @abstractmethod
    def delete(self, key: str) -> None:
        """Delete an object if it exists."""

    @abstractmethod
    def now_ms(self) -> int:
        """Return the time of the store's clock in ms since the epoch. A request may be sent.

        The difference between this time and the `modified_ms` of an object must not exceed the age of the object.
        Therefore, if times are coarse, the clock is slow rather than fast, so that nothing expires early.
        """

    def limits_to_pickle(self) -> dict[str, Any] | None:
        """Return the limits to pickle in addition to the location, or None if the limits are the defaults."""
        return None if self.limits == DEFAULTS else {"limits": self.limits}

    # Capabilities, whose defaults stores may override.

    def delete_many(self, keys: Iterable[str]) -> None:
        """Delete objects if they exist, in order or in parallel. After an error, any of them may have been deleted."""
        for key in keys:
            self.delete(key)

    def overwrite(self, key: str, parts: Iterable[bytes]) -> None:
        """Replace a damaged object, for a repair.

        Readers see the old or the new bytes. By default, the object is briefly missing.
        """
        self.delete(key)
        if not self.create(key, b"".join(parts)):
            raise existing_object(key, self.location)

    @property
    def needs_probe(self) -> bool:
        """Return True if the guarantees must be tested before the first commit, or False if they always hold."""
        return True

    @property
    def probe_rounds(self) -> int:
        """Return the number of races of a probe. The number is 1 if the operating system decides races. In this case,
        each process runs a probe.
        """
        return 12

    @property
    def server(self) -> str:
        """Return the endpoint of requests if `location` does not contain it.

        A probe result is valid for one combination of location and server.
        """
        return ""

    @property
    def clock_step_ms(self) -> int:
        """Return the resolution of the store's times in ms, for example 1000 if times are rounded to seconds."""
        return 1

    @property
    def writable(self) -> bool:
        """Return False if this process cannot write (a snapshot, a read-only mount, another user's files)."""
        return True

    @property
    def parallel_reads(self) -> int:
        """Return the number of requests to make in parallel, which is above 1 if each request costs a round trip."""
        return 1

    @property
    def hides_names(self) -> bool:
        """Return True if a mount with a name cache may hide new objects of other hosts for a while."""
        return False

    @property
    def lists_after(self) -> bool:
        """Return True if the cost of a listing after a key does not depend on the objects before the key."""
        return True

    def self_check(self) -> None:
        """Check properties that a probe cannot test. Raises `BadRequest` if the store cannot contain a root."""
        return

    def settle(self, key: str) -> None:
        """Make an object durable that is readable, but that its creator may not have made durable yet."""
        return

    def temporary_files(self, folder: str, *, deep: bool = True) -> Iterator[ObjectInfo]:
        """Yield the temporary files below a directory in any order. If `deep` is False, yield only the files that are
        directly in the directory. `delete_temporary` accepts the results.
        """
        return iter(())

    def obstacles(self, folder: str) -> Iterator[str]:
        """Yield the names in a directory that are not objects but prevent objects from being created, such as
        directories and FIFOs.
        """
        return iter(())

    def delete_temporary(self, key: str) -> None:
        """Delete a file that `temporary_files` listed, if it exists. The `close` of its writer will fail."""
        raise BadRequest(f"{key} is not the name of a temporary file")

    def link(self, file: str, inode: int, key: str) -> bool:
        """Link a local file outside the store to a key, durably and without a copy.

        Returns False without creating an object if this is not possible: if the file is on another file system, links
        are not allowed, or the file no longer has this inode.
        """
        return False
