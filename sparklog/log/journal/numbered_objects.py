"""Numbered objects: create the next number if it is absent, and read forward to the first missing number.

Every journal uses this module. The number of an object is its position in a total order. Only one process can create a
number, and no process changes the object afterwards. This module reads only the commit id and the CRC-32C of an object.

Writer A creates number n (`create`) as follows:

1. A reads the id of the root. If this is no longer the root that A opened, A fails and has written nothing.
2. A creates n if it is absent. If n exists, or if no response arrives, A reads n. The commit id in n shows who created
   it: A, with a request whose response was lost (`CREATED`), or Writer B (`CONFLICT`). If n does not exist or is
   damaged, A returns to step 1. After 90 s, the outcome is unknown.
3. If A last read the end of the journal more than an hour ago, maintenance may have deleted n, and a stalled writer may
   have created n again. Then the object does not show the outcome (`UNKNOWN`).
4. A reads n - 1. If n - 1 is not the object that A's object follows, A deletes n and fails.
5. If A last verified the end of the journal more than a second ago, A also reads n + 1. If n + 1 follows a different n,
   object n was lost and A has filled the gap. A deletes n and fails.

Steps 1 and 4 are for processes that outlive their root. Without these steps, the following sequence would be unsafe. A
opens the root and reads 7. An operator moves the root away, and restores an older copy, which ends at 5, at the same
path. A creates 8. Readers of the restored root would find a gap, and later a commit that does not follow any of its
commits. Step 1 shows that the id of the root is different. If the copy has the same id, step 4 shows that 7 is missing.
A missing number is read again for as long as caches may hide it. An object is never deleted if another object follows
it; its creator then reports an unknown outcome.

If a store allows two processes to create the same number, the symptoms are the same as for a replaced root (see
`probe_results`). Therefore a process remembers the latest object that it created, and compares it with the objects that
it reads next. This comparison does not require a request.

A missing number is the end of a journal only if no later number exists. If a later number exists, an object was lost,
and a process that created the missing number would fork the journal. All readers follow this rule. They check for a
later number in different ways, depending on the requests that they make anyway:

| reader                                                | check for a later number             | more requests        |
|-------------------------------------------------------|--------------------------------------|----------------------|
| `read_forward` of a remote store                      | the numbers that it reads in parallel| none                 |
| `read_forward` on a disk, after it has read several   | a request for the number after it    | one                  |
| `Journal._reopen`                                     | a listing (with `read_and_list`)     | one                  |
| `Journal.refresh` of a reader that paused for minutes | a listing (`Journal._is_next_lost`)  | one after each pause |
| a slow `create`                                       | a read (`_check_next`)               | one                  |

If a later number exists, the missing number is read again for as long as caches may hide it. If it is still missing
afterwards, readers and writers fail with an error.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum
from itertools import takewhile
from typing import NoReturn

from sparklog.errors import Corrupt, Fenced, NotFound, Unavailable
from sparklog.format import crc32c
from sparklog.log.journal.clocks import RECENT_MS, ClockReading, Env
from sparklog.log.journal.create_object import read_if_there
from sparklog.log.journal.documents import check_stored, peek_commit_id
from sparklog.log.journal.gaps import follows, follows_other, missing_numbers
from sparklog.log.journal.names import ROOT_KEY, commit_key, entry_numbers, read_root_id
from sparklog.storage.parallel_reads import map_requests
from sparklog.storage.retries import SETTLE_MS, Backoff
from sparklog.storage.store import Store

READ_AHEAD = 16
"""Maximum number of objects to read in parallel on a remote store."""
LOSER_READS = 2
"""Number of later objects to read after a writer has lost a race on a remote store. They are read in parallel with the
lost number.
"""
STALE_MS = 3_600_000
"""Time since the last read of the end of the journal after which the journal is opened again, because numbers may have
been deleted and reused.
"""
CONFIRMING_READS = 3
"""Number of consecutive reads in which an object must be corrupt or different before the result is trusted."""
REOPEN = "stop this process, and reopen the root"
REPLACED = (
    "the root was moved away and restored, or deleted and recreated, or the store does not create objects "
    "exclusively, which you can test with sparklog doctor"
)


class CreateResult(Enum):
    """The result of a create.

    `UNKNOWN` means that the create took so long that the number may have been deleted and reused.
    """

    CREATED = "created"
    CONFLICT = "conflict"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class ReadResult:
    """The responses to several requests. On a remote store, the requests are sent in parallel."""

    # consecutive objects starting at a number, up to the first object that was not read
    objects: tuple[bytes, ...] = ()
    is_all: bool = False  # True if the object after `objects` is missing
    before: bytes | None = None  # the object before `objects`, or None if it was not read or is missing
    is_root_checked: bool = False  # True if the root is still the opened root


class _Previous(Enum):
    """The result of one attempt to read an expected object. The result is also `EXPECTED` if the object is in the
    archive.
    """

    EXPECTED = "expected"
    DIFFERENT = "different"
    CORRUPT = "corrupt"
    MISSING = "missing"
    UNCLEAR = "unclear"


NOTHING_READ = ReadResult()
EntryRef = tuple[int, int]
"""The number of an object, and its CRC-32C when this process read it."""


@dataclass(frozen=True, slots=True)
class Expected:
    """The state that a new object follows, as read by its writer."""

    seen: ClockReading  # the time at which the writer last read the end of the journal
    crc: int | None  # CRC-32C of the previous object, or None if there is no previous object
    is_root_checked: bool = False  # True if the writer has just read the id of the root
    earlier: EntryRef | None = None  # older object that must exist, because later objects were read in parallel with it
    # the time at which the writer last verified that no later number existed, or None if it is equal to `seen`
    checked: ClockReading | None = None


@dataclass(frozen=True, slots=True)
class NumberedObjects:
    """The numbered objects under `prefix`. If `root_id` is set, the objects must be in the root with this id.

    `archived` returns the latest object that is also stored in an archive. This object and older objects may be
    deleted.
    """

    store: Store
    prefix: str
    env: Env
    root_id: str | None = None
    archived: Callable[[], EntryRef | None] = field(default=lambda: None, compare=False, repr=False)
    _unsynced: set[int] = field(default_factory=set, compare=False, repr=False)
    """The latest number that this process has read. The directory entry of its object may not survive a power failure
    yet.
    """
    _created: dict[int, tuple[int, str]] = field(default_factory=dict, compare=False, repr=False)
    """The latest number that this process has created, with its CRC-32C and commit id."""

    @property
    def is_remote(self) -> bool:
        """True if each request costs a round trip, so that parallel requests take about as long as a single request."""
        return self.store.parallel_reads > 1

    def key(self, number: int) -> str:
        return commit_key(self.prefix, number)

    # -- reading

    def read(self, number: int) -> bytes | None:
        """Return the object with this number, or None if it does not exist."""
        return read_if_there(self.store, self.key(number))

    def read_forward(self, number: int, ahead: bool = False) -> list[bytes]:
        """Read all objects starting at `number`, up to the first missing object. Raises `Corrupt` if a later object
        exists.

        One request is sent per object, and one request for the missing number. On a remote store, the number of
        parallel requests doubles up to 16, and the responses also reveal later numbers. On a disk, if several objects
        were found, the number after the missing number is also read. If `ahead` is true, the number of parallel
        requests is 16 from the start. A later number is then not an error, because opening a log also lists later
        numbers.
        """
        objects: list[bytes] = []
        backoff: Backoff | None = None
        while True:
            objects_read, is_passed = self._read_until_missing(number + len(objects), ahead, backoff is not None)
            objects += objects_read
            if not is_passed or ahead:
                break
            backoff = backoff if backoff is not None and not objects_read else Backoff(self.env)
            if not backoff.wait():
                raise self.gap(number + len(objects))
        if objects:
            # All objects are in one directory, so syncing the latest object makes all names durable. Defer the sync,
            # because a process that only follows the log does not need it.
            self._unsynced.add(latest := number + len(objects) - 1)
            for older in [other for other in tuple(self._unsynced) if other < latest]:
                self._unsynced.discard(older)
        return objects

    def _read_until_missing(self, number: int, ahead: bool, must_check: bool) -> tuple[list[bytes], bool]:
        """Read objects up to the first missing object. Also return True if a later object is known to exist.

        If `must_check` is true, a later object existed before, so check again whether it exists.
        """
        objects: list[bytes] = []
        if not self.is_remote:
            while (data := self.read(number + len(objects))) is not None:
                objects.append(data)
            missing = number + len(objects)
            must_check = must_check or (len(objects) > 1 and not ahead)
            is_passed = must_check and self.store.stat(self.key(missing + 1)) is not None
            # Other processes may have created both objects since the missing number was read.
            return objects, is_passed and self.read(missing) is None
        batch = READ_AHEAD if ahead else 2 if must_check else 1
        while True:
            first = number + len(objects)
            responses = list(map_requests(self.store, self.read, range(first, first + batch)))
            found = _leading_objects(responses)
            objects += found
            if len(found) < batch:
                return objects, any(data is not None for data in responses[len(found) :])
            batch = min(2 * batch, READ_AHEAD)

    def read_and_list(self, number: int) -> tuple[list[bytes], int]:
        """Read all objects starting at `number`, and list the existing numbers in parallel.

        Return the objects and the last existing number. The listing may be stale, so later numbers that were read are
        also taken into account.
        """

        def request(number_to_read: int | None) -> bytes | int | None:
            return self.last_listed(number - 1) if number_to_read is None else self.read(number_to_read)

        last, *responses = map_requests(self.store, request, (None, *range(number, number + READ_AHEAD)))
        objects = _leading_objects(responses)
        if len(objects) == READ_AHEAD:
            objects += self.read_forward(number + READ_AHEAD, ahead=True)
        existing = [later for later, data in enumerate(responses, number) if data is not None]
        return objects, max([*existing, last if isinstance(last, int) else number - 1])

    def read_some(self, numbers: Sequence[int]) -> dict[int, bytes]:
        """Return the existing objects with these numbers. On a remote store, the objects are read in parallel."""
        objects = zip(numbers, map_requests(self.store, self.read, numbers), strict=True)
        return {number: data for number, data in objects if data is not None}

    def read_checking_root(self, number: int) -> ReadResult:
        """Read all objects starting at `number`, and check in parallel that the root is the opened root."""

        def request(first: int | None) -> list[bytes] | bool:
            return self._is_root() if first is None else self.read_forward(first)

        try:
            objects, is_root_checked = map_requests(self.store, request, (number, None))
        except Unavailable:
            return NOTHING_READ
        return ReadResult(tuple(objects) if isinstance(objects, list) else (), True, None, is_root_checked is True)

    def listed(self, after: int) -> list[int]:
        """List the numbers that are greater than `after`. The listing may be stale."""
        return entry_numbers(self.store, self.prefix, after)

    def last_listed(self, after: int) -> int:
        """Return the largest listed number above `after`, or `after` if there is no such number."""
        return max(self.listed(after), default=after)

    def gap(self, missing: int) -> Corrupt | Unavailable:
        """Return the error for a number that is still missing after the wait although a later number exists."""
        later = self.listed(missing - 1)
        if missing in later:
            problem = f"{self.key(missing)} in {self.store.location} is listed but cannot be read"
            return Unavailable(f"{problem}: a name cache may hide it; try again later")
        return Corrupt(missing_numbers(self.store, missing, later), file=self.key(missing))

    def make_durable(self) -> None:
        """Make the objects that have been read durable before an object that depends on these objects is written in
        another directory.

        A process may read an object before its writer has synced the directory, and file systems do not have to
        preserve the order of two fsyncs. Therefore a later object in another directory may survive a power loss
        although this object does not.
        """
        for number in tuple(self._unsynced):
            self.store.settle(self.key(number))
            self._unsynced.discard(number)

    # -- creating

    def create(self, number: int, data: bytes, commit_id: str, expected: Expected) -> tuple[CreateResult, ReadResult]:
        """Create a number, as described in the module docstring. Also return the objects that were read.

        Args:
            commit_id: The commit id in `data`, which identifies the object of this process.

        Raises:
            Fenced: If the root was replaced, or if `number - 1` is not the expected object. In both cases, nothing has
                been written.
            Unavailable: If the outcome is unknown after 90 s. If the store rejects the first attempt because a
                permission or free space is missing, the error is raised immediately, and nothing has been written.
        """
        backoff: Backoff | None = None
        is_root_checked = expected.is_root_checked
        while True:
            found, failure = self._attempt(number, data, is_root_checked, is_first=backoff is None)
            is_root_checked = False
            if self.env.elapsed_ms(expected.seen) > STALE_MS:
                # The object of this writer may have been created and deleted before a stalled writer created the number
                # again.
                self._check_root(number, may_be_written=True)
                return CreateResult.UNKNOWN, found
            result = _conclusion(found, data, commit_id)
            if result is None and backoff is not None and backoff.is_over():
                if not found.objects:
                    raise self._unknown(number, failure)
                # The object has no readable commit id, so another writer created it. If this writer had created it, its
                # commit id would be readable by now.
                result = CreateResult.CONFLICT
            if result is not None:
                return self._verified(result, found, number, commit_id, expected), found
            backoff = backoff or Backoff(self.env, tries=1)
            backoff.sleep()

    def _attempt(self, number: int, data: bytes, is_root_checked: bool, *, is_first: bool) -> tuple[ReadResult, str]:
        """Create a number, and read the existing object. Also return the reason if no object could be read."""
        try:
            if not is_root_checked:
                self._check_root(number, may_be_written=not is_first)
            if self.store.create(self.key(number), data):
                return ReadResult((data,)), ""
            return self._read_after_conflict(number), "it exists, but cannot be read"
        except Unavailable as error:
            try:
                stored = self.read(number)
                if stored is not None:
                    # The object may exist although its name could not be made durable.
                    self.store.settle(self.key(number))
            except Unavailable:
                return NOTHING_READ, str(error)
            if error.is_denied and stored is None and is_first:
                raise Unavailable(f"{error}; nothing was written", is_denied=True) from error
            return NOTHING_READ if stored is None else ReadResult((stored,)), str(error)

    def _read_after_conflict(self, number: int) -> ReadResult:
        """Read the number.

        On a remote store, also read the objects that the writer needs for its next attempt in parallel.
        """
        if not self.is_remote:
            stored = self.read(number)
            return NOTHING_READ if stored is None else ReadResult((stored,))
        numbers = range(number, number + 1 + LOSER_READS)
        requests = (*numbers, *range(max(number - 1, 0), number), None)
        responses = dict(zip(requests, map_requests(self.store, self._read_or_false, requests), strict=True))
        objects = _leading_objects([responses[later] for later in numbers])
        before = responses.get(number - 1)
        return ReadResult(
            tuple(objects),
            is_all=responses.get(number + len(objects), False) is None,
            before=before if isinstance(before, bytes) else None,
            is_root_checked=responses[None] is True,
        )

    def _read_or_false(self, number: int | None) -> bytes | bool | None:
        """Return an object. If `number` is None, return whether the root is the opened root.

        Return False if the request fails.
        """
        with suppress(Unavailable):
            return self._is_root() if number is None else self.read(number)
        return False

    def _verified(
        self, result: CreateResult, found: ReadResult, number: int, commit_id: str, expected: Expected
    ) -> CreateResult:
        """Verify the objects around `number` (steps 4 and 5), and return the result."""
        is_conflict = result is CreateResult.CONFLICT
        if is_conflict and found.before is not None and crc32c.crc32c(found.before) == expected.crc:
            return result
        stored = found.objects[0]
        result = self._confirm(result, number, stored, commit_id, expected)
        if result is CreateResult.CREATED:
            self._remember(number, crc32c.crc32c(stored), commit_id)
        return result

    def _confirm(
        self, result: CreateResult, number: int, stored: bytes, commit_id: str, expected: Expected
    ) -> CreateResult:
        """Check that the expected objects before `number` exist.

        If this writer's object may have filled a gap, also check the object after the gap.

        A writer that lost the race also performs this check, because the other process may have outlived the root. That
        process then deletes its object.
        """
        is_created = result is CreateResult.CREATED
        previous: list[EntryRef] = [] if expected.crc is None else [(number - 1, expected.crc)]
        if previous and is_created and expected.earlier is not None and expected.earlier[0] < number - 1:
            previous.append(expected.earlier)
        must_check_next = is_created and self.env.elapsed_ms(expected.checked or expected.seen) > RECENT_MS
        if self.is_remote and len(previous) + must_check_next > 1:
            # One round trip is sufficient if all of these objects are the expected objects.
            numbers = [*(earlier for earlier, _ in previous), *([number + 1] if must_check_next else [])]
            objects = dict(zip(numbers, map_requests(self.store, self._read_or_false, numbers), strict=True))
            must_check_next = must_check_next and objects[number + 1] is not None
            previous = [
                ref
                for ref in previous
                if not isinstance(data := objects[ref[0]], bytes) or crc32c.crc32c(data) != ref[1]
            ]
        for ref in previous:
            if not self._confirm_previous(number, ref, commit_id, expected.seen):
                return CreateResult.UNKNOWN
        if must_check_next:
            self._check_next(number, stored)
        return result

    def _confirm_previous(self, number: int, ref: EntryRef, commit_id: str, seen: ClockReading) -> bool:
        """Return True if an expected object before `number` exists. Return False if the check took so long that the
        object may have been deleted.

        Two time limits apply. Caches may hide an object until the first limit (`hidden`), so only reads after this
        limit prove that the object is missing or different. The second limit (`unclear`) applies to failed requests,
        and to reads after the first limit whose result is inconclusive.

        Raises:
            Fenced: The object is missing or different.
            Unavailable: It is unclear whether the object exists.
        """
        hidden: Backoff | None = None
        unclear: Backoff | None = None
        differing = 0
        while True:
            is_over, failure = hidden is not None and hidden.is_over(), ""
            try:
                previous = self._read_previous(number, ref, check_listing=is_over)
            except Unavailable as error:
                previous, failure = _Previous.UNCLEAR, str(error)
            if previous is _Previous.EXPECTED:
                return True
            # Create the backoff only here, because the first read is sufficient for nearly every commit.
            hidden = hidden or Backoff(self.env)
            unclear = (unclear or Backoff(self.env)) if is_over or failure else None
            if self.env.elapsed_ms(seen) > STALE_MS:
                self._check_root(number, may_be_written=True)
                return False
            differing += previous in (_Previous.DIFFERENT, _Previous.CORRUPT)
            if previous is _Previous.MISSING or differing >= CONFIRMING_READS:
                if previous is _Previous.CORRUPT:
                    # The object exists. Its readers report the corruption.
                    return True
                self._reject(number, ref[0], commit_id)
            if is_over and unclear is not None and unclear.is_over():
                raise self._unknown(number, failure or f"the previous object {self.key(ref[0])} cannot be read")
            for backoff in (hidden, unclear):
                if backoff is not None:
                    backoff.tries += 1
            self.env.pause(differing or hidden.tries)

    def _read_previous(self, number: int, ref: EntryRef, *, check_listing: bool) -> _Previous:
        """Read an expected object before `number` once.

        If the object cannot be read, a remote journal is listed. A local journal is listed if `check_listing` is true.
        """
        earlier, crc = ref
        data = self.read(earlier)
        if data is not None and crc32c.crc32c(data) == crc:
            return _Previous.EXPECTED
        archived = self.archived()
        if archived is not None and number > archived[0] and (earlier < archived[0] or ref == archived):
            return _Previous.EXPECTED
        if data is not None:
            try:
                check_stored(data, self.key(earlier))
            except Corrupt:
                return _Previous.CORRUPT
            return _Previous.DIFFERENT
        if check_listing or self.is_remote:
            listed = self.listed(-1)
            # A client adds objects that it creates to its cached listing, so the listing may be too old to contain the
            # previous object. The object may also have been created between the read and the listing.
            if number in listed and earlier not in listed:
                return _Previous.MISSING
        return _Previous.UNCLEAR

    def _check_next(self, number: int, data: bytes) -> None:
        """Check the object after a new object.

        If the next object follows another object, which was lost, delete the new object and raise an error.

        A process that outlived the root may have created the next object and delete it soon, so wait for the deletion
        first.
        """
        crc, failure = crc32c.crc32c(data), ""
        backoff: Backoff | None = None
        while True:
            try:
                following, failure = self.read(number + 1), ""
                if following is None or not follows_other(following, crc):
                    return
                if (stored := self.read(number)) is not None and stored != data:
                    raise self._replaced(number, commit_id=peek_commit_id(data))
            except Unavailable as error:
                failure = str(error)
            backoff = backoff or Backoff(self.env)
            if backoff.is_over() and failure:
                raise self._unknown(number, failure)
            if backoff.is_over():
                if self._withdraw(number, data):
                    raise self.gap(number)
                return
            backoff.sleep()

    def _reject(self, number: int, earlier: int, commit_id: str) -> NoReturn:
        """Raise `Fenced` because `number` does not follow the expected object. If this process created it, delete it.

        Raises `Unavailable` if another process has created the next number. Either that process can read an object that
        this process cannot read, or it will delete its own object. That process may have created its object at the end
        of this process's wait, and then waits for the same time.
        """
        key = self.key(number)
        backoff = Backoff(self.env, 2 * SETTLE_MS)
        while True:
            is_own, problem = False, ""
            try:
                data = self.read(number)
                is_own = data is not None and peek_commit_id(data) == commit_id
                if data is not None and is_own and self._withdraw(number, data):
                    raise self._replaced(earlier, note=f"; {key} was withdrawn")
                # An object that a cache hides may belong to another process, so delete it only after it was read.
                if not is_own and (data is not None or not any(info.key == key for info in self.store.list(key))):
                    raise self._replaced(earlier)
                if not is_own:
                    problem = "it is listed but cannot be read"
            except Unavailable as error:
                problem = str(error)
            if backoff.is_over() and problem:
                problem = f"{key}, which does not follow this object, cannot be withdrawn: {problem}; delete {key}"
                raise Unavailable(f"{self._replaced(earlier)}; {problem}")
            if backoff.is_over():
                raise self._unknown(number, f"{self.key(earlier)} is missing, although {self.key(number + 1)} exists")
            backoff.sleep()

    def _withdraw(self, number: int, data: bytes) -> bool:
        """Delete the object that was just created with `data`.

        If the next object follows the new object, the new object is kept, and the result is False.
        """
        crc, is_deletion_sent = crc32c.crc32c(data), False
        backoff = Backoff(self.env)
        while True:
            try:
                following = self.read(number + 1)
                if following is not None and follows(following, crc):
                    if is_deletion_sent:
                        self._restore(number, data)
                    return False
                # Check for a following object before and after the deletion. A process that creates a following object
                # later finds that the previous object is missing.
                if is_deletion_sent and self.read(number) != data:
                    return True
                if is_deletion_sent and not backoff.wait():
                    raise self._unknown(number, f"{self.key(number)} still exists after it was deleted")
                is_deletion_sent = True
                self.store.delete(self.key(number))
            except Unavailable as error:
                if not backoff.wait():
                    raise self._unknown(number, error) from error

    def _restore(self, number: int, data: bytes) -> None:
        """Create an object again that this process may have deleted, because the next object follows it."""
        if not self.store.create(self.key(number), data) and self.read(number) != data:
            raise self._unknown(number, f"{self.key(number + 1)} follows this object, and the object was replaced")

    def _unknown(self, number: int, failure: object) -> Unavailable:
        key = self.key(number)
        return Unavailable(f"the outcome of creating {key} is unknown: {failure}; check the log before you write again")

    # -- the root

    def _check_root(self, number: int, *, may_be_written: bool) -> None:
        """Raise `Fenced` if the root was replaced, or `Unavailable` if `number` may have been written."""
        if self.root_id is None or (root_id := self._root_id()) == self.root_id:
            return
        state = (
            "no longer a root"
            if root_id is None
            else f"another root (id {root_id}) than the root that this process opened"
        )
        message = f"{self.store.location} is {state} ({self.root_id})"
        if may_be_written:
            raise self._unknown(number, message)
        raise Fenced(f"{message}: {self.key(number)} was not written; {REOPEN}")

    def _is_root(self) -> bool:
        """Return True if the root is the opened root.

        Return False if it is another root, or if its id cannot be read.
        """
        with suppress(Unavailable, Corrupt):
            return self.root_id is None or self._root_id() == self.root_id
        return False

    def _root_id(self) -> str | None:
        """Return the id of the root. Return None if there is no root and a listing confirms this."""
        for tries in range(CONFIRMING_READS):
            try:
                return read_root_id(self.store)
            except NotFound:
                if not any(info.key == ROOT_KEY for info in self.store.list(ROOT_KEY)):
                    return None
                # A cache may hide an existing object for a while.
                self.env.pause(tries)
            except Corrupt:
                if tries == CONFIRMING_READS - 1:
                    raise
        raise Unavailable(f"{ROOT_KEY} of {self.store.location} is listed but cannot be read; try again later")

    # -- copies

    def create_copy(self, key: str, data: bytes, number: int, crc: int | None) -> bool:
        """Create a copy of `number`, whose CRC-32C is `crc`, under `key`. Return False if a copy exists.

        Raises `Fenced` if the journal does not contain this object. In case of doubt, the copy is deleted, because a
        copy is only an optimization, and a copy from another journal would be read as the latest state.
        """
        try:
            created = self.store.create(key, data)
        except Unavailable:
            self._delete_unless_current(key, number, crc)
            raise
        if created:
            self._delete_unless_current(key, number, crc)
        return created

    def _delete_unless_current(self, key: str, number: int, crc: int | None) -> None:
        """If `number` does not have this CRC-32C, delete its new copy under `key` and raise `Fenced`."""
        for tries in range(CONFIRMING_READS):
            try:
                data = self.read(number)
                if data is not None and crc32c.crc32c(data) == crc and self.root_id in (None, self._root_id()):
                    return
                break
            except Corrupt:
                break
            except Unavailable:
                self.env.pause(tries)
        backoff = Backoff(self.env)
        while True:
            try:
                self.store.delete(key)
                break
            except Unavailable:
                if not backoff.wait():
                    raise
        raise Fenced(f"{self._differs(number)}; {REOPEN}")

    # -- objects created by this process

    def _remember(self, number: int, crc: int, commit_id: str) -> None:
        """Remember the latest number created here. Raises `Fenced` if another thread has created the same number."""
        if self._created.setdefault(number, (crc, commit_id)) != (crc, commit_id):
            raise self._replaced(number)
        for older in tuple(self._created):
            if older < number:
                self._created.pop(older, None)

    def check_created(self, first: int, crcs: Sequence[int | None]) -> None:
        """Raise `Fenced` if an object that was just read has a number that this process created, but another CRC.
        `first` is the number of the first object.
        """
        for number, (crc, _) in tuple(self._created.items()):
            if 0 <= number - first < len(crcs) and crcs[number - first] != crc:
                raise self._replaced(number)

    def check_followed(self, number: int) -> None:
        """Raise `Fenced` if the chain is broken after `number`, because `number` was replaced or the store does not
        provide its guarantees.
        """
        data = None
        with suppress(Unavailable):
            data = self.read(number)
        created = self._created.get(number)
        if created is not None and data is not None and crc32c.crc32c(data) != created[0]:
            raise self._replaced(number)
        what = f"the object after {self.key(number)} in {self.store.location} follows another object"
        if (error := self._contradiction(what)) is not None:
            raise error

    def invalidate(self) -> None:
        """Discard the cached probe result of the store, because a chain in the store is broken."""
        from sparklog.log.journal.probe_results import invalidate

        invalidate(self.store, self.env.wall_ms)

    def _differs(self, number: int) -> str:
        return f"{self.key(number)} in {self.store.location} differs from the object that this process has read"

    def _replaced(self, number: int, note: str = "", commit_id: str | None = None) -> Fenced:
        """Return the error for a replaced number, with a note about the actions that were taken.

        `commit_id` is the id of the object that this process created.
        """
        what, lost = self._differs(number), None
        if commit_id is None and number in self._created:
            commit_id = self._created[number][1]
        if commit_id is not None:
            what, lost = f"{what}, which created commit {commit_id} there", (self.key(number), commit_id)
        return self._contradiction(what, lost) or Fenced(f"{what}: {REPLACED}{note}; {REOPEN}")

    def _contradiction(self, what: str, lost: tuple[str, str] | None = None) -> Fenced | None:
        # Import lazily, because readers never need this module.
        from sparklog.log.journal.probe_results import contradiction

        return contradiction(self.store, self.env, what, lost)


def _leading_objects(responses: Sequence[object]) -> list[bytes]:
    """Return the objects before the first response without an object."""
    return [data for data in takewhile(lambda data: isinstance(data, bytes), responses) if isinstance(data, bytes)]


def _conclusion(found: ReadResult, data: bytes, commit_id: str) -> CreateResult | None:
    """Return whether this process or another process created the object. Return None if there is no object yet, or if
    its commit id cannot be read.
    """
    if not found.objects:
        return None
    stored = found.objects[0]
    if stored is data:
        return CreateResult.CREATED
    stored_id = peek_commit_id(stored)
    if stored_id is None:
        return None
    return CreateResult.CREATED if stored_id == commit_id else CreateResult.CONFLICT
