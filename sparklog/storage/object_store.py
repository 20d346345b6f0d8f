"""Objects in a bucket, accessed with obstore: S3 and compatible servers, Google Cloud Storage, Azure.

Each kind of request handles slow, busy or unreachable servers differently:

* `create`, which commits use, sends a few conditional PUTs within a second. Its caller resolves an unknown outcome,
  within its own time limit. A response that an object exists is not conclusive in S3, so `_create` reads and compares
  the existing object.
* Data objects have names that no other writer uses. Therefore their PUTs may be repeated, and an existing object with
  the same bytes is our own (`put_whole`, `sparklog.storage.uploads`).
* Reads, lists and deletes are retried if the server is busy or its responses are truncated, within the budget of
  `sparklog.storage.retries`.
* Requests to an unreachable server fail after `_RETRIES` retries, within a second or two, because its address is
  usually wrong.

The store filters listings and checks their order, because some servers ignore the start of a listing.

obstore's threads do not survive a fork. A child of a process that has used obstore would hang, so it gets an error
instead. A pickled store contains only its URL. Each process reads the credentials itself.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any, NoReturn, TypeVar

import obstore
from obstore import exceptions

from sparklog.errors import BadRequest, NotFound, SparklogError, Unavailable
from sparklog.storage.cloud_errors import cloud_error, is_busy, network_failure, status_of
from sparklog.storage.cloud_settings import (
    AZURE,
    GCS,
    S3,
    checksum_headers,
    client_config,
    endpoint_of_environment,
    plain_http,
    profile_keys,
    root_certificates,
)
from sparklog.storage.fork_safety import ForkGuard, ForkLock
from sparklog.storage.locations import StoreUrl, parse_url
from sparklog.storage.retries import BUSY_BUDGET_S, FIRST_PAUSE_S, LONGEST_PAUSE_S, RetryPolicy
from sparklog.storage.store import (
    ObjectInfo,
    ObjectWriter,
    Store,
    check_document,
    check_key,
    check_prefix,
    check_range,
    existing_object,
    is_key,
    missing_object,
)
from sparklog.storage.uploads import PART_BYTES, Upload

T = TypeVar("T")

PARALLEL_REQUESTS = 16
_PARALLEL_UPLOADS = 4
_BULK_DELETE_KEYS = 1000
_CREATE_ATTEMPTS = 4
"""Maximum number of PUTs of a commit, within a second. The caller reads the log between attempts, and retries for 90 s.
"""
_SMALL_BYTES = 512 << 10
_DOCUMENT_TIMEOUT = timedelta(seconds=10)
"""Timeout of requests with bodies of at most `_SMALL_BYTES`. Several requests fit into the 90 s of a commit."""
_DATA_TIMEOUT = timedelta(seconds=120)
"""Timeout of other requests. Both timeouts require 70 kB/s. At this rate, a part or object of 8 MiB takes 120 s."""
_RETRY_TIMEOUT = timedelta(seconds=15)
_RETRIES = 3
_FAILURES = (exceptions.BaseError, OSError, ValueError, RuntimeError)
_GUARD = ForkGuard("obstore")


class ObjectStore(Store):
    """A bucket, or a prefix in a bucket (`sparklog.storage.locations`).

    Picklable and thread-safe, but not usable after a fork.
    """

    retry_policy = RetryPolicy()
    parallel_reads = PARALLEL_REQUESTS
    clock_step_ms = 1000

    def __init__(self, url: str) -> None:
        self._url = parse_url(url)
        self._clients: dict[str, Any] = {}

    def __reduce__(self) -> tuple[object, ...]:
        return ObjectStore, (self.location,), self.limits_to_pickle()

    def __repr__(self) -> str:
        return f"ObjectStore({self.location!r})"

    @property
    def location(self) -> str:
        return str(self._url)

    @property
    def server(self) -> str:
        settings, parts = dict(self._url.settings), []
        if "endpoint" not in settings:
            parts.append(endpoint_of_environment(self._url.scheme, os.environ))
        if self._url.scheme == AZURE and "account_name" not in settings:
            parts.append(os.environ.get("AZURE_STORAGE_ACCOUNT_NAME", ""))
        return " ".join(filter(None, parts))

    @property
    def lists_after(self) -> bool:
        return self._url.scheme != AZURE and not self._is_express

    def get(self, key: str, start: int = 0, length: int | None = None) -> bytes:
        check_range(key, start, length)
        check_key(key)
        if start or length is not None:
            return self._get_range(key, start, length)

        def read() -> bytes:
            response = obstore.get(self._client("data"), key)
            check_document(key, response.meta["size"])
            return bytes(response.bytes())

        return self._request("read", key, read)

    def _get_range(self, key: str, start: int, length: int | None) -> bytes:
        # Servers reject ranges that are empty, start after the end of the object, or exceed 63 bits.
        if length == 0 or start >= 1 << 62:
            self._size(key)
            return b""

        def read() -> bytes:
            try:
                if length is None:
                    options: Any = {"range": {"offset": start}}
                    return bytes(obstore.get(self._client("data"), key, options=options).bytes())
                end = min(start + length, 1 << 62)
                return bytes(obstore.get_range(self._client("data"), key, start=start, end=end))
            except _FAILURES as error:
                if status_of(error) == 416 or (start and not is_busy(error) and start >= self._size(key)):
                    return b""
                raise

        return self._request("read", key, read)

    def _size(self, key: str) -> int:
        info = self.stat(key)
        if info is None:
            raise missing_object(f"{key} in {self.location}")
        return info.size

    def stat(self, key: str) -> ObjectInfo | None:
        check_key(key)
        try:
            info = _info(self._request("read", key, lambda: obstore.head(self._client("document"), key)))
            # obstore 0.11 returns the key with the prefix of this store.
            return replace(info, key=key)
        except NotFound:
            return None

    def list(self, prefix: str, after: str = "") -> Iterator[ObjectInfo]:
        check_prefix(prefix)
        objects = self._list(prefix, after)
        if self._is_express:
            # S3 Express lists in any order, and a restarted listing repeats objects.
            return iter(sorted(set(objects), key=lambda info: info.key))
        return self._checked_order(objects)

    def _list(self, prefix: str, after: str) -> Iterator[ObjectInfo]:
        for meta in self._pages(prefix.rpartition("/")[0], max(after, _start_after(prefix))):
            key = meta["path"]
            if key.startswith(prefix) and key > after and is_key(key):
                yield _info(meta)
            elif key > prefix and not key.startswith(prefix) and not self._is_express:
                return

    def _pages(self, folder: str, start: str) -> Iterator[Any]:
        """Yield the objects after `start`. The retry budget applies to each page."""
        backoff, last = self.retry_policy.backoff(), ""
        while True:
            try:
                for page in self._listing(folder, max(start, last)):
                    # A server that ignores the start of a listing returns the first pages again.
                    yield from (meta for meta in page if meta["path"] > last)
                    if page and not self._is_express:
                        backoff, last = self.retry_policy.backoff(), page[-1]["path"]
                return
            except _FAILURES as error:
                if isinstance(error, SparklogError) or not (is_busy(error) and backoff.wait()):
                    self._fail(error, "list", folder)

    def _listing(self, folder: str, start: str) -> Iterator[Sequence[Any]]:
        offset: Any = {} if not start or self._is_express else {"offset": start}
        return iter(obstore.list(self._client("document"), folder or None, chunk_size=1000, **offset))

    def _checked_order(self, objects: Iterator[ObjectInfo]) -> Iterator[ObjectInfo]:
        before = ""
        for info in objects:
            if info.key <= before:
                raise BadRequest(
                    f"{self.location} cannot hold a root: its server returns unsorted listings ({info.key} after "
                    f"{before})"
                )
            before = info.key
            yield info

    def list_folders(self, prefix: str) -> Iterator[str]:
        folder = check_prefix(prefix, folder=True).removesuffix("/")
        listing = self._request(
            "list", folder, lambda: obstore.list_with_delimiter(self._client("document"), folder or None)
        )
        names = {path.rstrip("/").rpartition("/")[2] for path in listing["common_prefixes"]}
        return iter(sorted((name for name in names if is_key(name)), key=lambda name: name + "/"))

    def create(self, key: str, data: bytes) -> bool:
        return self._create(check_key(key), data)

    def _create(self, key: str, data: bytes) -> bool:
        """Create an object with conditional PUTs, which are repeated as long as the effect of the last PUT is known.

        Callers of `Store.create` read the object if the result is False. This method also reads the object after an
        ambiguous response, so that it does not report an object of our own as a conflict.
        """
        backoff, may_exist = self.retry_policy.backoff(), False
        for attempt in range(_CREATE_ATTEMPTS):
            if attempt and not backoff.wait():
                break
            error = self._put(key, data)
            if error is None:
                return True
            status = status_of(error)
            if _exists(error, status) or status == 429:
                # If the first PUT returns 412, another object exists. After a lost response, the object may be ours.
                if status == 412 and not may_exist:
                    return False
                # 409 may mean that two concurrent PUTs failed. 429 means that another writer writes this key, because
                # Google Cloud Storage and R2 accept one write per second and key. If the object does not exist, send
                # the PUT again.
                existing = self._read_if_there(key)
                if existing is not None:
                    return may_exist and existing == data
            elif status == 504 or network_failure(error) == "Timeout":
                # The PUT may still succeed later, so it is not repeated. If the object does not exist, the outcome is
                # unknown.
                existing = self._read_if_there(key)
                if existing is not None:
                    return existing == data
                break
            elif status in (500, 502, 503) or network_failure(error):
                may_exist = True
            else:
                # The PUT was rejected, so a retry would also fail. 501 means that the server does not support
                # conditional PUTs.
                break
        assert error is not None
        raise cloud_error(error, "create", key, self._url)

    def _put(self, key: str, data: bytes) -> Exception | None:
        """Send one conditional PUT. Return its error, or None if it succeeded."""
        kind = "create" if len(data) <= _SMALL_BYTES else "create large"
        try:
            obstore.put(self._client(kind), key, data, mode="create", use_multipart=False)
        except SparklogError:  # some of them are also built-in errors
            raise
        except _FAILURES as error:
            return error
        return None

    def put_whole(self, key: str, data: bytes) -> None:
        """Store a data object with one PUT, which is retried within the budget.

        No other writer uses the key. Therefore the PUT may be repeated after any transient failure, and an existing
        object with the same bytes is our own, from an earlier attempt or from a gateway's retry.
        """
        backoff, attempt = self.retry_policy.backoff(), 0
        while (error := self._put(key, data)) is not None:
            attempt += 1
            status, is_unreachable = status_of(error), bool(network_failure(error))
            if _exists(error, status):
                if self._is_stored(key, data):
                    return
            elif not (is_busy(error) or (is_unreachable and attempt < _CREATE_ATTEMPTS)):
                self._fail(error, "create", key)
            if not backoff.wait():
                if (is_unreachable or status == 504) and self._is_stored(key, data):
                    return  # only the response was lost
                self._fail(error, "create", key)

    def _is_stored(self, key: str, data: bytes) -> bool:
        """Return True if the object exists with these bytes, and False if it does not exist.

        Raises `Unavailable` if the object has other bytes.
        """
        info = self.stat(key)
        if info is None:
            return False
        if info.size == len(data) and self._read_if_there(key) == data:
            return True
        raise existing_object(key, self.location)

    def put_parts(self, key: str, parts: Iterator[bytes]) -> None:
        """Store a data object with a multipart upload. The client retries its requests within the budget."""
        client = self._client("upload")
        obstore.put(client, key, parts, use_multipart=True, chunk_size=PART_BYTES, max_concurrency=_PARALLEL_UPLOADS)

    def upload_failure(self, error: BaseException, key: str) -> SparklogError:
        return cloud_error(error, "create", key, self._url)

    def _read_if_there(self, key: str) -> bytes | None:
        try:
            return self.get(key)
        except NotFound:
            return None

    def overwrite(self, key: str, parts: Iterable[bytes]) -> None:
        check_key(key)
        try:
            self.put_parts(key, iter(parts))
        except SparklogError:
            raise
        except _FAILURES as error:
            self._fail(error, "write", key)

    def writer(self, key: str) -> ObjectWriter:
        return Upload(self, check_key(key))

    def delete(self, key: str) -> None:
        self.delete_many([key])

    def delete_many(self, keys: Iterable[str]) -> None:
        names = [check_key(key) for key in keys]
        for first in range(0, len(names), _BULK_DELETE_KEYS):
            batch = names[first : first + _BULK_DELETE_KEYS]
            paths: Any = batch[0] if len(batch) == 1 else batch
            try:
                self._request("delete", batch[0], partial(obstore.delete, self._client("document"), paths))
            except NotFound:
                # Azure and Google Cloud Storage report a missing object, and may not have deleted the objects after it.
                for key in batch if len(batch) > 1 else ():
                    self.delete(key)

    def now_ms(self) -> int:
        # The modification time of a new object is the server's time.
        key = f"_probe/clock-{os.urandom(12).hex()}"
        # The object is not empty, because a client that retries reading an empty object requests a range that does not
        # exist.
        self.put_whole(key, b"\n")
        info = self.stat(key)
        with suppress(Unavailable):  # writers may not have permission to delete
            self.delete(key)
        if info is None:
            raise Unavailable(f"{key} was written to {self.location}, but does not exist: try again later")
        # The times of objects may be rounded down by up to 999 ms, so round the current time down as well. Otherwise,
        # objects would look older than they are.
        return info.modified_ms - (self.clock_step_ms - 1)

    @property
    def _is_express(self) -> bool:
        return _is_express(self._url)

    def _client(self, kind: str) -> Any:
        """Return obstore's store for one kind of request (`_limits`)."""
        _GUARD.use()
        client = self._clients.get(kind)
        if client is None:
            client = self._clients[kind] = _cached_client(self._url, kind)
        return client

    def _request(self, action: str, key: str, send: Callable[[], T]) -> T:
        """Send a request, with retries while the server is busy; return its response, or raise the mapped error."""
        try:
            return self.retry_policy.call(send, is_busy)
        except _FAILURES as error:
            self._fail(error, action, key)

    def _fail(self, error: BaseException, action: str, key: str) -> NoReturn:
        raise cloud_error(error, action, key, self._url) from None


_clients: dict[tuple[str, str, int], Any] = {}
_lock = ForkLock()
_MAX_CLIENTS = 64
_CLIENT_VARIABLES = ("AWS_", "AZURE_", "GOOGLE_", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "ALL_PROXY", "SSL_CERT_")


def _cached_client(url: StoreUrl, kind: str) -> Any:
    """Return the process-wide client for a location. Its connections outlive the stores."""
    # The key contains a hash of the environment instead of credentials, which may change with the environment.
    environment = hash(frozenset(item for item in os.environ.items() if item[0].upper().startswith(_CLIENT_VARIABLES)))
    key = (str(url), kind, environment)
    with _lock:
        if key not in _clients:
            if len(_clients) >= _MAX_CLIENTS:
                _clients.clear()
            _clients[key] = _new_client(url, os.environ, kind)
        return _clients[key]


def _new_client(url: StoreUrl, environ: Mapping[str, str], kind: str) -> Any:
    from obstore import store as stores

    settings = dict(url.settings)
    timeout, retry = _limits(kind)
    client: Any = {"timeout": timeout, **root_certificates(url.scheme, environ)}
    if kind in ("create", "create large"):
        client.update(checksum_headers(url.scheme, settings, environ))
    if plain_http(url.scheme, settings, environ):
        client["allow_http"] = True
    config = client_config(url.scheme, settings)
    keys = profile_keys(url.scheme, settings, environ)
    # Do not add the keys to the configuration. The client would combine them with the session token in the environment,
    # which belongs to other keys.
    extra: Any = {"credential_provider": lambda: keys} if keys else {}
    if _is_express(url):
        config["s3_express"] = "true"  # changes the server and the signature
    makers: dict[str, Any] = {S3: stores.S3Store, GCS: stores.GCSStore, AZURE: stores.AzureStore}
    try:
        return makers[url.scheme](
            url.host, prefix=url.path or None, config=config, client_options=client, retry_config=retry, **extra
        )
    except _FAILURES as error:
        raise cloud_error(error, "open", "", url) from None


def _limits(kind: str) -> tuple[timedelta, Any]:
    """Return the timeout of one kind of request, and the retries of the client itself.

    | kind           | requests                                                                          |
    |----------------|-----------------------------------------------------------------------------------|
    | `document`     | requests without a large body: HEAD, lists, deletes                               |
    | `data`         | reads                                                                             |
    | `create`       | a PUT of up to `_SMALL_BYTES`; not retried by the client, which cannot compare    |
    | `create large` | a larger PUT                                                                      |
    | `upload`       | requests of a multipart upload, which cannot be restarted                         |
    """
    timeout = _DOCUMENT_TIMEOUT if kind in ("document", "create") else _DATA_TIMEOUT
    if kind in ("create", "create large"):
        return timeout, {"max_retries": 0, "retry_timeout": _RETRY_TIMEOUT}
    if kind == "upload":
        pauses = {"init_backoff": timedelta(seconds=FIRST_PAUSE_S), "max_backoff": timedelta(seconds=LONGEST_PAUSE_S)}
        return timeout, {"max_retries": 1000, "retry_timeout": timedelta(seconds=BUSY_BUDGET_S), "backoff": pauses}
    return timeout, {"max_retries": _RETRIES, "retry_timeout": _RETRY_TIMEOUT}


def _start_after(prefix: str) -> str:
    """Return a key after which a listing contains all keys with a prefix, and few keys before them.

    A server lists the keys that are greater than a given key. Therefore the result must be less than every key with the
    prefix. The last character of the prefix is replaced by its predecessor and `~`, which is greater than any character
    of a key.

    >>> _start_after("t/append/00b")
    't/append/00a~'
    >>> _start_after("t/append/")
    ''

    The predecessor of `0` is `/`, which cannot start a name, so the character is removed:

    >>> _start_after("t/_log/10")
    't/_log/1'
    """
    last = prefix[-1:]
    if last in ("", "/"):
        return ""  # the entire directory is listed
    before = "" if last == "0" else f"{chr(ord(last) - 1)}~"
    return f"{prefix[:-1]}{before}".removesuffix("/")


def _is_express(url: StoreUrl) -> bool:
    """Return True for a directory bucket of S3 Express One Zone, which has a special name."""
    return url.scheme == S3 and url.host.endswith("--x-s3")


def _exists(error: Exception, status: int | None) -> bool:
    kinds = (exceptions.AlreadyExistsError, exceptions.PreconditionError, exceptions.NotModifiedError)
    return isinstance(error, kinds) or status in (409, 412)


def _info(meta: Any) -> ObjectInfo:
    return ObjectInfo(meta["path"], meta["size"], int(meta["last_modified"].timestamp() * 1000))
