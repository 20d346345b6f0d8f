"""Numbered objects: create-if-absent of the next number, and reading forward to the first missing one.

The mechanism under every journal. An object's number is its place in one total order. The process that creates it has
won that place, and no process changes it any more. This module knows of an object its commit id and its CRCs alone.

A process may outlive its root: the folder is moved away and restored, or made again at the same path. So a create is
acknowledged on two conditions. The root has the id with which it was opened; that is looked at before. And the object
before it is still the one that it was made after; that is looked at afterwards, and if it is not, the new object is
taken back, for it is part of no journal. A missing one is looked for as long as caches hide names, and an object that
another one follows stays: its creator is told that the outcome is unknown.

A store that lets two create one number looks alike (`probe_results`). So the newest object created here is remembered,
and compared with whatever is read next: of this number, or made after it. That costs no request.

A missing number is the end of a journal only if no later number exists. Otherwise an object was lost, and a process
that created the missing number would fork the journal. All readers follow this rule. They differ in how they look for a
later number, because of what they read anyway:

| reader                                                | looks for a later number by         | more requests        |
|-------------------------------------------------------|-------------------------------------|----------------------|
| `read_forward` of a remote store                      | the numbers that it reads at once   | none                 |
| `read_forward` on a disk, after it has read several   | asking for the number after it      | one                  |
| `Journal._reopen`                                     | a listing (with `read_and_list`)    | one                  |
| `Journal.refresh` of a reader that paused for minutes | a listing (`Journal._is_next_lost`) | one after each pause |
| `create` that took long                               | reading it (`_check_next`)          | one                  |

If a later number exists, the missing number is read again for as long as caches may hide it. Then the gap is an error
for readers and writers; a `create` takes back its object if the next one follows another.
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
from sparklog.log.journal.clocks import SOON_MS, ClockReading, Env
from sparklog.log.journal.create_object import read_if_there
from sparklog.log.journal.documents import check_stored, peek_commit_id
from sparklog.log.journal.gaps import follows, follows_other, missing_numbers
from sparklog.log.journal.names import ROOT_KEY, commit_key, entry_numbers, read_root_id
from sparklog.storage.parallel_reads import map_requests
from sparklog.storage.retries import Backoff
from sparklog.storage.store import Store

READ_AHEAD = 16
LOSER_READS = 2
"""Numbers after a lost one that are asked for together with it, on a store with round trips."""
STALE_MS = 3_600_000
"""After this long without a sight of the newest number, the meaning of a number is no longer known: open afresh."""
SURE_TRIES = 3
"""So often in a row an object must be read as damaged, or as another one, before that is believed."""
REOPEN = "stop this process, and open the root again"
REPLACED = (
    "the root was moved away and restored, or removed and made again; if not, the store does not create objects "
    "exclusively, and sparklog doctor may show it"
)


class CreateResult(Enum):
    """The outcome of a create. `UNKNOWN`: after so long, the number may have been used and collected before."""

    CREATED = "created"
    CONFLICT = "conflict"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class ReadResult:
    """Answers to several requests, which were made at once on a store with round trips."""

    objects: tuple[bytes, ...] = ()  # from a number on, as far as they were read
    is_all: bool = False  # the one after them was missing
    before: bytes | None = None  # the object before that number; None if it was not read or is missing
    root_seen: bool = False  # the root was seen to be the one that was opened


NOTHING_READ = ReadResult()
EntryRef = tuple[int, int]
"""The number of an object, and the CRC-32C with which this process knows it."""


@dataclass(frozen=True, slots=True)
class Expected:
    """The state that a new object is made after."""

    seen: ClockReading  # when the newest number was last seen to be the one before
    crc: int | None  # the CRC-32C of that one; None: there is none
    root_seen: bool = False  # the root was seen to be the one that was opened, a moment ago
    earlier: EntryRef | None = None  # must be there as well, else the objects that were read after it are taken back
    checked: ClockReading | None = None  # when it was last known that no later number existed; None: when it was seen


@dataclass(frozen=True, slots=True)
class NumberedObjects:
    """The numbered objects under `prefix`; of the root `root_id`, if that is known here.

    `packed` looks for the newest object that is kept elsewhere: it and those before it may be deleted.
    """

    store: Store
    prefix: str
    env: Env
    root_id: str | None = None
    packed: Callable[[], EntryRef | None] = field(default=lambda: None, compare=False, repr=False)
    _unsettled: set[int] = field(default_factory=set, compare=False, repr=False)
    """The newest number that was read here, and whose name a power loss might still take."""
    _created: dict[int, tuple[int, str]] = field(default_factory=dict, compare=False, repr=False)
    """The newest number that was created here: its CRC-32C and commit id."""

    def key(self, number: int) -> str:
        return commit_key(self.prefix, number)

    def read(self, number: int) -> bytes | None:
        """Return the object of this number; None if there is none."""
        return read_if_there(self.store, self.key(number))

    def read_forward(self, number: int, ahead: bool = False) -> list[bytes]:
        """Read all objects from `number` on, up to the first missing one. Raises `Corrupt` if a later one exists.

        This takes one request per object and one for the missing number. On a store with `parallel_reads`, where each
        request costs a round trip, it requests twice as many numbers each time, up to 16 (`ahead`: 16 from the start),
        and so also finds later numbers. On a disk, if it found several objects, it also checks the number after the
        missing one. With `ahead` a later number is not an error, because opening a log lists later numbers.
        """
        objects: list[bytes] = []
        backoff: Backoff | None = None
        while True:
            objects_read, is_passed = self._read_run(number + len(objects), ahead, backoff is not None)
            objects += objects_read
            if not is_passed or ahead:
                break
            backoff = backoff if backoff is not None and not objects_read else Backoff(self.env)
            if not backoff.wait():
                raise self.gap(number + len(objects))
        if objects:
            # Names in one directory: the newest counts for all. A reader may follow for years and never settle one.
            self._unsettled.add(newest := number + len(objects) - 1)
            for older in [other for other in tuple(self._unsettled) if other < newest]:
                self._unsettled.discard(older)
        return objects

    def read_and_list(self, number: int) -> tuple[list[bytes], int]:
        """Read all objects from `number` on and list them in parallel; return them and the last number seen.

        A listing may be stale, so a later number that was read counts as well.
        """

        def ask(place: int | None) -> bytes | int | None:
            return self.last_listed(number - 1) if place is None else self.read(place)

        last, *answers = map_requests(self.store, ask, (None, *range(number, number + READ_AHEAD)))
        objects = [data for data in takewhile(lambda data: data is not None, answers) if isinstance(data, bytes)]
        if len(objects) == READ_AHEAD:
            objects += self.read_forward(number + READ_AHEAD, ahead=True)
        seen = [place for place, data in enumerate(answers, number) if data is not None]
        return objects, max([*seen, last if isinstance(last, int) else number - 1])

    def _read_run(self, number: int, ahead: bool, must_look: bool) -> tuple[list[bytes], bool]:
        """Read objects up to the first missing one; also return True if a later one is known to exist.

        `must_look`: a later one was seen before, so check for it again.
        """
        objects: list[bytes] = []
        if not self.is_remote:
            while (data := self.read(number + len(objects))) is not None:
                objects.append(data)
            missing = number + len(objects)
            is_passed = (must_look or (len(objects) > 1 and not ahead)) and self.store.stat(
                self.key(missing + 1)
            ) is not None
            # Other processes may have created both since the missing number was read.
            return objects, is_passed and self.read(missing) is None
        at_once = READ_AHEAD if ahead else 2 if must_look else 1
        while True:
            first = number + len(objects)
            answers = list(map_requests(self.store, self.read, range(first, first + at_once)))
            objects += [data for data in takewhile(lambda data: data is not None, answers) if data is not None]
            count = number + len(objects) - first
            if count < at_once:
                return objects, any(data is not None for data in answers[count:])
            at_once = min(2 * at_once, READ_AHEAD)

    def read_some(self, numbers: Sequence[int]) -> dict[int, bytes]:
        """Return the objects of these numbers, without missing ones: read at once where requests have round trips."""
        objects = zip(numbers, map_requests(self.store, self.read, numbers), strict=True)
        return {number: data for number, data in objects if data is not None}

    def listed(self, after: int) -> list[int]:
        """List the numbers of objects after one; a listing may be stale."""
        return entry_numbers(self.store, self.prefix, after)

    def last_listed(self, after: int) -> int:
        """Return the largest listed number above `after`; `after` if there is none."""
        return max(self.listed(after), default=after)

    def gap(self, missing: int) -> Corrupt | Unavailable:
        """Return the error for a number that is still missing after a wait although a later one exists."""
        later = self.listed(missing - 1)
        if missing in later:
            problem = f"{self.key(missing)} in {self.store.location} is listed and cannot be read"
            return Unavailable(f"{problem}: a cache of names may hide it; try again later")
        return Corrupt(missing_numbers(self.store, missing, later), file=self.key(missing))

    @property
    def is_remote(self) -> bool:
        """True on a store with round trips, where several requests at once take little longer than one."""
        return self.store.parallel_reads > 1

    def read_checking_root(self, number: int) -> ReadResult:
        """Read all objects from `number` on, and look whether the root is the one that was opened, at once."""

        def ask(place: int | None) -> list[bytes] | bool:
            return self._is_root() if place is None else self.read_forward(place)

        try:
            objects, root_seen = map_requests(self.store, ask, (number, None))
        except Unavailable:
            return NOTHING_READ
        return ReadResult(tuple(objects) if isinstance(objects, list) else (), True, None, root_seen is True)

    def _look_after_create(self, number: int) -> ReadResult:
        """Read the number; on a store with round trips at the same time what a loser needs before its next attempt."""
        if not self.is_remote:
            stored = self.read(number)
            return NOTHING_READ if stored is None else ReadResult((stored,))
        later = range(number + 1, number + 1 + LOSER_READS)
        places = (number, *later, *range(max(number - 1, 0), number), None)
        answers = dict(zip(places, map_requests(self.store, self._seen, places), strict=True))
        objects: list[bytes] = []
        for later_number in (number, *later):
            if not isinstance(data := answers[later_number], bytes):
                break
            objects.append(data)
        earlier = answers.get(number - 1)
        is_all = answers.get(number + len(objects), False) is None
        return ReadResult(
            tuple(objects), is_all, earlier if isinstance(earlier, bytes) else None, answers[None] is True
        )

    def _seen(self, place: int | None) -> bytes | bool | None:
        """Return an object or, for None, whether the root is the one that was opened; False if that is not known."""
        with suppress(Unavailable):
            return self._is_root() if place is None else self.read(place)
        return False

    def make_durable(self) -> None:
        """Make durable what was read here, before an object that rests on it is written elsewhere.

        A name can be read before its writer has made it durable, and file systems need not keep the order of two
        fsyncs: what was written later, in another folder, may outlive it.
        """
        for number in tuple(self._unsettled):
            self.store.settle(self.key(number))
            self._unsettled.discard(number)

    def create(self, number: int, data: bytes, commit_id: str, basis: Expected) -> tuple[CreateResult, ReadResult]:
        """Create a number; also return what was read of the object there now and of those around it.

        A lost answer is looked up by `commit_id`, the one in `data`; if no whole object is there, the same number is
        tried again.

        `Unavailable` if that stays unclear for 90 s: the outcome is unknown then. At once where a right is missing, and
        if the root is another one than was opened, or `number - 1` is another object than this one was made after
        (`Fenced`): nothing is written then.
        """
        backoff = Backoff(self.env, tries=1)
        root_seen = basis.root_seen
        while True:
            sight, failure = self._attempt(number, data, root_seen, is_first=backoff.tries == 1)
            root_seen = False
            if self.env.elapsed_ms(basis.seen) > STALE_MS:
                # Whichever object is there: ours may have come first and been collected, and another sleeper's after.
                self._check_root(number, unknown=True)
                return CreateResult.UNKNOWN, sight
            answer = _concluded(sight, data, commit_id)
            if answer is None and backoff.is_over():
                if not sight.objects:
                    raise self._unknown(number, failure)
                # Ours would have a commit id by now.
                answer = CreateResult.CONFLICT
            if answer is not None:
                return self._acknowledged(answer, sight, number, commit_id, basis), sight
            backoff.sleep()

    def _attempt(self, number: int, data: bytes, root_seen: bool, *, is_first: bool) -> tuple[ReadResult, str]:
        """Create a number, and read the object that is there; also return why that is unclear if none was read."""
        try:
            if not root_seen:
                self._check_root(number, unknown=not is_first)
            created = self.store.create(self.key(number), data)
            return ReadResult((data,)) if created else self._look_after_create(number), "it exists and cannot be read"
        except Unavailable as error:
            try:
                stored = self.read(number)
            except Unavailable:
                return NOTHING_READ, str(error)
            if error.is_denied and stored is None and is_first:
                raise Unavailable(f"{error}; nothing was written", is_denied=True) from error
            return NOTHING_READ if stored is None else ReadResult((stored,)), str(error)

    def _acknowledged(
        self, answer: CreateResult, sight: ReadResult, number: int, commit_id: str, basis: Expected
    ) -> CreateResult:
        """Return the answer once the objects around `number` agree with it: see the module."""
        if answer is CreateResult.CONFLICT and sight.before is not None and crc32c.crc32c(sight.before) == basis.crc:
            return answer
        stored = sight.objects[0]
        answer = self._confirm(answer, number, stored, commit_id, basis)
        if answer is CreateResult.CREATED:
            self._remember(number, crc32c.crc32c(stored), commit_id)
        return answer

    def _unknown(self, number: int, failure: object) -> Unavailable:
        key = self.key(number)
        return Unavailable(f"creating {key} has an unknown outcome: {failure}; look before you write again")

    def _check_root(self, number: int, *, unknown: bool) -> None:
        """`Fenced` if this is no longer the root that was opened; `Unavailable` if `number` may have been written."""
        if self.root_id is None or (now := self._root_id()) == self.root_id:
            return
        state = "no root any more" if now is None else f"another root (id {now}) than this process opened"
        message = f"{self.store.location} is {state} ({self.root_id})"
        if unknown:
            raise self._unknown(number, message)
        raise Fenced(f"{message}: {self.key(number)} was not written; {REOPEN}")

    def _is_root(self) -> bool:
        """True if the root is the one that was opened; False also where that cannot be seen."""
        with suppress(Unavailable, Corrupt):
            return self.root_id is None or self._root_id() == self.root_id
        return False

    def create_copy(self, key: str, data: bytes, number: int, crc: int | None) -> bool:
        """Create a copy of `number`, whose CRC-32C is `crc`, under `key`; False if one is there. `Fenced` if not here.

        A copy only saves time, so it may go in doubt; one of another journal would be taken for the newest state.
        """
        try:
            created = self.store.create(key, data)
        except Unavailable:
            self._drop_unless_here(key, number, crc)
            raise
        if created:
            self._drop_unless_here(key, number, crc)
        return created

    def _drop_unless_here(self, key: str, number: int, crc: int | None) -> None:
        """Delete the copy of `number` under `key`, just written, unless `number` with this CRC-32C is here."""
        for tries in range(SURE_TRIES):
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
        raise Fenced(f"{self.key(number)} in {self.store.location} is not what this process has seen; {REOPEN}")

    def _root_id(self) -> str | None:
        """Return the id of the root that is here now; None if there is none, which a listing must confirm."""
        for tries in range(SURE_TRIES):
            try:
                return read_root_id(self.store)
            except NotFound:
                if not any(info.key == ROOT_KEY for info in self.store.list(ROOT_KEY)):
                    return None
                # A cache hides for a while what exists.
                self.env.pause(tries)
            except Corrupt:
                if tries == SURE_TRIES - 1:
                    raise
        raise Unavailable(f"{ROOT_KEY} of {self.store.location} is listed and cannot be read; try again later")

    def _confirm(
        self, answer: CreateResult, number: int, stored: bytes, commit_id: str, basis: Expected
    ) -> CreateResult:
        """Return the answer once the object before `number` is seen; else `Fenced`, and ours is taken back.

        The loser looks as well: the winner may be another process that has outlived the root, and takes it back.
        If ours may have been created in a gap, also check the object after it (`_check_next`).
        """
        is_ours = answer is CreateResult.CREATED
        places: list[EntryRef] = [] if basis.crc is None else [(number - 1, basis.crc)]
        if places and is_ours and basis.earlier is not None and basis.earlier[0] < number - 1:
            places.append(basis.earlier)
        must_check = is_ours and self.env.elapsed_ms(basis.checked or basis.seen) > SOON_MS
        numbers = [*(earlier for earlier, _ in places), *([number + 1] if must_check else [])]
        if self.is_remote and len(numbers) > 1:
            objects = dict(zip(numbers, map_requests(self.store, self._seen, numbers), strict=True))
            must_check = must_check and objects[number + 1] is not None
            places = [
                place
                for place in places
                if not isinstance(data := objects[place[0]], bytes) or crc32c.crc32c(data) != place[1]
            ]
        for place in places:
            if self._is_uncertain(number, place, commit_id, basis.seen):
                return CreateResult.UNKNOWN
        if must_check:
            self._check_next(number, stored)
        return answer

    def _check_next(self, number: int, data: bytes) -> None:
        """Check the object after a new one; if it follows another, lost object, delete the new one and raise.

        A process that outlived the root may have created that object and delete it soon, so wait for that first.
        """
        crc, failure = crc32c.crc32c(data), ""
        backoff: Backoff | None = None
        while True:
            try:
                following, failure = self.read(number + 1), ""
                if following is None or not follows_other(following, crc):
                    return
                if (here := self.read(number)) is not None and here != data:
                    raise self._replaced(number, commit_id=peek_commit_id(data))
            except Unavailable as error:
                failure = str(error)
            backoff = backoff or Backoff(self.env)
            if backoff.is_over() and failure:
                raise self._unknown(number, failure)
            if backoff.is_over():
                if self._take_back(number, data):
                    raise self.gap(number)
                return
            backoff.sleep()

    def _take_back(self, number: int, data: bytes) -> bool:
        """Delete the object `number`, just created with `data`; False, and it stays, if the next object follows it."""
        crc, is_tried = crc32c.crc32c(data), False
        backoff = Backoff(self.env)
        while True:
            try:
                if self._is_followed(number, crc):
                    if is_tried and not self.store.create(self.key(number), data) and self.read(number) != data:
                        raise self._unknown(number, f"{self.key(number + 1)} follows it, and another one is there")
                    return False
                # Check for a follower before and after the deletion. One created later finds its predecessor missing.
                if is_tried and self.read(number) != data:
                    return True
                if is_tried and not backoff.wait():
                    raise self._unknown(number, f"{self.key(number)} is still there after it was deleted")
                is_tried = True
                self.store.delete(self.key(number))
            except Unavailable as error:
                if not backoff.wait():
                    raise self._unknown(number, error) from error

    def _is_followed(self, number: int, crc: int) -> bool:
        following = self.read(number + 1)
        return following is not None and follows(following, crc)

    def _is_uncertain(self, number: int, place: EntryRef, commit_id: str, seen: ClockReading) -> bool:
        """True if it took too long to see an object before `number`: it may have been collected since."""
        (earlier, crc), others = place, 0
        backoff: Backoff | None = None
        failure = ""
        while True:
            data, is_gap, is_last = None, False, backoff is not None and backoff.is_over()
            try:
                data = self.read(earlier)
                if data is not None and crc32c.crc32c(data) == crc:
                    return False
                packed = self.packed()
                if packed is not None and number > packed[0] and (earlier < packed[0] or place == packed):
                    return False
                # A client adds what it creates to the listing that it remembers, which need not show the one before.
                is_gap = data is None and (is_last or self.is_remote) and self._is_gap(number, earlier)
            except Unavailable as error:
                failure = str(error)
            # Made late: the first look is enough for nearly every commit.
            backoff = backoff or Backoff(self.env)
            if self.env.elapsed_ms(seen) > STALE_MS:
                self._check_root(number, unknown=True)
                return True
            backoff.tries += 1
            others += data is not None
            if is_gap or others >= SURE_TRIES:
                try:
                    if data is not None:
                        check_stored(data, self.key(earlier))
                except Corrupt:
                    # It is there; that it is damaged is for its readers to say.
                    return False
                self._refuse(number, earlier, commit_id)
            if is_last:
                raise self._unknown(number, failure or f"{self.key(earlier)}, which is before it, cannot be read")
            self.env.pause(others or backoff.tries)

    def _is_gap(self, number: int, earlier: int) -> bool:
        """True if a listing that shows `number` does not show an earlier one."""
        listed = self.listed(-1)
        return number in listed and earlier not in listed

    def _refuse(self, number: int, earlier: int, commit_id: str) -> NoReturn:
        """Raise `Fenced`: `number` follows no object that is here. If it is ours, delete it.

        `Unavailable` if another process has gone on from it: it sees what this one does not, or takes its own back.
        """
        key = self.key(number)
        backoff = Backoff(self.env)
        while True:
            is_ours = False
            try:
                data = self.read(number)
                is_ours = data is not None and peek_commit_id(data) == commit_id
                if data is not None and is_ours and self._take_back(number, data):
                    raise self._replaced(earlier, f"; {key} was taken back")
                # One that a cache hides may be another process's: it is deleted only when it was read.
                if not is_ours and (data is not None or not any(info.key == key for info in self.store.list(key))):
                    raise self._replaced(earlier)
                if backoff.is_over() and not is_ours:
                    raise Unavailable("it is listed and cannot be read")
            except Unavailable as error:
                if backoff.is_over():
                    problem = f"{key}, which follows no object here, cannot be taken back: {error}; delete it"
                    raise Unavailable(f"{self._replaced(earlier)}; {problem}") from error
            if is_ours and backoff.is_over():
                raise self._unknown(number, f"{self.key(number + 1)} follows it, and {self.key(earlier)} is missing")
            backoff.sleep()

    def _remember(self, number: int, crc: int, commit_id: str) -> None:
        """Remember the newest number created here. `Fenced` if another thread was told that it had created it, too."""
        if self._created.setdefault(number, (crc, commit_id)) != (crc, commit_id):
            raise self._replaced(number)
        for older in tuple(self._created):
            if older < number:
                self._created.pop(older, None)

    def check_created(self, first: int, crcs: Sequence[int | None]) -> None:
        """`Fenced` if a number that was created here is among objects just read, from `first` on, with another CRC."""
        for number, (crc, _) in tuple(self._created.items()):
            if 0 <= number - first < len(crcs) and crcs[number - first] != crc:
                raise self._replaced(number)

    def check_followed(self, number: int) -> None:
        """Look into a chain that breaks after `number`: `Fenced` if ours is gone, or the store is to blame."""
        data = None
        with suppress(Unavailable):
            data = self.read(number)
        created = self._created.get(number)
        if created is not None and data is not None and crc32c.crc32c(data) != created[0]:
            raise self._replaced(number)
        what = f"the object after {self.key(number)} in {self.store.location} was made after another one"
        if (error := self._contradiction(what)) is not None:
            raise error

    def invalidate(self) -> None:
        """Take back the verdict on the store: a chain is broken in it."""
        from sparklog.log.journal.probe_results import invalidate

        invalidate(self.store, self.env.wall_ms)

    def _replaced(self, number: int, done: str = "", commit_id: str | None = None) -> Fenced:
        """Return the error for a number that is not what this process knows; `commit_id`: of what it created there."""
        what, lost = f"{self.key(number)} in {self.store.location} is not what this process has seen", None
        if commit_id is None and number in self._created:
            commit_id = self._created[number][1]
        if commit_id is not None:
            what, lost = f"{what}, which created commit {commit_id} there", (self.key(number), commit_id)
        return self._contradiction(what, lost) or Fenced(f"{what}: {REPLACED}{done}; {REOPEN}")

    def _contradiction(self, what: str, lost: tuple[str, str] | None = None) -> Fenced | None:
        # Who only reads needs none of it.
        from sparklog.log.journal.probe_results import contradiction

        return contradiction(self.store, self.env, what, lost)


def _concluded(sight: ReadResult, data: bytes, commit_id: str) -> CreateResult | None:
    """Return whose object is there; None if there is none yet, or one whose commit id cannot be read."""
    if not sight.objects:
        return None
    stored = sight.objects[0]
    if stored is data:
        return CreateResult.CREATED
    stored_id = peek_commit_id(stored)
    return None if stored_id is None else CreateResult.CREATED if stored_id == commit_id else CreateResult.CONFLICT
