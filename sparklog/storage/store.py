"""`Store`, the base class of everything that holds objects, and the keys that name them.

An object is bytes under a key. Objects never change once they exist: `create` and a closed writer make them, `delete`
removes them. A key is made of parts joined by `/`, each of letters, digits and `._-%=+@,`: what a file system, an
object store and a URL all take without escaping. `~` begins the names of temporary files, so no key collides with one.

| key                         | kind         |
|-----------------------------|--------------|
| `_root.json`                | `root`       |
| `.../_log/<20 digits>.json` | `commit`     |
| `.../_log/checkpoints/...`  | `checkpoint` |
| `<topic>/append/...`        | `append`     |
| `<topic>/sealed/...`        | `sealed`     |
| anything else               | `other`      |

A store of your own: derive from `Store`, and run `sparklog.testing.store_tests.StoreTests` against it.
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
"""Bytes of one part: the limit of every common file system."""
MAX_KEY = 1024
"""Bytes of a key: the limit of S3, GCS and Azure."""
MAX_DOCUMENT = 256 << 20
"""Bytes of a JSON object: some millions of slices. What is longer was not written by sparklog, and is not read."""

PROBE_FOLDER = "_probe"
"""What a probe writes is below it (`sparklog.storage.probe`)."""

_PART = re.compile(r"[A-Za-z0-9._\-%=+@,]{1,255}\Z")
_KEY = re.compile(r"[A-Za-z0-9._\-%=+@,]{1,255}(?:/[A-Za-z0-9._\-%=+@,]{1,255})*\Z")
_KINDS = re.compile(
    r"(?:.*/)?(?:(?P<commit>_log/[0-9]{20}\.json)|(?P<checkpoint>_log/checkpoints/[^/]+)|(?P<append>append/[^/]+)"
    r"|(?P<sealed>sealed/.+))\Z"
)


def is_part(name: str) -> bool:
    return _PART.match(name) is not None and name not in (".", "..")


def check_key(key: str) -> str:
    """Return the key. `BadRequest` if it is absolute, climbs out, is too long or has odd characters."""
    has_dots = (key[:1] == "." or "/." in key) and any(part in (".", "..") for part in key.split("/"))
    if _KEY.match(key) is not None and len(key) <= MAX_KEY and not has_dots:
        return key
    raise BadRequest(f"not a key: {_show(key)}; {_reason(key)}")


def is_key(key: str) -> bool:
    """True if the text is a key: listings leave out objects that other programs have named."""
    try:
        return check_key(key) == key
    except BadRequest:
        return False


def check_prefix(prefix: str, *, folder: bool = False) -> str:
    """Return the prefix, the beginning of a key. With `folder`, it must be empty or end in `/`."""
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
    """Return the kind of a key, by the table above: the stores of `sparklog.testing` count and fail by it."""
    if key == "_root.json":
        return "root"
    match = _KINDS.match(key)
    return (match.lastgroup or "other") if match else "other"


def check_range(key: str, start: int, length: int | None) -> None:
    """Raise `BadRequest` for what is not a range of bytes."""
    if start < 0 or (length is not None and length < 0):
        raise BadRequest(f"cannot read {key} from byte {start} for {length} bytes: neither may be negative")


def check_document(key: str, size: int) -> None:
    """Raise `Corrupt` for JSON that sparklog cannot have written: it would fill the memory."""
    if size > MAX_DOCUMENT and key.endswith(".json"):
        raise Corrupt(f"expected JSON of at most {MAX_DOCUMENT} bytes, found {size}; restore it", file=key)


def missing_object(what: str) -> NotFound:
    return NotFound(f"no object {what}: it was never written, or has been deleted")


def existing_object(key: str, location: str) -> Unavailable:
    return Unavailable(f"{key} exists already in {location}: write it again under a new name")


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


class Store(ABC):
    """A place of objects. Safe to use from threads; picklable, or says that it is not.

    The commit protocol rests on three promises. A store that cannot keep them must refuse to open:

    * `create` is exclusive: of any number of callers, in any processes, exactly one succeeds for a key.
    * What `create` or `ObjectWriter.close` has acknowledged survives power loss.
    * An object is visible whole or not at all.

    Errors: `NotFound` (get, of a key that does not exist), `Corrupt` (get, of a `.json` far longer than any),
    `Unavailable` (the store failed; **the effect of a create is then unknown**), `BadRequest` (a key that is no key, or
    where something is that is no object).
    """

    limits: Limits = DEFAULTS
    """Of the root that is kept here, for all that hold this store; a store that is pickled takes them along."""

    @property
    @abstractmethod
    def location(self) -> str:
        """Path or URL of the store, for messages."""

    @abstractmethod
    def get(self, key: str, start: int = 0, length: int | None = None) -> bytes:
        """Return bytes `[start, start + length)` of an object; fewer only if the object ends earlier."""

    def read(self, key: str, start: int, length: int) -> memoryview:
        """Return the same of a data object as a view, whose memory a store may use again when it is let go."""
        return memoryview(self.get(key, start, length))

    @abstractmethod
    def create(self, key: str, data: bytes) -> bool:
        """Create an object durably if there is none. True: this call created it. False: the key existed already.

        False proves nothing to the caller: after a lost answer the object may be ours, after a conflict there may be
        none. It has to look (`sparklog.log.journal.create_object`).
        """

    @abstractmethod
    def writer(self, key: str) -> ObjectWriter:
        """Begin a data object under a key that nothing else uses."""

    @abstractmethod
    def list(self, prefix: str, after: str = "") -> Iterator[ObjectInfo]:
        """Yield the objects whose key starts with `prefix` and is greater than `after`, in key order.

        An object that a mount lists and whose name its cache denies has size 0 and the time of now.
        """

    @abstractmethod
    def list_folders(self, prefix: str) -> Iterator[str]:
        """Yield the names of the folders directly below `prefix` (`""` or ending in `/`), in order."""

    @abstractmethod
    def stat(self, key: str) -> ObjectInfo | None:
        """Return the object's size and time, None if it does not exist."""

    @abstractmethod
    def delete(self, key: str) -> None:
        """Remove an object; no error if there is none."""

    @abstractmethod
    def now_ms(self) -> int:
        """Return the store's clock, ms since the epoch; may cost a request.

        An object is at least as old as this time and its `modified_ms` say: where times are coarse, the clock is
        late rather than early, and nothing runs out early.
        """

    def limits_to_pickle(self) -> dict[str, Any] | None:
        """Return the state that a pickled store has besides its location: its limits, if they are not the defaults."""
        return None if self.limits == DEFAULTS else {"limits": self.limits}

    # Capabilities: what a store may do better than these defaults.

    def delete_many(self, keys: Iterable[str]) -> None:
        """Remove objects, in this order or at once; any may be gone if it fails. No error for what does not exist."""
        for key in keys:
            self.delete(key)

    def overwrite(self, key: str, parts: Iterable[bytes]) -> None:
        """Replace an object, damaged, for a repair. Readers see old bytes or new ones; by default none for a moment."""
        self.delete(key)
        if not self.create(key, b"".join(parts)):
            raise existing_object(key, self.location)

    @property
    def needs_probe(self) -> bool:
        """True if the promises must be tried before the first commit (`probe`); False if they hold by construction."""
        return True

    @property
    def probe_rounds(self) -> int:
        """Races that a probe runs. 1 where the system decides: then each process probes, else the verdict is kept."""
        return 12

    @property
    def server(self) -> str:
        """Endpoint of the requests, where `location` does not name it. A verdict holds for both."""
        return ""

    @property
    def clock_step_ms(self) -> int:
        """Steps of the store's times: 1, or 1000 where they are whole seconds."""
        return 1

    @property
    def writable(self) -> bool:
        """False where this process may read and not write: a snapshot, a read-only mount, another user's files."""
        return True

    @property
    def parallel_reads(self) -> int:
        """Requests worth making at once. More than 1 where each request costs a round trip."""
        return 1

    @property
    def hides_names(self) -> bool:
        """True if this machine may not see for a while what another one has created: on mounts that cache names."""
        return False

    @property
    def lists_after(self) -> bool:
        """True if a list that begins after a key costs what it names. Else it costs what is listed before, too."""
        return True

    def self_check(self) -> None:
        """Check what a probe cannot see through keys. `BadRequest` if the store cannot hold a root."""
        return

    def settle(self, key: str) -> None:
        """Make an object durable that can be read before its creator has made it so."""
        return

    def temporary_files(self, folder: str, *, deep: bool = True) -> Iterator[ObjectInfo]:
        """Yield unfinished files below a folder (`deep=False`: in it), for `delete_temporary` alone, in no order."""
        return iter(())

    def obstacles(self, folder: str) -> Iterator[str]:
        """Yield names directly below a folder that are of no object and keep one from being created: folders, FIFOs."""
        return iter(())

    def delete_temporary(self, key: str) -> None:
        """Remove a file that `temporary_files` named; no error if there is none. Its writer then fails to close."""
        raise BadRequest(f"{key} is not the name of a temporary file")

    def link(self, file: str, inode: int, key: str) -> bool:
        """Make a local file outside the store an object as well, durably and without a copy.

        False, and there is no object, where that cannot be: the file is on another file system, links are not
        allowed, or the file of that name no longer has this inode.
        """
        return False
