"""Objects in a bucket: S3 and servers that speak it, Google Cloud Storage, Azure. Through obstore.

`create` is a conditional PUT. What makes it safe to build on:

* "Already exists" proves nothing on S3: 409 may mean that nothing landed, and an answer that got lost makes our own
  success look like a loss. So after an answer that leaves the effect open the object is read and compared.
* A create that timed out is not sent again. If nothing is there yet: `Unavailable`, effect unknown.
* 429 (Google Cloud Storage and R2 take one write a second and key) means somebody else writes that key: look at it, do
  not wait.
* 501 means that a server does not know conditional PUTs. The client would take it for an outage and repeat it.

Listings are filtered and their order checked here: not every server heeds where a listing begins.

obstore's threads do not survive a fork: a child process of one that has used it would hang, and gets an error instead.
A pickled store carries its URL alone. Credentials are read in each process.
"""

from __future__ import annotations

import os
import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any, NoReturn, TypeVar

import obstore
from obstore import exceptions

from sparklog.errors import BadRequest, Corrupt, NotFound, SparklogError, Unavailable
from sparklog.storage.cloud_errors import cloud_error, network_failure, status_of
from sparklog.storage.cloud_settings import AZURE, GCS, S3, client_config, endpoint_of_environment, plain_http
from sparklog.storage.fork_safety import ForkGuard, ForkLock
from sparklog.storage.locations import StoreUrl, parse_url
from sparklog.storage.store import (
    MAX_DOCUMENT,
    ObjectInfo,
    ObjectWriter,
    Store,
    check_key,
    check_prefix,
    is_key,
)

T = TypeVar("T")

PARALLEL_REQUESTS = 16
PART_BYTES = 8 << 20
"""Size of a part of a multipart upload; a data object up to this size is one PUT."""
_UPLOADS_AT_ONCE = 4
_WAITING_PARTS = 2
_DELETE_AT_ONCE = 1000
_CREATE_ATTEMPTS = 4
_FIRST_PAUSE_S = 0.1
_DOCUMENT_TIMEOUT = timedelta(seconds=10)
_DATA_TIMEOUT = timedelta(seconds=120)
_RETRY_TIMEOUT = timedelta(seconds=15)
_RETRIES = 3
_FAILURES = (exceptions.BaseError, OSError, ValueError)
_GUARD = ForkGuard("obstore")


class ObjectStore(Store):
    """A bucket, or a folder in it. `url` is a location such as `s3://bucket/log` (`sparklog.storage.locations`).

    Picklable; safe to use from threads; a process that was forked by one that used a bucket cannot.
    """

    def __init__(self, url: str) -> None:
        self._url = parse_url(url)
        self._clients: dict[str, Any] = {}

    def __reduce__(self) -> tuple[type[ObjectStore], tuple[str]]:
        return ObjectStore, (self.location,)

    def __repr__(self) -> str:
        return f"ObjectStore({self.location!r})"

    @property
    def location(self) -> str:
        return str(self._url)

    @property
    def server(self) -> str:
        named, parts = dict(self._url.settings), []
        if "endpoint" not in named:
            parts.append(endpoint_of_environment(self._url.scheme, os.environ))
        if self._url.scheme == AZURE and "account_name" not in named:
            parts.append(os.environ.get("AZURE_STORAGE_ACCOUNT_NAME", ""))
        return " ".join(filter(None, parts))

    @property
    def parallel_reads(self) -> int:
        return PARALLEL_REQUESTS

    @property
    def clock_step_ms(self) -> int:
        return 1000

    def get(self, key: str, start: int = 0, length: int | None = None) -> bytes:
        if start < 0 or (length is not None and length < 0):
            raise BadRequest(f"cannot read {key} from byte {start} for {length} bytes: neither may be negative")
        check_key(key)
        if start or length is not None:
            return self._get_range(key, start, length)

        def read() -> bytes:
            answer = obstore.get(self._client("data"), key)
            if answer.meta["size"] > MAX_DOCUMENT and key.endswith(".json"):
                size = answer.meta["size"]
                raise Corrupt(f"expected JSON of at most {MAX_DOCUMENT} bytes, found {size}; restore it", file=key)
            return bytes(answer.bytes())

        return self._ask("read", key, read)

    def _get_range(self, key: str, start: int, length: int | None) -> bytes:
        # A range that is empty, or begins behind the end, is an error to a server; so is one beyond 63 bits.
        if length == 0 or start >= 1 << 62:
            self._size(key)
            return b""
        try:
            if length is None:
                options: Any = {"range": {"offset": start}}
                return bytes(obstore.get(self._client("data"), key, options=options).bytes())
            end = min(start + length, 1 << 62)
            return bytes(obstore.get_range(self._client("data"), key, start=start, end=end))
        except _FAILURES as error:
            if status_of(error) == 416 or (start and start >= self._size(key)):
                return b""
            self._fail(error, "read", key)

    def _size(self, key: str) -> int:
        info = self.stat(key)
        if info is None:
            raise NotFound(f"no object {key} in {self.location}: it was never written, or has been deleted")
        return info.size

    def stat(self, key: str) -> ObjectInfo | None:
        check_key(key)
        try:
            info = _info(self._ask("read", key, lambda: obstore.head(self._client("document"), key)))
            # obstore 0.11 names it from the bucket on, not from the folder that this store is.
            return replace(info, key=key)
        except NotFound:
            return None

    def list(self, prefix: str, after: str = "") -> Iterator[ObjectInfo]:
        check_prefix(prefix)
        objects = self._list(prefix, after)
        if self._is_express:
            # S3 Express lists in no order.
            return iter(sorted(objects, key=lambda info: info.key))
        return self._checked_order(objects)

    def _list(self, prefix: str, after: str) -> Iterator[ObjectInfo]:
        folder, slash, start = prefix.rpartition("/")
        # The greatest text below all that begin with the prefix, more or less: what slips through is left out below.
        # In front of `0` comes `/`, and no path has two of them.
        last = "" if start.endswith("0") else f"{chr(ord(start[-1]) - 1)}~" if start else ""
        offset = max(after, f"{folder}{slash}{start[:-1]}{last}".removesuffix("/") if start else "")
        begin: Any = {} if not offset or self._is_express else {"offset": offset}
        chunks = self._ask(
            "list", folder, lambda: obstore.list(self._client("document"), folder or None, chunk_size=1000, **begin)
        )
        while (chunk := self._ask("list", folder, lambda: next(chunks, None))) is not None:
            for meta in chunk:
                key = meta["path"]
                if key.startswith(prefix) and key > after and is_key(key):
                    yield _info(meta)
                elif key > prefix and not key.startswith(prefix) and not self._is_express:
                    return

    def _checked_order(self, objects: Iterator[ObjectInfo]) -> Iterator[ObjectInfo]:
        before = ""
        for info in objects:
            if info.key <= before:
                raise BadRequest(f"{self.location} cannot hold a root: its server lists {info.key} behind {before}")
            before = info.key
            yield info

    def list_folders(self, prefix: str) -> Iterator[str]:
        folder = check_prefix(prefix, folder=True).removesuffix("/")
        answer = self._ask(
            "list", folder, lambda: obstore.list_with_delimiter(self._client("document"), folder or None)
        )
        names = {path.rstrip("/").rpartition("/")[2] for path in answer["common_prefixes"]}
        return iter(sorted((name for name in names if is_key(name)), key=lambda name: name + "/"))

    def create(self, key: str, data: bytes) -> bool:
        return self._create(check_key(key), data)

    def _create(self, key: str, data: bytes) -> bool:
        """Create an object by conditional PUTs, repeated as long as the effect of the last one can be told."""
        unsure, error = False, None
        for attempt in range(_CREATE_ATTEMPTS):
            if attempt:
                time.sleep(_FIRST_PAUSE_S * 2 ** (attempt - 1) * (0.5 + os.urandom(1)[0] / 256))
            try:
                obstore.put(self._client("create"), key, data, mode="create", use_multipart=False)
                return True
            except _FAILURES as failure:
                error = failure
            status = status_of(error)
            if _is_taken(error, status) or status == 429:
                if status == 412 and not unsure:
                    return False
                existing = self._read_if_there(key)
                if existing is not None:
                    return unsure and existing == data
            elif network_failure(error) == "Timeout":
                # Not sent again: it may still land, and the caller has a deadline.
                existing = self._read_if_there(key)
                if existing is not None:
                    return existing == data
                break
            elif status in (500, 502, 503) or network_failure(error):
                unsure = True
            else:
                break
        assert error is not None
        raise cloud_error(error, "create", key, self._url)

    def _read_if_there(self, key: str) -> bytes | None:
        try:
            return self.get(key)
        except NotFound:
            return None

    def writer(self, key: str) -> ObjectWriter:
        return _Upload(self, check_key(key))

    def delete(self, key: str) -> None:
        self.delete_many([key])

    def delete_many(self, keys: Iterable[str]) -> None:
        names = [check_key(key) for key in keys]
        for first in range(0, len(names), _DELETE_AT_ONCE):
            some = names[first : first + _DELETE_AT_ONCE]
            one: Any = some[0] if len(some) == 1 else some
            try:
                self._ask("delete", some[0], partial(obstore.delete, self._client("document"), one))
            except NotFound:
                # Azure and Google say so of an object that is not there, and may have stopped at it.
                for key in some if len(some) > 1 else ():
                    self.delete(key)

    def now_ms(self) -> int:
        # The clock that stamps objects.
        key = f"_probe/clock-{os.urandom(12).hex()}"
        self._create(key, b"")
        info = self.stat(key)
        with suppress(Unavailable):  # writers may lack the right to delete
            self.delete(key)
        if info is None:
            raise Unavailable(f"{key} was written to {self.location} and is not there: try again later")
        # An object's time may lack up to 999 ms, and this one must not make it look older.
        return info.modified_ms - (self.clock_step_ms - 1)

    @property
    def _is_express(self) -> bool:
        return _is_express(self._url)

    def _client(self, kind: str) -> Any:
        """Return obstore's store for one kind of request: `document`, `data` (long), `create` (never repeated)."""
        _GUARD.use()
        client = self._clients.get(kind)
        if client is None:
            client = self._clients[kind] = _kept_client(self._url, kind)
        return client

    def _ask(self, action: str, key: str, send: Callable[[], T]) -> T:
        """Return the answer to a request; raise what its error means."""
        try:
            return send()
        except SparklogError:  # some of them are built-in errors as well
            raise
        except _FAILURES as error:
            self._fail(error, action, key)

    def _fail(self, error: Exception, action: str, key: str) -> NoReturn:
        raise cloud_error(error, action, key, self._url) from None


_kept: dict[tuple[str, str, int], Any] = {}
_lock = ForkLock()
_MOST_KEPT = 64
_OF_CLOUDS = ("AWS_", "AZURE_", "GOOGLE_")


def _kept_client(url: StoreUrl, kind: str) -> Any:
    """Return the process' client of a place: its connections outlive the stores that are opened for it."""
    # Where the environment changes, the credentials may. They are not kept here.
    surroundings = hash(frozenset(item for item in os.environ.items() if item[0].startswith(_OF_CLOUDS)))
    place = (str(url), kind, surroundings)
    with _lock:
        if place not in _kept:
            if len(_kept) >= _MOST_KEPT:
                _kept.clear()
            _kept[place] = _new_client(url, os.environ, kind)
        return _kept[place]


def _new_client(url: StoreUrl, environ: Mapping[str, str], kind: str) -> Any:
    from obstore import store as stores

    settings = dict(url.settings)
    client: Any = {"timeout": _DATA_TIMEOUT if kind == "data" else _DOCUMENT_TIMEOUT}
    if plain_http(url.scheme, settings, environ):
        client["allow_http"] = True
    retry: Any = {"max_retries": 0 if kind == "create" else _RETRIES, "retry_timeout": _RETRY_TIMEOUT}
    config = client_config(url.scheme, settings, environ)
    if _is_express(url):
        config["s3_express"] = "true"  # another server, and another signature
    makers: dict[str, Any] = {S3: stores.S3Store, GCS: stores.GCSStore, AZURE: stores.AzureStore}
    try:
        return makers[url.scheme](
            url.host, prefix=url.path or None, config=config, client_options=client, retry_config=retry
        )
    except _FAILURES as error:
        raise cloud_error(error, "open", "", url) from None


def _is_express(url: StoreUrl) -> bool:
    """True for a directory bucket of S3 Express One Zone, which its name shows."""
    return url.scheme == S3 and url.host.endswith("--x-s3")


def _is_taken(error: Exception, status: int | None) -> bool:
    kinds = (exceptions.AlreadyExistsError, exceptions.PreconditionError, exceptions.NotModifiedError)
    return isinstance(error, kinds) or status in (409, 412)


def _info(meta: Any) -> ObjectInfo:
    return ObjectInfo(meta["path"], meta["size"], int(meta["last_modified"].timestamp() * 1000))


class _Discarded(Exception):  # noqa: N818
    """Ends an upload from within; never seen outside."""


class _Upload:
    """A data object being written: one PUT if it stays small, else parts that a thread uploads meanwhile."""

    def __init__(self, store: ObjectStore, key: str) -> None:
        self._store = store
        self._key = key
        self._parts: list[bytes] | None = []
        self._held = 0
        self._queue: queue.Queue[bytes | Exception | None] | None = None
        self._thread: threading.Thread | None = None
        self._error: Exception | None = None

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self._parts is None:
            raise ValueError(f"the writer of {self._key} is closed")
        self._parts.append(bytes(data))
        self._held += len(data)
        if self._held > PART_BYTES:
            self._hand_over()

    def close(self) -> None:
        if self._parts is None:
            return
        try:
            if self._queue is None:
                self._put(b"".join(self._parts))
            else:
                self._hand_over()
                if self._store.stat(self._key) is not None:
                    self._refuse()
                self._end(None)
                if self._error is not None:
                    raise cloud_error(self._error, "create", self._key, parse_url(self._store.location)) from None
        finally:
            self.discard()

    def discard(self) -> None:
        self._parts = None
        if self._thread is not None and self._thread.is_alive():
            self._end(_Discarded())

    def _put(self, data: bytes) -> None:
        if not self._store._create(self._key, data):
            self._refuse()

    def _refuse(self) -> NoReturn:
        raise Unavailable(f"{self._key} exists already in {self._store.location}: write it again under a new name")

    def _hand_over(self) -> None:
        """Give what is held to the uploading thread, which is started with the first part."""
        assert self._parts is not None
        if self._queue is None:
            self._store._client("data")
            self._queue = queue.Queue(_WAITING_PARTS)
            self._thread = threading.Thread(
                target=self._upload, args=(self._queue,), name="sparklog-upload", daemon=True
            )
            self._thread.start()
        if self._parts:
            self._offer(b"".join(self._parts))
        self._parts, self._held = [], 0

    def _offer(self, item: bytes | Exception | None) -> None:
        assert self._queue is not None
        assert self._thread is not None
        while self._thread.is_alive():
            with suppress(queue.Full):
                self._queue.put(item, timeout=1)
                return
        if self._error is not None and not isinstance(item, Exception):
            raise cloud_error(self._error, "create", self._key, parse_url(self._store.location)) from None

    def _end(self, last: Exception | None) -> None:
        assert self._thread is not None
        self._offer(last)
        self._thread.join()

    def _upload(self, parts: queue.Queue[bytes | Exception | None]) -> None:
        def each() -> Iterator[bytes]:
            while (part := parts.get()) is not None:
                if isinstance(part, Exception):
                    raise part  # obstore gives the multipart upload up
                yield part

        try:
            obstore.put(
                self._store._client("data"),
                self._key,
                each(),
                use_multipart=True,
                chunk_size=PART_BYTES,
                max_concurrency=_UPLOADS_AT_ONCE,
            )
        except _Discarded:
            return
        except _FAILURES as error:
            self._error = error
