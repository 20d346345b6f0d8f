"""Upload data objects to a bucket. A small object is uploaded with one PUT. A thread uploads a larger object in parts.

A commit will reference the object, so `close` returns only once the object exists completely:

* A successful PUT has stored all bytes, because the request contains their length, and its signature contains their
  checksum. No additional request is needed.
* A thread makes the requests of a multipart upload. If the thread ends before its last line, even because of a panic of
  the library, the upload has failed. After the upload, the object must exist with the size of the written data. This
  check also resolves an upload if its last response was lost, and the retry gets 404 although the object exists.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import Protocol

from sparklog.errors import SparklogError, Unavailable
from sparklog.storage.store import ObjectInfo, existing_object

PART_BYTES = 8 << 20
"""Size of a part of a multipart upload. A data object of up to this size is uploaded with one PUT."""
_WAITING_PARTS = 2


class Bucket(Protocol):
    """The requests that an upload sends to a bucket."""

    @property
    def location(self) -> str: ...

    def stat(self, key: str) -> ObjectInfo | None: ...

    def put_whole(self, key: str, data: bytes) -> None:
        """Store an object with one PUT. Raises `Unavailable` if another object has the key."""

    def put_parts(self, key: str, parts: Iterator[bytes]) -> None:
        """Store an object in parts. If `parts` raises an error, the upload is aborted, and the error is raised."""

    def upload_failure(self, error: BaseException, key: str) -> SparklogError:
        """Return the error to raise for an error of `put_parts`."""


class Upload:
    """The writer of one data object. See `sparklog.storage.store.ObjectWriter`."""

    def __init__(self, bucket: Bucket, key: str, part_bytes: int = PART_BYTES) -> None:
        self._bucket = bucket
        self._key = key
        self._part_bytes = part_bytes
        self._pending: list[bytes] | None = []
        """Data that has not been passed to the uploading thread, or None if the writer is closed."""
        self._pending_bytes = 0
        self._written = 0
        self._sender: _Sender | None = None

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self._pending is None:
            raise ValueError(f"the writer of {self._key} is closed")
        self._pending.append(bytes(data))
        self._pending_bytes += len(data)
        self._written += len(data)
        if self._pending_bytes > self._part_bytes:
            self._hand_over(self._pending)

    def close(self) -> None:
        if self._pending is None:
            return
        try:
            if self._sender is None:
                self._bucket.put_whole(self._key, b"".join(self._pending))
            else:
                self._finish(self._hand_over(self._pending))
        finally:
            self.discard()

    def discard(self) -> None:
        self._pending = None
        if self._sender is not None:
            self._sender.end(_Discarded())

    def _hand_over(self, pending: list[bytes]) -> _Sender:
        """Pass pending data to the uploading thread, which starts with the first part."""
        sender = self._sender = self._sender or _Sender(self._bucket, self._key)
        if pending:
            if not sender.offer(b"".join(pending)):
                raise self._failure(sender)
            pending.clear()
            self._pending_bytes = 0
        return sender

    def _finish(self, sender: _Sender) -> None:
        # This check detects a caller that uses a key twice. It is not atomic with the end of the upload. This is safe,
        # because the name of a data object is random and has no second writer.
        if self._bucket.stat(self._key) is not None:
            raise existing_object(self._key, self._bucket.location)
        sender.end(None)
        try:
            info = self._bucket.stat(self._key)
        except SparklogError:
            if sender.done:
                raise
            info = None  # the error of the upload is more specific
        if info is not None and info.size == self._written:
            return
        if not sender.done:
            raise self._failure(sender)
        raise Unavailable(
            f"the upload of {self._key} to {self._bucket.location} is incomplete: expected {self._written} bytes, "
            f"found {'no object' if info is None else info.size}; write the data again with a new name"
        )

    def _failure(self, sender: _Sender) -> SparklogError:
        if sender.error is None:
            return Unavailable(
                f"cannot create {self._key} in {self._bucket.location}: its upload ended early; try again"
            )
        return self._bucket.upload_failure(sender.error, self._key)


class _Discarded(Exception):  # noqa: N818
    """Aborts an upload. Never raised to callers."""


class _Sender:
    """The thread that uploads one object, and its queue of parts."""

    def __init__(self, bucket: Bucket, key: str) -> None:
        self._bucket = bucket
        self._key = key
        self._waiting: queue.Queue[bytes | _Discarded | None] = queue.Queue(_WAITING_PARTS)
        self.done = False
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="sparklog-upload", daemon=True)
        self._thread.start()

    def offer(self, item: bytes | _Discarded | None) -> bool:
        """Pass a part to the thread. Return False if the thread has ended."""
        while self._thread.is_alive():
            with suppress(queue.Full):
                self._waiting.put(item, timeout=1)
                return True
        return False

    def end(self, last: _Discarded | None) -> None:
        """Complete the upload if the argument is None, or abort it otherwise, and wait for the thread to end."""
        self.offer(last)
        self._thread.join()

    def _run(self) -> None:
        try:
            self._bucket.put_parts(self._key, self._parts())
            self.done = True  # the last line; if the thread ends before it, the upload has failed
        except BaseException as error:  # noqa: BLE001 - the writer's thread raises it
            self.error = error
        finally:
            # Empty the queue, so that a waiting writer continues and detects that the thread has ended.
            with suppress(queue.Empty):
                while True:
                    self._waiting.get_nowait()

    def _parts(self) -> Iterator[bytes]:
        while (part := self._waiting.get()) is not None:
            if isinstance(part, _Discarded):
                raise part
            yield part
