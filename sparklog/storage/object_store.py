"""Objects in a bucket: S3 and servers that speak it, Google Cloud Storage, Azure. Through obstore.

Each kind of request has its rule for a server that is slow, busy or gone:

* `create`, of commits: a few conditional PUTs within a second. Its caller decides what to do about an open effect, and
  by when. "Already exists" proves nothing on S3, so what is there is read and compared (`_create`).
* Data objects have names that no other writer uses. A PUT of one may be sent again as often as needed, and whatever is
  there with the same bytes is ours (`put_whole`, `sparklog.storage.uploads`).
* Reads, lists and deletes are retried if the server is busy or its responses are cut off, within the budget of
  `sparklog.storage.retries`.
* A server that cannot be reached is given up after `_RETRIES`, in a second or two: most often its address is wrong.

Listings are filtered and their order checked here: not every server heeds where a listing begins.

obstore's threads do not survive a fork: a child process of one that has used it would hang, and gets an error instead.
A pickled store carries its URL alone. Credentials are read in each process.
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
_UPLOADS_AT_ONCE = 4
_DELETE_AT_ONCE = 1000
_CREATE_ATTEMPTS = 4
"""PUTs of a commit, within a second: its caller looks at the log between its tries, and goes on for 90 s."""
_SMALL_BYTES = 512 << 10
_DOCUMENT_TIMEOUT = timedelta(seconds=10)
"""Of a request whose bodies have at most `_SMALL_BYTES`. Several fit into the 90 s of a commit."""
_DATA_TIMEOUT = timedelta(seconds=120)
"""Of any other request. Either limit asks for 70 kB/s: a part or object of 8 MiB takes 120 s then."""
_RETRY_TIMEOUT = timedelta(seconds=15)
_RETRIES = 3
_FAILURES = (exceptions.BaseError, OSError, ValueError, RuntimeError)
_GUARD = ForkGuard("obstore")


class ObjectStore(Store):
    """A bucket, or a folder in it (`sparklog.storage.locations`). Picklable; safe for threads, but not after a fork."""

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
            answer = obstore.get(self._client("data"), key)
            check_document(key, answer.meta["size"])
            return bytes(answer.bytes())

        return self._ask("read", key, read)

    def _get_range(self, key: str, start: int, length: int | None) -> bytes:
        # A range that is empty, or begins after the end, is an error to a server; so is one beyond 63 bits.
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

        return self._ask("read", key, read)

    def _size(self, key: str) -> int:
        info = self.stat(key)
        if info is None:
            raise missing_object(f"{key} in {self.location}")
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
            # S3 Express lists in no order. A list that was begun again names objects twice.
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
        """Yield what is listed after `start`, page by page; the budget of a busy server is that of one page."""
        backoff, last = self.retry_policy.backoff(), ""
        while True:
            try:
                for page in self._listing(folder, max(start, last)):
                    # A server that does not heed where a list begins gives the first pages once more.
                    yield from (meta for meta in page if meta["path"] > last)
                    if page and not self._is_express:
                        backoff, last = self.retry_policy.backoff(), page[-1]["path"]
                return
            except _FAILURES as error:
                if isinstance(error, SparklogError) or not (is_busy(error) and backoff.wait()):
                    self._fail(error, "list", folder)

    def _listing(self, folder: str, start: str) -> Iterator[Sequence[Any]]:
        begin: Any = {} if not start or self._is_express else {"offset": start}
        return iter(obstore.list(self._client("document"), folder or None, chunk_size=1000, **begin))

    def _checked_order(self, objects: Iterator[ObjectInfo]) -> Iterator[ObjectInfo]:
        before = ""
        for info in objects:
            if info.key <= before:
                raise BadRequest(f"{self.location} cannot hold a root: its server lists {info.key} after {before}")
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
        """Create an object by conditional PUTs, repeated as long as the effect of the last one can be told.

        False proves nothing, says `Store.create`, and its callers look. This looks as well where an answer leaves it
        open, so that a create of our own is not reported as a loss.
        """
        backoff, may_have_landed = self.retry_policy.backoff(), False
        for attempt in range(_CREATE_ATTEMPTS):
            if attempt and not backoff.wait():
                break
            error = self._put(key, data)
            if error is None:
                return True
            status = status_of(error)
            if _is_taken(error, status) or status == 429:
                # 412 to the only PUT that was sent: another object is there. After a lost answer it may be ours.
                if status == 412 and not may_have_landed:
                    return False
                # 409 may mean two PUTs at once of which none landed. 429 (Google Cloud Storage and R2 take one write a
                # second and key): another writes this key. Look at it; if nothing is there, send it again.
                existing = self._read_if_there(key)
                if existing is not None:
                    return may_have_landed and existing == data
            elif status == 504 or network_failure(error) == "Timeout":
                # It may land yet, at any time: it is not sent again, and its effect is unknown if nothing is there.
                existing = self._read_if_there(key)
                if existing is not None:
                    return existing == data
                break
            elif status in (500, 502, 503) or network_failure(error):
                may_have_landed = True
            else:
                # Refused. 501 too: a server that does not know conditional PUTs, which a repeat does not teach it.
                break
        assert error is not None
        raise cloud_error(error, "create", key, self._url)

    def _put(self, key: str, data: bytes) -> Exception | None:
        """Send one conditional PUT; return its error."""
        kind = "create" if len(data) <= _SMALL_BYTES else "create large"
        try:
            obstore.put(self._client(kind), key, data, mode="create", use_multipart=False)
        except SparklogError:  # some of them are built-in errors as well
            raise
        except _FAILURES as error:
            return error
        return None

    def put_whole(self, key: str, data: bytes) -> None:
        """Store a data object by one PUT, repeated within the budget. Its key has no other writer.

        So it may be sent again after any failure that may pass, and an object of the same bytes is ours: a gateway that
        repeats a request, or we ourselves, have sent it before.
        """
        backoff, attempt = self.retry_policy.backoff(), 0
        while (error := self._put(key, data)) is not None:
            attempt += 1
            status, away = status_of(error), bool(network_failure(error))
            if _is_taken(error, status):
                if self._is_stored(key, data):
                    return
            elif not (is_busy(error) or (away and attempt < _CREATE_ATTEMPTS)):
                self._fail(error, "create", key)
            if not backoff.wait():
                if (away or status == 504) and self._is_stored(key, data):
                    return  # no answer came in time, and the object is there
                self._fail(error, "create", key)

    def _is_stored(self, key: str, data: bytes) -> bool:
        """True if an object of these bytes is there, False if none is. `Unavailable` if it is another."""
        info = self.stat(key)
        if info is None:
            return False
        if info.size == len(data) and self._read_if_there(key) == data:
            return True
        raise existing_object(key, self.location)

    def put_parts(self, key: str, parts: Iterator[bytes]) -> None:
        """Store a data object by a multipart upload, each request of which the client repeats within the budget."""
        client = self._client("upload")
        obstore.put(client, key, parts, use_multipart=True, chunk_size=PART_BYTES, max_concurrency=_UPLOADS_AT_ONCE)

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
        # Not empty, because a client that retries reading an empty object requests a range that does not exist.
        self.put_whole(key, b"\n")
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
        """Return obstore's store for one kind of request (`_limits`)."""
        _GUARD.use()
        client = self._clients.get(kind)
        if client is None:
            client = self._clients[kind] = _kept_client(self._url, kind)
        return client

    def _ask(self, action: str, key: str, send: Callable[[], T]) -> T:
        """Return the answer to a request, repeated while the server is busy; raise what its error means."""
        try:
            return self.retry_policy.call(send, is_busy)
        except _FAILURES as error:
            self._fail(error, action, key)

    def _fail(self, error: BaseException, action: str, key: str) -> NoReturn:
        raise cloud_error(error, action, key, self._url) from None


_kept: dict[tuple[str, str, int], Any] = {}
_lock = ForkLock()
_MOST_KEPT = 64
_OF_CLIENTS = ("AWS_", "AZURE_", "GOOGLE_", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "ALL_PROXY", "SSL_CERT_")


def _kept_client(url: StoreUrl, kind: str) -> Any:
    """Return the process' client of a place: its connections outlive the stores that are opened for it."""
    # Where the environment changes, the credentials may. They are not kept here.
    surroundings = hash(frozenset(item for item in os.environ.items() if item[0].upper().startswith(_OF_CLIENTS)))
    key = (str(url), kind, surroundings)
    with _lock:
        if key not in _kept:
            if len(_kept) >= _MOST_KEPT:
                _kept.clear()
            _kept[key] = _new_client(url, os.environ, kind)
        return _kept[key]


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
    # Not in the configuration: to that the client would add a session token of the environment, which is of other keys.
    extra: Any = {"credential_provider": lambda: keys} if keys else {}
    if _is_express(url):
        config["s3_express"] = "true"  # another server, and another signature
    makers: dict[str, Any] = {S3: stores.S3Store, GCS: stores.GCSStore, AZURE: stores.AzureStore}
    try:
        return makers[url.scheme](
            url.host, prefix=url.path or None, config=config, client_options=client, retry_config=retry, **extra
        )
    except _FAILURES as error:
        raise cloud_error(error, "open", "", url) from None


def _limits(kind: str) -> tuple[timedelta, Any]:
    """Return the time that one request of a kind may take, and how the client itself repeats it.

    | kind           | requests                                                                     |
    |----------------|------------------------------------------------------------------------------|
    | `document`     | without a large body: HEAD, lists, deletes                                   |
    | `data`         | reads                                                                        |
    | `create`       | a PUT of up to `_SMALL_BYTES`; never repeated by the client, which cannot compare |
    | `create large` | a longer one                                                                 |
    | `upload`       | those of a multipart upload, which cannot be begun again                     |
    """
    timeout = _DOCUMENT_TIMEOUT if kind in ("document", "create") else _DATA_TIMEOUT
    if kind in ("create", "create large"):
        return timeout, {"max_retries": 0, "retry_timeout": _RETRY_TIMEOUT}
    if kind == "upload":
        pauses = {"init_backoff": timedelta(seconds=FIRST_PAUSE_S), "max_backoff": timedelta(seconds=LONGEST_PAUSE_S)}
        return timeout, {"max_retries": 1000, "retry_timeout": timedelta(seconds=BUSY_BUDGET_S), "backoff": pauses}
    return timeout, {"max_retries": _RETRIES, "retry_timeout": _RETRY_TIMEOUT}


def _start_after(prefix: str) -> str:
    """Return a key after which a list begins so that it names all keys with a prefix, and few before them.

    A server lists what is greater than the key that it is given. So this is less than every key with the prefix: its
    last character is replaced by the one before it, and `~`, which is greater than any character of a key.

    >>> _start_after("t/append/00b")
    't/append/00a~'
    >>> _start_after("t/append/")
    ''

    The character before `0` is `/`, which begins no name. There the character is left out:

    >>> _start_after("t/_log/10")
    't/_log/1'
    """
    last = prefix[-1:]
    if last in ("", "/"):
        return ""  # the list is of that folder
    before = "" if last == "0" else f"{chr(ord(last) - 1)}~"
    return f"{prefix[:-1]}{before}".removesuffix("/")


def _is_express(url: StoreUrl) -> bool:
    """True for a directory bucket of S3 Express One Zone, which its name shows."""
    return url.scheme == S3 and url.host.endswith("--x-s3")


def _is_taken(error: Exception, status: int | None) -> bool:
    kinds = (exceptions.AlreadyExistsError, exceptions.PreconditionError, exceptions.NotModifiedError)
    return isinstance(error, kinds) or status in (409, 412)


def _info(meta: Any) -> ObjectInfo:
    return ObjectInfo(meta["path"], meta["size"], int(meta["last_modified"].timestamp() * 1000))
