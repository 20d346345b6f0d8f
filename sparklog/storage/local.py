"""Objects as files below a directory: exclusive by link(), durable by fsync.

Creating an object is: temporary file in the same directory, write, fsync, link() to the final name, fsync the
directory, unlink the temporary name. Each step has its reason:

* Only link() is both exclusive and whole: O_EXCL leaves a torn object after a crash, rename() overwrites. A place
  without link() (FAT, many FUSE mounts of object stores, some SMB shares) is refused, never worked around.
* A name is no more durable than its directory and that directory's own name: all up to the root's parent are fsynced
  (once per process where nothing was created).
* On NFS an answer may be lost and link() say "exists" of our own link: two links to the temporary file mean success.
* A caller who is told "exists" acts on that object, so its name is made durable before the answer is given.
* On macOS fsync does not reach the platter: F_FULLFSYNC does.

An object is a regular file: links, FIFOs and devices in the directory are passed over, never opened or
followed. One link counts: directly in the root, to a folder outside of it (a topic that was moved to another disk).
"""

from __future__ import annotations

import errno
import os
import stat as stat_module
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, NoReturn, TypeVar

from sparklog.errors import BadRequest, NotFound
from sparklog.storage.durable_files import NEW_FILE, full_fsync, start_writeback
from sparklog.storage.folder_store import FolderItem, FolderStore, temporary_name
from sparklog.storage.fork_safety import ForkLock
from sparklog.storage.store import (
    ObjectInfo,
    ObjectWriter,
    check_document,
    check_key,
    check_prefix,
    check_range,
    existing_object,
    is_part,
)
from sparklog.storage.system_errors import mount_and_type, refuse, store_error

_WRITE_BUFFER = 64 << 10
"""What is larger goes to the file without another copy."""
_WRITEBACK_BYTES = 16 << 20
"""A file being written is handed to the disk in pieces of this size, while its writer goes on."""
_READ_AT_ONCE = 1 << 30
_POOLED_BYTES = 256 << 10
_Bytes = TypeVar("_Bytes", bytes, memoryview)
_KNOWN_FOLDERS = 10_000
_ATTEMPTS = 100
_NFS_REMAINS = ".nfs0"
"""A network client renames files that are deleted while open to .nfs0*: they are no objects."""
_ONE_MACHINE = {"bcachefs", "btrfs", "ext2", "ext3", "ext4", "f2fs", "jfs", "overlay", "ramfs", "tmpfs", "xfs", "zfs"}
"""Types of file systems of which one machine is the only user, so that nothing it is told of names is old."""
_NO_LINK = {errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EXDEV}


class LocalStore(FolderStore):
    """A directory of a file system that has link() and fsync. Picklable; safe to use from threads and after a fork.

    `durable=False` skips every fsync and nothing else: for tests and scratch data, which a power loss may take.
    """

    probe_rounds = 1
    """link() is exclusive or missing."""

    def __init__(self, path: str | os.PathLike[str], *, durable: bool = True) -> None:
        self._path = os.path.abspath(os.fspath(path))
        self._above_keys = os.path.join(self._path, "")
        self._durable = durable
        self._lock = ForkLock()
        self._synced: dict[str, int] = {}

    def __getstate__(self) -> tuple[str, bool, dict[str, Any] | None]:
        return self._path, self._durable, self.limits_to_pickle()

    def __setstate__(self, state: tuple[str, bool, dict[str, Any] | None]) -> None:
        self.__init__(state[0], durable=state[1])  # type: ignore[misc]
        self.__dict__.update(state[2] or {})

    def __repr__(self) -> str:
        return f"LocalStore({self._path!r}{'' if self._durable else ', durable=False'})"

    @property
    def location(self) -> str:
        return self._path

    @property
    def durable(self) -> bool:
        return self._durable

    @property
    def writable(self) -> bool:
        return not os.path.isdir(self._path) or os.access(self._path, os.W_OK | os.X_OK)

    def get(self, key: str, start: int = 0, length: int | None = None) -> bytes:
        return self._part(key, start, length, read_at)

    def read(self, key: str, start: int, length: int) -> memoryview:
        return self._part(key, start, length, _read_pooled)

    def _part(self, key: str, start: int, length: int | None, read: Callable[[int, int, int], _Bytes]) -> _Bytes:
        check_range(key, start, length)
        path = self._file(key)
        try:
            # O_NONBLOCK: a FIFO would hold the reader until another process writes.
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError as error:
            self._fail(error, "read", key)
        try:
            status = os.fstat(fd)
            if not stat_module.S_ISREG(status.st_mode):
                raise NotFound(f"no object {key} in {self._path}: what is there is not a regular file")
            # Never trust a length from the caller beyond what the file holds: it may come from damaged metadata.
            available = max(0, status.st_size - start)
            if length is None:
                check_document(key, available)
            return read(fd, start, available if length is None else min(length, available))
        except OSError as error:
            self._fail(error, "read", key)
        finally:
            os.close(fd)

    def stat(self, key: str) -> ObjectInfo | None:
        status = self._lstat(self._file(key), key)
        return None if status is None or not stat_module.S_ISREG(status.st_mode) else _info(key, status)

    def create(self, key: str, data: bytes) -> bool:
        path = self._file(key)
        if (status := self._lstat(path, key)) is not None:
            if not stat_module.S_ISREG(status.st_mode):
                raise BadRequest(
                    f"cannot create {key} in {self._path}: what is there is not a regular file; move it away"
                )
            self._settle(path, key)
            return False
        fd, temporary = self._temporary(path, key)
        try:
            try:
                _write(fd, data)
                self._sync(fd)
            finally:
                os.close(fd)
            return self._publish(temporary, path, key)
        except OSError as error:
            self._fail(error, "create", key)
        finally:
            self._unlink(temporary)

    def overwrite(self, key: str, parts: Iterable[bytes]) -> None:
        path = self._file(key)
        fd, temporary = self._temporary(path, key)
        try:
            try:
                for part in parts:
                    _write(fd, part)
                self._take_over(fd, path, key)
                self._sync(fd)
            finally:
                os.close(fd)
            os.replace(temporary, path)
        except OSError as error:
            self._fail(error, "write", key)
        finally:
            self._unlink(temporary)
        self._settle(path, key)

    def _take_over(self, fd: int, path: str, key: str) -> None:
        """Give a new file the mode and, where this user may, the owner of the one in its place, else the folder's."""
        status = self._lstat(path, key)
        owner = os.stat(os.path.dirname(path)) if status is None else status
        with suppress(PermissionError):
            os.fchown(fd, owner.st_uid, owner.st_gid)
        if status is not None:
            os.fchmod(fd, stat_module.S_IMODE(status.st_mode))

    def writer(self, key: str) -> ObjectWriter:
        path = self._file(key)
        fd, temporary = self._temporary(path, key)
        return LocalWriter(self, key, path, fd, temporary)

    def settle(self, key: str) -> None:
        self._settle(self._file(key), key)

    def link(self, file: str, inode: int, key: str) -> bool:
        path = self._file(key)
        self._make_folders(os.path.dirname(path), key)
        try:
            with open(file, "rb") as source:
                self._sync(source.fileno())  # who wrote it may not have waited for the disk
            os.link(os.path.realpath(file), path)
            if os.stat(path).st_ino != inode:
                os.unlink(path)
                return False
        except OSError:
            return False
        self._settle(path, key)
        return True

    def _remove(self, key: str) -> bool:
        path = os.path.join(self._path, key)
        try:
            os.unlink(path)
            return True
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ENOTDIR) or os.path.isdir(path):
                return False
            self._fail(error, "delete", key)

    @property
    def hides_names(self) -> bool:
        return mount_and_type(self._path)[1] not in _ONE_MACHINE

    def now_ms(self) -> int:
        # The clock that stamps files, which on a network file system is the server's.
        folder = self._path
        while not os.path.isdir(folder) and os.path.dirname(folder) != folder:
            folder = os.path.dirname(folder)
        path = os.path.join(folder, temporary_name())
        try:
            fd = os.open(path, NEW_FILE, 0o666)
            try:
                return os.fstat(fd).st_mtime_ns // 1_000_000
            finally:
                os.close(fd)
                self._unlink(path)
        except OSError as error:
            self._fail(error, "read the clock of", "")

    def names(self) -> Sequence[str]:
        """Return the names of all that is directly in the directory, keys or not; none without a directory."""
        try:
            return sorted(os.listdir(self._path))
        except FileNotFoundError:
            return []
        except OSError as error:
            self._fail(error, "list", "")

    def obstacles(self, folder: str) -> Iterator[str]:
        check_prefix(folder, folder=True)
        items = self._sorted_items(folder)
        return (item.name for item in items if not (item.is_file or item.name.startswith(_NFS_REMAINS)))

    def self_check(self) -> None:
        """Check link counts, and that a directory can be fsynced. `BadRequest` naming the mount; it leaves nothing."""
        missing = [self._path]
        while not os.path.isdir(missing[-1]):
            missing.append(os.path.dirname(missing[-1]))
        try:
            self._check_links()
        except BadRequest:
            for folder in missing[:-1]:
                with suppress(OSError):
                    os.rmdir(folder)
            raise

    def _check_links(self) -> None:
        fd, temporary = self._temporary(os.path.join(self._path, "probe"), "")
        os.close(fd)
        linked = os.path.join(self._path, temporary_name())
        try:
            os.link(temporary, linked)
            # The new name: mounts that cache attributes still have the old count of the other.
            links = os.stat(linked).st_nlink
            if links != 2:
                refuse(self._path, f"a linked file reports {links} links instead of 2")
            self._sync_folder(self._path)
        except OSError as error:
            if error.errno in _NO_LINK:
                refuse(self._path, f"it has no hard links (link() says {os.strerror(error.errno or 0)})")
            self._fail(error, "probe", "")
        finally:
            self._unlink(temporary)
            self._unlink(linked)

    def _file(self, key: str) -> str:
        return self._above_keys + check_key(key)

    def _lstat(self, path: str, key: str) -> os.stat_result | None:
        try:
            return os.lstat(path)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            self._fail(error, "look at", key)

    def _fail(self, error: OSError, action: str, key: str) -> NoReturn:
        raise store_error(error, action, key, self._path) from error

    def _temporary(self, path: str, key: str) -> tuple[int, str]:
        """Open a new file next to `path`, whose folder is made, again if a concurrent delete removes it."""
        folder = os.path.dirname(path)
        temporary = f"{folder}/{temporary_name()}"
        for attempt in range(_ATTEMPTS):
            try:
                return os.open(temporary, NEW_FILE, 0o666), temporary
            except OSError as error:
                if attempt == _ATTEMPTS - 1 or not isinstance(error, FileNotFoundError):
                    self._fail(error, "create", key)
                self._make_folders(folder, key)
        raise AssertionError("unreachable")

    def _make_folders(self, folder: str, key: str) -> None:
        missing = []
        while not os.path.isdir(folder):
            missing.append(folder)
            folder = os.path.dirname(folder)
            if os.path.dirname(folder) == folder:
                break
        for path in reversed(missing):
            try:
                os.mkdir(path)
                self._sync_folder(os.path.dirname(path), must=len(path) > len(self._path))
            except FileExistsError:
                if os.path.isfile(path):
                    raise BadRequest(f"cannot create {key or 'a folder'} in {self._path}: {path} is a file") from None
            except FileNotFoundError:
                return  # a folder above was pruned meanwhile: the caller tries again
            except OSError as error:
                self._fail(error, "create", key)

    def _publish(self, temporary: str, path: str, key: str) -> bool:
        """Give a finished temporary file its name, exclusively and durably. False: the name is taken."""
        try:
            os.link(temporary, path)
        except OSError as error:
            if os.stat(temporary).st_nlink < 2:
                if error.errno == errno.EEXIST:
                    self._settle(path, key)
                    return False
                if error.errno in _NO_LINK:
                    refuse(self._path, f"it has no hard links (link() says {os.strerror(error.errno)})")
                raise
        self._settle(path, key)
        return True

    def _settle(self, path: str, key: str) -> None:
        """Make the name `path` durable, and once per process the names of the folders above it."""
        if not self._durable:
            return
        folder = os.path.dirname(path)
        try:
            inode = self._sync_folder(folder)
            if self._synced.get(folder) == inode:
                return
            above = folder
            while len(above) >= len(self._path):
                above = os.path.dirname(above)
                self._sync_folder(above, must=len(above) >= len(self._path))
            with self._lock:
                if len(self._synced) >= _KNOWN_FOLDERS:
                    self._synced.clear()
                self._synced[folder] = inode
        except FileNotFoundError:
            return  # deleted meanwhile, and its folder with it
        except OSError as error:
            self._fail(error, "make durable", key)

    def _sync_folder(self, folder: str, *, must: bool = True) -> int:
        """fsync a directory; its inode. `must=False` for the root's parent, which may be another user's."""
        try:
            fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except PermissionError:
            if must:
                raise
            return -1
        try:
            self._sync(fd)
            return os.fstat(fd).st_ino
        except OSError as error:
            if error.errno in (errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS):
                refuse(self._path, "a directory cannot be fsynced there")
            raise
        finally:
            os.close(fd)

    @staticmethod
    def _unlink(path: str) -> None:
        """Clean up after the outcome is decided: a failure leaves a temporary file for the vacuum, no more."""
        with suppress(OSError):
            os.unlink(path)

    def _sync(self, fd: int) -> None:
        if self._durable:
            full_fsync(fd)

    def _remove_folder(self, folder: str) -> bool:
        path = os.path.join(self._path, folder)
        try:
            os.rmdir(path)
        except OSError:
            return False
        with self._lock:
            self._synced.pop(path, None)
        return True

    def _is_folder(self, entry: os.DirEntry[str], folder: str) -> bool:
        """True for a directory, and in the root itself for a link to one outside."""
        if folder or not entry.is_symlink():
            return entry.is_dir(follow_symlinks=False)
        target, root = os.path.realpath(entry.path), os.path.realpath(self._path)
        return os.path.isdir(target) and os.path.commonpath((target, root)) not in (target, root)

    def _scan(self, folder: str, wants: Callable[[str], bool] = is_part) -> Sequence[FolderItem]:
        try:
            with os.scandir(self._above_keys + folder) as entries:
                return [self._item(entry, folder) for entry in entries if wants(entry.name)]
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            self._fail(error, "list", folder)

    def _item(self, entry: os.DirEntry[str], folder: str) -> FolderItem:
        is_file = entry.is_file(follow_symlinks=False) and not entry.name.startswith(_NFS_REMAINS)
        return FolderItem(entry.name, self._is_folder(entry, folder), is_file, partial(self._look, entry))

    def _look(self, entry: os.DirEntry[str], key: str) -> ObjectInfo | None:
        try:
            return _info(key, entry.stat(follow_symlinks=False))
        except FileNotFoundError:
            return None  # deleted since the directory was read, or denied by a cache of names
        except OSError as error:
            self._fail(error, "list", key)


class LocalWriter:
    """A data object: a temporary file until `close` has made it durable and given it its name."""

    def __init__(self, store: LocalStore, key: str, path: str, fd: int, temporary: str) -> None:
        self._store = store
        self._key = key
        self._path = path
        self._temporary = temporary
        self._file = open(fd, "wb", buffering=_WRITE_BUFFER)  # noqa: SIM115
        self._written = 0
        self._handed_over = 0

    def write(self, data: bytes | bytearray | memoryview) -> None:
        try:
            self._file.write(data)
        except OSError as error:
            self._store._fail(error, "write", self._key)
        self._written += len(data)
        if self._store.durable and self._written - self._handed_over >= _WRITEBACK_BYTES:
            start_writeback(self._file.fileno(), self._handed_over, self._written - self._handed_over)
            self._handed_over = self._written

    def close(self) -> None:
        if self._file.closed:
            return
        try:
            try:
                self._file.flush()
                self._store._sync(self._file.fileno())
            finally:
                with suppress(OSError):
                    self._file.close()
            created = self._store._publish(self._temporary, self._path, self._key)
        except OSError as error:
            self._store._fail(error, "write", self._key)
        finally:
            self._store._unlink(self._temporary)
        if not created:
            raise existing_object(self._key, self._store.location)

    def discard(self) -> None:
        if not self._file.closed:
            with suppress(OSError):
                self._file.close()
            self._store._unlink(self._temporary)


def _info(key: str, status: os.stat_result) -> ObjectInfo:
    return ObjectInfo(key, status.st_size, status.st_mtime_ns // 1_000_000)


def read_at(fd: int, start: int, length: int) -> bytes:
    """`length` bytes from `start`, or up to the end; one read() gives at most 2 GiB and may give less."""
    parts = []
    while length and (data := os.pread(fd, min(length, _READ_AT_ONCE), start)):
        parts.append(data)
        start += len(data)
        length -= len(data)
    return b"".join(parts)


def _read_pooled(fd: int, start: int, length: int) -> memoryview:
    """Read the same into memory of Arrow's pool, which keeps large blocks: new ones cost page faults each time."""
    if length < _POOLED_BYTES:
        return memoryview(read_at(fd, start, length))
    import pyarrow as pa

    view = memoryview(pa.allocate_buffer(length)).cast("B")
    filled = 0
    while filled < length and (count := os.preadv(fd, [view[filled : filled + _READ_AT_ONCE]], start + filled)):
        filled += count
    return view[:filled].toreadonly()


def _write(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
