"""Objects as files in HDFS, accessed with hdfs-native, without a JVM.

To create an object, the store creates a temporary file in the same directory, writes it, calls hsync, closes it, and
renames it without overwriting:

* Only a rename is both exclusive and atomic. A file that is created with its final name is visible before it is
  complete.
* A closed file may exist only in the memory of datanodes; hsync writes it to their disks. The namenode writes each name
  change to its journal before it responds.
* If the response to a rename is lost, hdfs-native retries the rename. Therefore, after any error of a rename, the store
  deletes the temporary file, which the namenode does only once. If the file still existed, the rename did not take
  effect and never will. Otherwise, the store compares the object with the written data.

If a namenode is in safe mode, for example after its start, requests are retried within the budget of
`sparklog.storage.retries`. The requests of a commit are not retried, because its caller reads the log between attempts.

hdfs-native's threads do not survive a fork. A child of a process that has used hdfs-native would hang, so it gets an
error instead. A pickled store contains only its URL. The user comes from the environment of each process: a Kerberos
ticket, or HADOOP_USER_NAME.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, NoReturn, TypeVar

import hdfs_native

from sparklog.errors import BadRequest, NotFound, SparklogError, Unavailable
from sparklog.storage.folder_store import FolderItem, FolderStore, temporary_name
from sparklog.storage.fork_safety import ForkGuard, ForkLock
from sparklog.storage.hdfs_errors import FAILURES, NOT_A_DIRECTORY, hdfs_error, is_busy, remote_error
from sparklog.storage.locations import StoreUrl, parse_url
from sparklog.storage.parallel_reads import map_requests
from sparklog.storage.retries import ONCE, RetryPolicy
from sparklog.storage.store import (
    ObjectInfo,
    ObjectWriter,
    check_document,
    check_key,
    check_range,
    existing_object,
    is_part,
)

T = TypeVar("T")

PARALLEL_REQUESTS = 8
DEFAULT_PORT = 8020
"""Default port of a namenode, as in Hadoop."""
_WRITE_BUFFER = 1 << 20
_ATTEMPTS = 5
_ONE_NAMENODE = {"dfs.client.failover.max.attempts": "5", "dfs.client.failover.sleep.max.millis": "5000"}
"""Fail after about 15 s if a host does not respond. The client's default, which is for failovers, is 3 minutes."""
_GUARD = ForkGuard("hdfs_native")


class HdfsStore(FolderStore):
    """A directory in HDFS: `hdfs://namenode:port/path` or `hdfs://nameservice/path`.

    Picklable, but not usable after a fork.
    """

    retry_policy = RetryPolicy()
    parallel_reads = PARALLEL_REQUESTS
    lists_after = False

    def __init__(self, url: str) -> None:
        self._url = parse_url(url)
        self._root = f"/{self._url.path}".rstrip("/")
        self._lock = ForkLock()
        self._opened: Any = None

    def __reduce__(self) -> tuple[object, ...]:
        return HdfsStore, (self.location,), self.limits_to_pickle()

    def __repr__(self) -> str:
        return f"HdfsStore({self.location!r})"

    @property
    def location(self) -> str:
        return str(self._url)

    @property
    def writable(self) -> bool:
        return ".snapshot" not in self._url.path.split("/")

    def get(self, key: str, start: int = 0, length: int | None = None) -> bytes:
        check_range(key, start, length)
        file = self._request("read", key, lambda: self._client.read(self._file(key)))
        # The client panics if a range exceeds the file, and the caller's length may come from corrupt metadata.
        available = max(0, len(file) - start)
        if length is None:
            check_document(key, available)
        nbytes = available if length is None else min(length, available)
        if not nbytes:
            return b""
        try:
            return bytes(self.retry_policy.call(lambda: file.read_range(start, nbytes), is_busy))
        except FAILURES as error:
            if self.stat(key) is None:
                raise NotFound(f"no object {key} in {self.location}: it has been deleted") from None
            self._fail(error, "read", key)

    def stat(self, key: str) -> ObjectInfo | None:
        status = self._status(self._file(key), key)
        return None if status is None or status.isdir else _info(key, status)

    def create(self, key: str, data: bytes) -> bool:
        status = self._status(self._file(key), key)
        if status is not None:
            return self._exists(key, status)
        file, temporary = self._temporary(key, ONCE)
        self._fill(file, temporary, key, [data])
        return self._publish(temporary, key, lambda: self.get(key) == data, ONCE)

    def overwrite(self, key: str, parts: Iterable[bytes]) -> None:
        file, temporary = self._temporary(key, ONCE)
        self._fill(file, temporary, key, list(parts))
        try:
            self._request("write", key, lambda: self._client.rename(temporary, self._file(key), overwrite=True), ONCE)
        except SparklogError:
            self._clean(temporary)
            raise

    def writer(self, key: str) -> ObjectWriter:
        check_key(key)
        file, temporary = self._temporary(key, self.retry_policy)
        return _HdfsWriter(self, key, file, temporary)

    def _remove(self, key: str) -> bool:
        return self._unlink(f"{self._root}/{key}", key)

    def delete_many(self, keys: Iterable[str]) -> None:
        names = [check_key(key) for key in keys]
        for _ in map_requests(self, lambda key: self._unlink(self._file(key), key), names):
            pass
        for key in {key.rpartition("/")[0]: key for key in names}.values():
            self._prune(key)

    def now_ms(self) -> int:
        # The modification time of a new file is the namenode's time.
        folder = self._root
        while folder and self._status(folder, "") is None:
            folder = folder.rpartition("/")[0]
        path = f"{folder}/{temporary_name()}"

        def file_time_ms() -> int:
            with suppress(FileExistsError):  # created by an earlier attempt
                self._client.create(path).close()
            return int(self._client.get_file_info(path).modification_time)

        try:
            return self._request("read the clock of", "", file_time_ms)
        finally:
            self._clean(path)

    def obstacles(self, folder: str) -> Iterator[str]:
        return self.list_folders(folder)

    @property
    def _client(self) -> Any:
        _GUARD.use()
        with self._lock:
            if self._opened is None:
                self._opened = _new_client(self._url)
            return self._opened

    def _request(self, action: str, key: str, send: Callable[[], T], policy: RetryPolicy | None = None) -> T:
        """Send a request with the retries of a policy. Return its response, or raise the corresponding error."""
        try:
            return (policy or self.retry_policy).call(send, is_busy)
        except FAILURES as error:
            self._fail(error, action, key)

    def _fail(self, error: Exception, action: str, key: str) -> NoReturn:
        raise hdfs_error(error, action, key, self._url) from None

    def _file(self, key: str) -> str:
        return f"{self._root}/{check_key(key)}"

    def _status(self, path: str, key: str) -> Any:
        try:
            return self._request("read", key, lambda: self._client.get_file_info(path or "/"))
        except NotFound:
            return None

    def _exists(self, key: str, status: Any) -> bool:
        """Return False, because the object to create already exists. Raises `BadRequest` if the path is a directory."""
        if status.isdir:
            raise BadRequest(f"cannot create {key} in {self.location}: a directory has this name; move it away")
        return False

    def _temporary(self, key: str, policy: RetryPolicy) -> tuple[Any, str]:
        """Create a temporary file next to a key, and missing directories with the permissions of their parents."""
        folder = self._file(key).rpartition("/")[0]
        for _ in range(_ATTEMPTS):
            path = f"{folder}/{temporary_name()}"
            # If the response to a create is lost, the client's retry fails because the file already exists. Try another
            # name.
            with suppress(FileExistsError):
                return self._create_file(path, key, policy), path
        raise Unavailable(
            f"cannot create {key} in {self.location}: HDFS reports that each new name exists; try again later"
        )

    def _create_file(self, path: str, key: str, policy: RetryPolicy) -> Any:
        try:
            return policy.call(lambda: self._client.create(path), is_busy)
        except (SparklogError, FileExistsError):
            raise
        except FAILURES as error:
            self._fail(error, "create", key)

    def _fill(self, file: Any, temporary: str, key: str, parts: Sequence[bytes | bytearray]) -> None:
        """Write the rest of a file, sync it to the disks of the datanodes, and close it.

        If this fails, delete the file.
        """
        try:
            for part in parts:
                if part:
                    file.write(part)
            file.hsync()
            file.close()
        except FAILURES as error:
            self._clean(temporary)
            self._fail(error, "create", key)

    def _publish(self, temporary: str, key: str, is_ours: Callable[[], bool], policy: RetryPolicy) -> bool:
        """Rename a temporary file to its final name. Return False if the final name exists.

        `is_ours` compares the existing object with the written data after an error.
        """
        path = self._file(key)
        try:
            policy.call(lambda: self._client.rename(temporary, path, overwrite=False), is_busy)
            return True
        except FAILURES as error:
            failure = error
        if self._unlink(temporary, key, policy):
            status = self._status(path, key)
            if status is not None:
                return self._exists(key, status)
            self._fail(failure, "create", key)
        with suppress(NotFound):
            return is_ours()
        raise Unavailable(
            f"cannot create {key} in {self.location}: its temporary file was deleted, or the response was lost"
        )

    def _unlink(self, path: str, key: str, policy: RetryPolicy | None = None) -> bool:
        """Delete a file or an empty directory. Return True if this call deleted it, and False if it is a directory that
        is not empty.
        """
        try:
            return bool((policy or self.retry_policy).call(lambda: self._client.delete(path, recursive=False), is_busy))
        except SparklogError:
            raise
        except FileNotFoundError:
            return False
        except FAILURES as error:
            name, message = remote_error(error)
            if name == "PathIsNotEmptyDirectoryException" or NOT_A_DIRECTORY in message:
                return False
            self._fail(error, "delete", key)

    def _clean(self, path: str) -> None:
        """Delete a temporary file that is no longer needed. If this fails, the vacuum deletes it later."""
        with suppress(*FAILURES):
            self._client.delete(path, recursive=False)

    def _remove_folder(self, folder: str) -> bool:
        try:
            self._client.delete(f"{self._root}/{folder}", recursive=False)
            return True
        except FAILURES:
            return False

    def _scan(self, folder: str, accepts: Callable[[str], bool] = is_part) -> Sequence[FolderItem]:
        path = f"{self._root}/{folder}".rstrip("/")
        try:
            statuses = self._request("list", folder, lambda: list(self._client.list_status(path or "/")))
        except NotFound:
            return []
        named = [(status.path.rpartition("/")[2], status) for status in statuses]
        return [
            FolderItem(name, status.isdir, not status.isdir, partial(_info, status=status))
            for name, status in named
            if status.path.rstrip("/") != path and accepts(name)  # the listing of a file contains the file itself
        ]


class _HdfsWriter:
    """Writer of a data object. It writes a temporary file, which `close` makes durable and renames."""

    def __init__(self, store: HdfsStore, key: str, file: Any, temporary: str) -> None:
        self._store = store
        self._key = key
        self._file = file
        self._temporary = temporary
        self._buffer = bytearray()
        self._written = 0

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self._file is None:
            raise ValueError(f"the writer of {self._key} is closed")
        self._buffer += data
        self._written += len(data)
        if len(self._buffer) >= _WRITE_BUFFER:
            full, self._buffer = self._buffer, bytearray()
            # Do not retry the write, because a part of the buffer may have been written.
            self._store._request("write", self._key, lambda: self._file.write(full), ONCE)

    def close(self) -> None:
        if self._file is None:
            return
        file, self._file = self._file, None
        store = self._store
        store._fill(file, self._temporary, self._key, [self._buffer])

        def is_ours() -> bool:
            info = store.stat(self._key)
            if info is None:
                raise NotFound(self._key)
            return info.size == self._written

        if not store._publish(self._temporary, self._key, is_ours, store.retry_policy):
            raise existing_object(self._key, store.location)

    def discard(self) -> None:
        if self._file is not None:
            self._file = None
            self._store._clean(self._temporary)


def _new_client(url: StoreUrl) -> Any:
    """Open a client. A host without a port is a nameservice in HADOOP_CONF_DIR, or the host name of a namenode."""
    has_port = ":" in url.host
    try:
        return hdfs_native.Client(f"hdfs://{url.host}", _ONE_NAMENODE if has_port else {})
    except FAILURES as error:
        if has_port or "No NameNode hosts" not in str(error):
            raise hdfs_error(error, "open", "", url) from None
    return hdfs_native.Client(f"hdfs://{url.host}:{DEFAULT_PORT}", _ONE_NAMENODE)


def _info(key: str, status: Any) -> ObjectInfo:
    return ObjectInfo(key, status.length, status.modification_time)
