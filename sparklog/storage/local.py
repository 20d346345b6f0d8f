"""Objects as files below a directory: link() makes creation exclusive, and fsync makes objects durable.

To create an object, the store creates a temporary file in the same directory, writes it, syncs it, links it to its
final name with link(), syncs the directory, and unlinks the temporary name:

* Only link() is both exclusive and atomic. O_EXCL leaves an incomplete object after a crash, and rename() overwrites. A
  file system without link() (FAT, many FUSE mounts of object stores, some SMB shares) is rejected.
* A name is only as durable as its directory and the name of the directory. Therefore all directories up to the root's
  parent are synced. Existing directories are synced once per process.
* On NFS, if a response is lost, link() reports that our own link exists. Two links to the temporary file show that
  link() succeeded.
* Callers rely on objects that are reported to exist, so the name of an existing object is made durable first.
* On macOS, fsync does not reach the medium, so F_FULLFSYNC is used.
* On ext4, XFS and tmpfs, `create` uses O_TMPFILE instead of a temporary name. This saves two changes of the directory,
  and a crash leaves no file. If O_TMPFILE or linking its file is not supported, a temporary name is used.

Objects are regular files. Links, FIFOs and devices in the directory are skipped, and never opened or followed. The only
exception is a link in the root itself to a directory outside the root, for a topic that was moved to another disk.
"""

from __future__ import annotations

import errno
import os
import stat as stat_module
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import cached_property, partial
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
from sparklog.storage.system_errors import mount_and_type, reject_location, store_error

_WRITE_BUFFER = 64 << 10
"""Size of the write buffer. Larger writes are passed to the file without another copy."""
_WRITEBACK_BYTES = 16 << 20
"""Number of written bytes after which writeback to disk is started, while the writer continues."""
_READ_AT_ONCE = 1 << 30
_POOLED_BYTES = 256 << 10
_Bytes = TypeVar("_Bytes", bytes, memoryview)
_KNOWN_FOLDERS = 10_000
_ATTEMPTS = 100
_NFS_PREFIX = ".nfs0"
"""Prefix of the names to which NFS clients rename open files that are deleted. Such files are not objects."""
_ONE_MACHINE = {"bcachefs", "btrfs", "ext2", "ext3", "ext4", "f2fs", "jfs", "overlay", "ramfs", "tmpfs", "xfs", "zfs"}
"""Types of file systems that only one host uses, so that name lookups are never stale."""
_UNNAMED_FILES = {"ext4", "tmpfs", "xfs"}
"""Types of file systems on which `create` uses O_TMPFILE."""
_NO_UNNAMED_FILES = {errno.EISDIR, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EINVAL}
"""Errors of an open() with O_TMPFILE that is not supported in the directory or by the kernel."""
_OPEN_FILES = "/proc/self/fd/"
_NO_LINK = {errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EXDEV}
_NO_UNNAMED_LINK = {errno.ENOENT, *_NO_LINK}
"""Errors of a link() of an unnamed file that is not supported, or whose empty directory another process has deleted. A
temporary name prevents the deletion.
"""


class LocalStore(FolderStore):
    """A directory of a file system that supports link() and fsync.

    Picklable, and safe to use from threads and after a fork.

    `durable=False` skips fsync, for tests and for scratch data that may be lost in a power failure.
    """

    probe_rounds = 1
    """One race is sufficient, because link() is either exclusive or not supported."""

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
            # Without O_NONBLOCK, opening a FIFO would block until another process opens it for writing.
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError as error:
            self._fail(error, "read", key)
        try:
            status = os.fstat(fd)
            if not stat_module.S_ISREG(status.st_mode):
                raise NotFound(f"no object {key} in {self._path}: the path exists, but is not a regular file")
            # Limit the caller's length to the size of the file, because the length may come from corrupt metadata.
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
                    f"cannot create {key} in {self._path}: the path exists, but is not a regular file; move it away"
                )
            self._sync_name(path, key)
            return False
        return self._create_file(path, key, data, unnamed=self._supports_unnamed_files)

    def _create_file(self, path: str, key: str, data: bytes, unnamed: bool) -> bool:
        fd, temporary = self._temporary(path, key, unnamed=unnamed)
        try:
            _write(fd, data)
            self._sync(fd)
            return self._publish(temporary, path, key)
        except OSError as error:
            if unnamed and error.errno in _NO_UNNAMED_LINK:
                return self._create_file(path, key, data, unnamed=False)
            self._fail(error, "create", key)
        finally:
            os.close(fd)
            self._unlink(temporary)

    def overwrite(self, key: str, parts: Iterable[bytes]) -> None:
        path = self._file(key)
        fd, temporary = self._temporary(path, key)
        try:
            try:
                for part in parts:
                    _write(fd, part)
                self._copy_owner(fd, path, key)
                self._sync(fd)
            finally:
                os.close(fd)
            os.replace(temporary, path)
        except OSError as error:
            self._fail(error, "write", key)
        finally:
            self._unlink(temporary)
        self._sync_name(path, key)

    def _copy_owner(self, fd: int, path: str, key: str) -> None:
        """Copy the mode and owner of the replaced file to the new file. If there is no replaced file, copy the
        directory's owner.

        Missing permissions are ignored.
        """
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
        self._sync_name(self._file(key), key)

    def link(self, file: str, inode: int, key: str) -> bool:
        path = self._file(key)
        self._make_folders(os.path.dirname(path), key)
        try:
            with open(file, "rb") as source:
                self._sync(source.fileno())  # the writer of the file may not have synced the file
            os.link(os.path.realpath(file), path)
            if os.stat(path).st_ino != inode:
                os.unlink(path)
                return False
        except OSError:
            return False
        self._sync_name(path, key)
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

    @cached_property
    def hides_names(self) -> bool:
        return mount_and_type(self._path)[1] not in _ONE_MACHINE

    @cached_property
    def _supports_unnamed_files(self) -> bool:
        is_possible = hasattr(os, "O_TMPFILE") and os.path.isdir(_OPEN_FILES)
        return is_possible and mount_and_type(self._path)[1] in _UNNAMED_FILES

    def now_ms(self) -> int:
        # Use the modification time of a new file, which on a network file system is the server's time.
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
        """Return all names in the directory, including names that are not keys. The result is empty if the directory
        does not exist.
        """
        try:
            return sorted(os.listdir(self._path))
        except FileNotFoundError:
            return []
        except OSError as error:
            self._fail(error, "list", "")

    def obstacles(self, folder: str) -> Iterator[str]:
        check_prefix(folder, folder=True)
        items = self._sorted_items(folder)
        return (item.name for item in items if not (item.is_file or item.name.startswith(_NFS_PREFIX)))

    def self_check(self) -> None:
        """Check link counts and the fsync of directories. Raises `BadRequest`, with the mount, if a check fails.
        Created files are deleted.
        """
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
            # Check the new name, because mounts with attribute caches may still return the old link count for the other
            # name.
            links = os.stat(linked).st_nlink
            if links != 2:
                reject_location(self._path, f"a linked file reports {links} links instead of 2")
            self._sync_folder(self._path)
        except OSError as error:
            if error.errno in _NO_LINK:
                reject_location(
                    self._path, f"it does not support hard links (link() fails: {os.strerror(error.errno or 0)})"
                )
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
            self._fail(error, "stat", key)

    def _fail(self, error: OSError, action: str, key: str, *, may_be_written: bool = False) -> NoReturn:
        raise store_error(error, action, key, self._path, may_be_written=may_be_written) from error

    def _temporary(self, path: str, key: str, *, unnamed: bool = False) -> tuple[int, str]:
        """Create a temporary file next to `path`, and its directory.

        Repeat this if concurrent deletes remove the directory. If `unnamed` is true, the file has no name if possible.
        The returned path of an unnamed file is valid until the file is closed.
        """
        folder = os.path.dirname(path)
        temporary = f"{folder}/{temporary_name()}"
        for attempt in range(_ATTEMPTS):
            try:
                if unnamed:
                    fd = os.open(folder, os.O_TMPFILE | os.O_WRONLY | os.O_CLOEXEC, 0o666)
                    return fd, f"{_OPEN_FILES}{fd}"
                return os.open(temporary, NEW_FILE, 0o666), temporary
            except OSError as error:
                if unnamed and error.errno in _NO_UNNAMED_FILES:
                    unnamed = False
                    continue
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
                    raise BadRequest(
                        f"cannot create {key or 'a directory'} in {self._path}: {path} is a file"
                    ) from None
            except FileNotFoundError:
                return  # another process has deleted a parent directory, so the caller retries
            except OSError as error:
                self._fail(error, "create", key)

    def _publish(self, temporary: str, path: str, key: str) -> bool:
        """Link a complete temporary file to its final name, exclusively and durably.

        Return False if the final name exists.
        """
        is_unnamed = temporary.startswith(_OPEN_FILES)
        try:
            if is_unnamed:
                # Without a directory, Python links the symbolic link in /proc instead of the file.
                os.link(temporary, path, src_dir_fd=0, follow_symlinks=True)
            else:
                os.link(temporary, path)
        except OSError as error:
            if os.stat(temporary).st_nlink < (1 if is_unnamed else 2):
                if error.errno == errno.EEXIST:
                    self._sync_name(path, key)
                    return False
                if is_unnamed and error.errno in _NO_UNNAMED_LINK:
                    raise  # the caller repeats the create with a temporary name
                if error.errno in _NO_LINK:
                    reject_location(
                        self._path, f"it does not support hard links (link() fails: {os.strerror(error.errno)})"
                    )
                # A network file system may return the link count from a cache.
                self._fail(error, "create", key, may_be_written=self.hides_names)
        self._sync_name(path, key)
        return True

    def _sync_name(self, path: str, key: str) -> None:
        """Make the name `path` durable and, once per process, the names of its parent directories."""
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
            return  # another process has deleted the file and its directory
        except OSError as error:
            self._fail(error, "make durable", key, may_be_written=True)

    def _sync_folder(self, folder: str, *, must: bool = True) -> int:
        """Sync a directory, and return its inode.

        If `must` is False and permission is denied, return -1. `must` is False for the root's parent, which may belong
        to another user.
        """
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
                reject_location(self._path, "its directories do not support fsync")
            raise
        finally:
            os.close(fd)

    @staticmethod
    def _unlink(path: str) -> None:
        """Delete the name of a temporary file that is no longer needed. If this fails, the vacuum deletes it later."""
        if not path.startswith(_OPEN_FILES):
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
        """Return True for a directory and, in the root itself, for a link to a directory outside the root."""
        if folder or not entry.is_symlink():
            return entry.is_dir(follow_symlinks=False)
        target, root = os.path.realpath(entry.path), os.path.realpath(self._path)
        return os.path.isdir(target) and os.path.commonpath((target, root)) not in (target, root)

    def _scan(self, folder: str, accepts: Callable[[str], bool] = is_part) -> Sequence[FolderItem]:
        try:
            with os.scandir(self._above_keys + folder) as entries:
                return [self._item(entry, folder) for entry in entries if accepts(entry.name)]
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            self._fail(error, "list", folder)

    def _item(self, entry: os.DirEntry[str], folder: str) -> FolderItem:
        is_file = entry.is_file(follow_symlinks=False) and not entry.name.startswith(_NFS_PREFIX)
        return FolderItem(entry.name, self._is_folder(entry, folder), is_file, partial(self._stat, entry))

    def _stat(self, entry: os.DirEntry[str], key: str) -> ObjectInfo | None:
        try:
            return _info(key, entry.stat(follow_symlinks=False))
        except FileNotFoundError:
            return None  # the file was deleted after the listing, or a name cache hides it
        except OSError as error:
            self._fail(error, "list", key)


class LocalWriter:
    """Writer of a data object. It writes a temporary file, which `close` makes durable and links to the final name."""

    def __init__(self, store: LocalStore, key: str, path: str, fd: int, temporary: str) -> None:
        self._store = store
        self._key = key
        self._path = path
        self._temporary = temporary
        self._file = open(fd, "wb", buffering=_WRITE_BUFFER)  # noqa: SIM115
        self._written = 0
        self._written_back = 0

    def write(self, data: bytes | bytearray | memoryview) -> None:
        try:
            self._file.write(data)
        except OSError as error:
            self._store._fail(error, "write", self._key)
        self._written += len(data)
        if self._store.durable and self._written - self._written_back >= _WRITEBACK_BYTES:
            start_writeback(self._file.fileno(), self._written_back, self._written - self._written_back)
            self._written_back = self._written

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
    """Return `length` bytes from `start`, or up to the end of the file. A single read() returns at most 2 GiB."""
    parts = []
    while length and (data := os.pread(fd, min(length, _READ_AT_ONCE), start)):
        parts.append(data)
        start += len(data)
        length -= len(data)
    return b"".join(parts)


def _read_pooled(fd: int, start: int, length: int) -> memoryview:
    """Read into memory of Arrow's pool, which reuses large blocks, because each new block would cause page faults."""
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
