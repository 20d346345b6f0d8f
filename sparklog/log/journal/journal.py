"""The journal of topics, consumer groups and transactional ids: open it, follow it, and append to it.

A journal is a chain of numbered entries (see `numbered_objects`), and its state is the result of applying these
entries. Each entry contains the CRC-32C of the previous entry. Writer A appends an entry (`_write`) as follows:

1. A drafts the entry from its latest known state, which is the state after entry n, and creates entry n + 1 if this
   entry does not exist.
2. If n + 1 exists or no response arrives, A reads n + 1. If n + 1 has A's commit id, A's entry was written and only the
   response was lost. If n + 1 does not exist, A creates n + 1 again. If Writer B created n + 1, A reads forward to the
   first missing number, drafts the entry again from that state, and creates this number. After the third lost race, A
   waits a random time.
3. If more than an hour has passed between A's last read of the end of the journal and the response, numbers may have
   been deleted and reused. A opens the journal again and searches for its commit id. If the search is inconclusive, the
   outcome is unknown.
4. A writes a checkpoint if a checkpoint is due. If writing the checkpoint fails, the entry remains valid.

On a remote store, requests are made in parallel. Before step 1, A reads n + 1 and the id of the root in parallel. After
a lost race, A reads the lost number, its neighbors and the id of the root in parallel. If A has used entries that were
read in parallel, it reads the entry before them again after it has created its own entry (`Expected.earlier`).
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Generic, TypeVar

from sparklog.common.reached import reached
from sparklog.errors import Corrupt, NotFound, SparklogError, Unavailable
from sparklog.format import crc32c
from sparklog.log.journal.clocks import ClockReading
from sparklog.log.journal.documents import peek_commit_id
from sparklog.log.journal.names import checkpoint_key, checkpoint_prefix, log_folder, numbers_below
from sparklog.log.journal.numbered_objects import (
    NOTHING_READ,
    READ_AHEAD,
    STALE_MS,
    CreateResult,
    EntryRef,
    Expected,
    NumberedObjects,
    ReadResult,
)
from sparklog.log.journal.seen_state import Advance, E, RootAccess, S, SeenState
from sparklog.storage.retries import Backoff

WAIT_AFTER_LOSSES = 3
REMOTE_WAIT = 2
"""On a remote store, the wait between attempts stops increasing after this many lost races. The wait is then 80 ms.

An attempt takes about 80 ms, and a writer that waited longer would starve.
"""
MAX_OPEN_ATTEMPTS = 3
READS_OF_MISSING = 10
"""Number of reads of a missing number before the journal is opened again."""
LIST_AFTER_MS, LIST_AFTER_REMOTE_MS = 60_000, 300_000
"""Time since the last poll after which a follower lists later entries, on a disk and on a remote store.

If a follower does not find the next entry, the entry may have been lost after other processes created it and later
entries. A follower that polls frequently does not list entries.
"""
_LOG = logging.getLogger("sparklog.log")


D = TypeVar("D")


class Journal(ABC, Generic[S, E, D]):
    """A journal with its latest known state. Threads may share it.

    `S` is the type of the state, `E` the type of an entry, and `D` the type of a draft. This class adds the number of
    the entry and the CRC-32C of the previous entry to a draft. `title` and `noun` are used in messages, for example
    "topic 'orders'" and "commit".

    The following methods return the latest state:

    | method                                                 | requests                                                |
    |--------------------------------------------------------|---------------------------------------------------------|
    | `known`, `known_since`                                 | none                                                    |
    | `current`, `_open_if_stale`                            | none if the known state is younger than an hour         |
    | `read_next`                                            | one for the next entry                                  |
    | `refresh`, `_refresh_from`                             | one per new entry, and one for the first missing number |
    | `refresh_checking_root`, `_refresh_from_checking_root` | the same; on a remote store, one more in parallel for   |
    |                                                        | the root                                                |
    | `_apply`                                               | the requests of `_refresh_from` that are still needed   |
    | `_reopen`                                              | two listings, a checkpoint, and the entries after it    |

    If the known state is older than an hour, all methods except those in the first row open the journal again.
    """

    noun = "entry"

    def __init__(self, root: RootAccess, prefix: str, title: str) -> None:
        self.store = root.store
        self.env = root.env
        self.prefix = prefix
        self.title = title
        self._guard = root.guard
        self._numbered = NumberedObjects(root.store, prefix, root.env, root.root_id)
        self._latest: SeenState[S] | None = None
        self._gap: tuple[int, Backoff] | None = None
        """A missing number below existing numbers, and the backoff of the wait for it.

        If the journal is opened again, the wait continues instead of starting again.
        """
        self._writes = False
        self.defers_checkpoints = False
        """True if the user of this object calls `write_due_checkpoint` after writes, so that a write does not have to
        wait for its checkpoint. A write still writes a checkpoint if two checkpoints are due.
        """

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.prefix!r}, {self.store.location!r})"

    # -- methods that each kind of journal defines

    @abstractmethod
    def _empty(self) -> S: ...

    @abstractmethod
    def _decode(self, data: bytes, key: str, number: int) -> E:
        """Decode entry `number`. Raises `Corrupt` (with `key`) if it is damaged or has another number."""

    @abstractmethod
    def _encode(self, draft: D, state: S, commit_id: str) -> bytes: ...

    @abstractmethod
    def _applied(self, state: S, entries: Sequence[E]) -> S:
        """Return the state after the next entries. Raises `Corrupt` if they do not follow the state."""

    def _check(self, state: S, entry: E) -> None:
        """Raise an error if an entry that is to be written after `state` violates an invariant."""

    @property
    @abstractmethod
    def _entries_per_checkpoint(self) -> int: ...

    @abstractmethod
    def _decode_checkpoint(self, data: bytes, key: str, number: int) -> S:
        """Decode the state in a checkpoint. Raises `Corrupt` (with `key`) if it is damaged or has another number."""

    @abstractmethod
    def _write_checkpoint(self, base: SeenState[S]) -> SeenState[S]:
        """Write a checkpoint of `base`, and return `base` with a reference to the checkpoint."""

    # -- reading

    def key(self, number: int) -> str:
        return self._numbered.key(number)

    def known(self) -> S | None:
        """Return the latest state that this process has read, or None if it has not read a state.

        No request is sent.
        """
        return None if self._latest is None else self._latest.state

    def known_since(self) -> ClockReading | None:
        """Return when the latest known state was read, or None if no state has been read."""
        return None if self._latest is None else self._latest.seen

    def current(self) -> S:
        """Return the latest known state. No request is sent if this state is younger than an hour."""
        return self._open_if_stale().state

    def refresh(self) -> S:
        """Return the latest state. If there are no new entries, only one request is sent."""
        return self._refresh_from(self._latest).latest.state

    def read_next(self) -> S:
        """Read the next entry, if it exists, with one request.

        More entries may follow, so the caller must read again.
        """
        base, seen = self._open_if_stale(), self.env.now()
        data = self._numbered.read(base.state.number + 1)
        if data is None:
            return self._publish(self._polled(base, seen)).state
        # The end of the journal was not read again, so the time of its last read does not change.
        return self._apply(base, ReadResult((data,), True), base.seen).latest.state

    def refresh_checking_root(self) -> ClockReading | None:
        """Read the latest state. Return the time at which the root id was checked, or None if the root id was not
        checked in parallel.

        """
        base, seen = self._latest, self.env.now()
        if base is None:
            self._reopen()
            return None
        return seen if self._refresh_from_checking_root(base).is_root_checked else None

    def make_durable(self) -> None:
        """Make the entries that have been read durable. The caller then writes another object that depends on these
        entries.
        """
        self._numbered.make_durable()

    def _open_if_stale(self) -> SeenState[S]:
        base = self._latest
        return self._reopen().latest if base is None or self._is_stale(base.seen) else base

    def _refresh_from(self, base: SeenState[S] | None) -> Advance[S, E]:
        return self._reopen() if base is None or self._is_stale(base.seen) else self._apply(base)

    def _refresh_from_checking_root(self, base: SeenState[S]) -> Advance[S, E]:
        if not self._numbered.is_remote or self._is_stale(base.seen):
            return self._refresh_from(base)
        seen = self.env.now()
        return self._apply(base, self._numbered.read_checking_root(base.state.number + 1), seen)

    def _is_stale(self, seen: ClockReading) -> bool:
        return self.env.elapsed_ms(seen) > STALE_MS

    def _publish(self, newer: SeenState[S]) -> SeenState[S]:
        base = self._latest
        if base is None or newer.state.number >= base.state.number or self._is_stale(base.seen):
            self._latest = newer
        return newer

    def _apply(
        self,
        base: SeenState[S],
        found: ReadResult = NOTHING_READ,
        seen: ClockReading | None = None,
        is_confirmed: bool = False,
    ) -> Advance[S, E]:
        """Read forward from a state, or open the journal again if the state has become too old.

        Args:
            found: The next entries, if they were already read after `seen`.
            is_confirmed: Whether the entry of the state was read again after `found` was read.
        """
        # If the objects in `found` do not end at a missing number, the requests below determine the latest state.
        seen = seen if seen is not None and found.is_all else self.env.now()
        first = base.state.number + 1
        data = list(found.objects)
        if not found.is_all:
            try:
                data += self._numbered.read_forward(first + len(data))
            except Corrupt:
                # If the base is stale, the missing number may have been deleted since it was read.
                if not self._is_stale(base.seen):
                    raise
        if self._is_stale(base.seen):
            reached("journal: a cached state is too old to continue from")
            return replace(self._reopen(), is_root_checked=found.is_root_checked)
        if not data and self._is_next_lost(base, seen):
            reached("journal: a follower finds a gap after its state")
            return replace(self._reopen(), is_root_checked=found.is_root_checked)
        if not data:
            return Advance(self._publish(self._polled(base, seen)), (), found.is_root_checked)
        entries = self._decode_all(data, first)
        self._check_exclusive(base, entries)
        newer = self._extend(self._polled(base, seen), entries)
        newer = replace(newer, earlier=self._earlier(base, len(entries), is_confirmed))
        return Advance(self._publish(newer), entries, found.is_root_checked)

    def _earlier(self, base: SeenState[S], count: int, is_confirmed: bool) -> EntryRef | None:
        """Return the entry that must exist when this process creates an entry after `count` entries read from `base`.

        The result is the last entry before the `count` entries or, on a disk, an entry that was recorded by an earlier
        poll. If `is_confirmed` is true, the entry of the base was read again after the first of the `count` entries was
        created, so no further check is needed.
        """
        number, crc = base.state.number, base.state.crc
        if not self._numbered.is_remote:
            if base.earlier is not None and number + count - base.earlier[0] <= READ_AHEAD:
                return base.earlier
            # If many entries follow an entry, maintenance may have deleted it.
            if is_confirmed or count > READ_AHEAD:
                return None
        return None if number < 0 or crc is None else (number, crc)

    def _is_next_lost(self, base: SeenState[S], now: ClockReading) -> bool:
        """Return True if the entry after a state is missing although a later entry exists. The journal is listed only
        after a long pause.
        """
        if now.elapsed_ms(base.seen) <= (LIST_AFTER_REMOTE_MS if self._numbered.is_remote else LIST_AFTER_MS):
            return False
        # If the listing contains the next entry, there is no gap. Either the next entry was just created, or a
        # directory cache has hidden it.
        return min(self._numbered.listed(base.state.number), default=0) > base.state.number + 1

    def _check_exclusive(self, base: SeenState[S], entries: Sequence[E]) -> None:
        """Raise `Fenced` if new entries contradict the entries that this process created, or if they reveal an error of
        the store.
        """
        first = base.state.number + 1
        self._numbered.check_created(first, [entry.crc for entry in entries])
        if self._writes and entries and entries[0].prev_crc != base.state.crc:
            self._numbered.check_followed(base.state.number)

    def _polled(self, base: SeenState[S], seen: ClockReading) -> SeenState[S]:
        """Return the state as of a poll at `seen`. If the poll is late, check whether the next entry was lost before
        the poll.
        """
        checked = seen if seen.is_soon_after(base.checked) else base.checked
        return replace(base, seen=seen, checked=checked)

    def _extend(self, base: SeenState[S], entries: Sequence[E]) -> SeenState[S]:
        try:
            state = self._applied(base.state, entries)
        except Corrupt as error:
            crcs = (base.state.crc, *(entry.crc for entry in entries))
            if any(entry.prev_crc != crc for crc, entry in zip(crcs, entries, strict=False)):
                self._numbered.invalidate()
            raise error if error.file else Corrupt(error.message, file=log_folder(self.prefix).rstrip("/")) from None
        tail_bytes = base.tail_bytes + sum([entry.nbytes for entry in entries])
        return SeenState(state, base.seen, base.checked, base.checkpoint, tail_bytes)

    def _decode_all(self, objects: Sequence[bytes], first: int) -> list[E]:
        entries = []
        for number, data in enumerate(objects, first):
            key = self.key(number)
            try:
                entries.append(self._decode(data, key, number))
            except Corrupt:
                # The bytes may have been damaged in transit, so read them again.
                entries.append(self._decode(self.store.get(key), key, number))
        return entries

    # -- opening

    def _reopen(self, below: int | None = None) -> Advance[S, E]:
        """Open the journal. Read a checkpoint (below `below`) and the entries after the checkpoint, and list later
        numbers.
        """
        tries = 0
        while True:
            seen = self.env.now()
            checkpoints = self.checkpoints()
            opened = self._opened([number for number in checkpoints if below is None or number < below], seen)
            opened = self._read_to_listed(opened)
            number = opened.latest.state.number
            problem = self._problem_of(opened.latest, checkpoints)
            # A directory cache may hide an existing object for a while, so retry before reporting the object as lost.
            if problem is not None:
                reached("journal: an opened state is older than the cached one")
                tries += 1
                if tries >= MAX_OPEN_ATTEMPTS:
                    raise problem
                self.env.pause(tries - 1)
            elif opened.last_listed is not None and opened.last_listed > number:
                reached("journal: an opening waits for a number below a listed one")
                self._await_number(number + 1)
            else:
                self._gap = None
                return Advance(self._publish(opened.latest), opened.entries)

    def _opened(self, checkpoints: Sequence[int], seen: ClockReading) -> Advance[S, E]:
        return self._read_from(self._first_readable(reversed(checkpoints)) or self._empty(), seen)

    def _read_from(
        self, state: S, seen: ClockReading, entries: Sequence[E] | None = None, last_listed: int | None = None
    ) -> Advance[S, E]:
        if entries is None:
            first = state.number + 1
            if last_listed is None and self._numbered.is_remote:
                objects, last_listed = self._numbered.read_and_list(first)
            else:
                objects = self._numbered.read_forward(first, ahead=True)
            entries = self._decode_all(objects, first)
        self._numbered.check_created(state.number, [state.crc, *(entry.crc for entry in entries)])
        return Advance(self._extend(SeenState(state, seen, seen, state.number), entries), entries, False, last_listed)

    def _read_to_listed(self, opened: Advance[S, E]) -> Advance[S, E]:
        """Read up to the last listed number, because entries may have been written since the journal was read."""
        base = opened.latest
        last = self._numbered.last_listed(base.state.number) if opened.last_listed is None else opened.last_listed
        if last <= base.state.number:
            return replace(opened, last_listed=last)
        first = base.state.number + 1
        entries = self._decode_all(self._numbered.read_forward(first, ahead=True), first)
        latest = self._extend(base, entries) if entries else base
        return Advance(latest, (*opened.entries, *entries), opened.is_root_checked, last)

    def _await_number(self, missing: int) -> None:
        """Wait for a missing number below an existing number. Raises an error if no cache can still hide the missing
        number.

        Only the missing number is read. The caller opens the journal again when the number appears. It also opens the
        journal again after a few reads, because the entries may have been deleted, or the later entry may have been
        withdrawn.
        """
        if self._gap is None or self._gap[0] != missing:
            self._gap = missing, Backoff(self.env)
        for _ in range(READS_OF_MISSING):
            if not self._gap[1].wait():
                raise self._numbered.gap(missing)
            if self._numbered.read(missing) is not None:
                return

    def _problem_of(self, opened: SeenState[S], checkpoints: Sequence[int]) -> SparklogError | None:
        """Return an error if a newly opened state cannot be the latest state."""
        number = opened.state.number
        if checkpoints and number < checkpoints[-1]:
            return Corrupt(
                f"{self.noun} {number + 1} of {self.title} is missing, and no checkpoint up to version "
                f"{checkpoints[-1]} can be read; restore the {self.noun}",
                file=self.key(number + 1),
            )
        # An entry that has been read is never withdrawn, even if a cache hides it.
        if self._latest is not None and number < self._latest.state.number:
            return Unavailable(
                f"{self.title} ends at {self.noun} {number}, but this process has already read beyond this "
                f"{self.noun}; try again later, or reopen the root if it was restored"
            )
        if self._is_stale(opened.seen):
            return Unavailable(f"opening {self.title} takes longer than an hour; try again later")
        return None

    def checkpoints(self) -> list[int]:
        """Return the sorted numbers of the checkpoints, with one listing."""
        return numbers_below(self.store, checkpoint_prefix(self.prefix))

    def _first_readable(self, numbers: Iterable[int]) -> S | None:
        return next((state for state in map(self.read_checkpoint, numbers) if state is not None), None)

    def read_checkpoint(self, number: int) -> S | None:
        """Return the state in a checkpoint. Return None if the checkpoint is damaged or missing, so that an older
        checkpoint must be used.
        """
        key = checkpoint_key(self.prefix, number)
        try:
            return self._decode_checkpoint(self.store.get(key), key, number)
        except (Corrupt, NotFound) as error:
            reached("journal: an unreadable checkpoint is skipped")
            _LOG.warning("skipping checkpoint %s of %s: %s", number, self.title, error)
            return None

    # -- writing

    def _write(
        self,
        step: Callable[[S], D | None],
        *,
        load: Callable[[SeenState[S]], SeenState[S]] | None = None,
        repeatable: bool = False,
        root_checked_at: ClockReading | None = None,
    ) -> tuple[E | None, SeenState[S]]:
        """Create the entry that `step` drafts from the latest state.

        Args:
            step: Returns None if there is nothing to write. It is called again with the latest state after each lost
                race.
            load: Loads the parts of the state that `step` needs.
            repeatable: Whether `step` returns None after its entry was written.
            root_checked_at: The time at which `refresh_checking_root` checked the root for this write. The check is
                valid for a second.

        Returns:
            The written entry, and the state after it.

        Raises:
            SparklogError: The error that `step` raises for the latest state.
            Unavailable: If the outcome is unknown.
        """
        self._guard.check()
        self._writes = True
        commit_id = self.env.new_id()
        tries, advance = 0, self._base_for_write(root_checked_at)
        while True:
            base, draft = self._draft(advance.latest, step, load, is_latest=tries > 0)
            if draft is None:
                return None, base
            if tries:
                reached("journal: a step is repeated after a lost race")
            tries += 1
            encoded = self._encode_checked(base.state, draft, commit_id)
            advance = self._attempt(base, encoded, repeatable, advance.is_root_checked)
            written = advance.with_id(commit_id)
            if written is None and tries >= WAIT_AFTER_LOSSES:
                reached("journal: a writer waits after losing several races")
                # A create request that this writer sent before a stall may still succeed.
                longest = REMOTE_WAIT if self._numbered.is_remote else tries
                self.env.pause(min(tries - WAIT_AFTER_LOSSES, longest))
                advance = self._refresh_from_checking_root(advance.latest)
                written = advance.with_id(commit_id)
            if written is not None:
                is_deferred = self.defers_checkpoints and not self._is_checkpoint_due(advance.latest, intervals=2)
                return written, advance.latest if is_deferred else self._write_checkpoint_if_due(advance.latest)

    def _base_for_write(self, root_checked_at: ClockReading | None) -> Advance[S, E]:
        """Return the latest known state. On a remote store, also check the root, unless the caller just checked it."""
        base = self._open_if_stale()
        if not self._numbered.is_remote:
            return Advance(base)
        if root_checked_at is not None and self.env.now().is_soon_after(root_checked_at):
            return Advance(base, is_root_checked=True)
        with suppress(Unavailable):
            # The root must be checked in any case, so reading the next number in parallel takes no additional time.
            return self._refresh_from_checking_root(base)
        return Advance(base)

    def _draft(
        self,
        base: SeenState[S],
        step: Callable[[S], D | None],
        load: Callable[[SeenState[S]], SeenState[S]] | None,
        is_latest: bool,
    ) -> tuple[SeenState[S], D | None]:
        """Draft an entry from a state.

        If the step raises an error and there may be a later state, draft the entry from the latest state.
        """
        base = base if load is None else load(base)
        try:
            return base, step(base.state)
        except SparklogError:
            if is_latest:
                raise
        reached("journal: a step that fails on a cached state is repeated on the latest")
        return self._draft(self._refresh_from(base).latest, step, load, is_latest=True)

    def _encode_checked(self, state: S, draft: D, commit_id: str) -> tuple[E, bytes]:
        """Return the entry of a draft, and its bytes. The bytes are decoded to ensure that the entry is readable."""
        data = self._encode(draft, state, commit_id)
        number = state.number + 1
        entry = self._decode(data, self.key(number), number)
        self._check(state, entry)
        return entry, data

    def _attempt(
        self, base: SeenState[S], encoded: tuple[E, bytes], repeatable: bool, is_root_checked: bool
    ) -> Advance[S, E]:
        """Try to create the next entry, and read forward. If the entry was created, the result contains the entry."""
        (entry, data), seen = encoded, self.env.now()
        if seen.elapsed_ms(base.seen) > STALE_MS:
            # This check is required because an entry that is created under a deleted number would also have a recent
            # time.
            reached("journal: a writer stalled before its create")
            return self._reopen()
        number, title = base.state.number + 1, f"commit {entry.commit_id} to {self.title}"
        expected = Expected(base.seen, entry.prev_crc, is_root_checked, base.earlier, base.checked)
        try:
            result, found = self._numbered.create(number, data, entry.commit_id, expected)
        except Unavailable as error:
            raise Unavailable(f"{title}: {error}", is_denied=error.is_denied, is_unknown=not error.is_denied) from error
        if result is CreateResult.UNKNOWN or not found.objects:
            reached("journal: a writer stalled during its create")
            try:
                return self._search_own(entry, number, repeatable)
            except (Corrupt, Unavailable) as error:
                message = f"{title} stalled for more than an hour and its outcome is unknown: {error}"
                raise Unavailable(f"{message}; check the log before you write again", is_unknown=True) from error
        if result is CreateResult.CONFLICT:
            # On a disk, the loser of a race has just read the previous entry again.
            return self._apply(base, found, seen, is_confirmed=True)
        # An earlier attempt to create the entry, which was encoded before a stall, may have succeeded after all. Use
        # the stored bytes.
        stored = found.objects[0]
        if stored != data:
            reached("journal: an earlier attempt of the writer succeeded late")
            entry = self._decode_all([stored], number)[0]
        created = self._extend(base, (entry,))
        latest = SeenState(created.state, seen, seen, created.checkpoint, created.tail_bytes)
        return Advance(self._publish(latest), (entry,))

    def _search_own(self, entry: E, number: int, repeatable: bool) -> Advance[S, E]:
        """Open the journal again and search for this writer's entry, which may have been deleted in the meantime."""
        opened = self._reopen()
        if opened.with_id(entry.commit_id) is not None or number > opened.latest.checkpoint:
            return opened
        try:
            written = self._own_in_chain(entry, number)
        except NotFound as error:
            if repeatable:
                # If the entry was written, the step returns None for this state.
                return opened
            raise Unavailable(f"{error} has been deleted") from None
        return opened if written is None else Advance(opened.latest, (written,))

    def _own_in_chain(self, entry: E, number: int) -> E | None:
        """Return this writer's entry if it is in the chain of CRCs.

        The chain is followed backwards from the first checkpoint after the entry. It is not sufficient that an object
        with the number of the entry exists, because the entry may have been deleted, and a stalled writer may have
        created the number since then. Raises `NotFound` if the chain is incomplete.
        """
        state = self._first_readable(version for version in self.checkpoints() if version >= number)
        if state is None:
            raise NotFound(self.key(number))
        link = state.crc
        for later in range(state.number, number, -1):
            data = self._numbered.read(later)
            if data is None or crc32c.crc32c(data) != link:
                raise NotFound(self.key(later))
            link = self._decode_all([data], later)[0].prev_crc
        if link == entry.crc:
            reached("journal: an entry with unknown outcome is found in the chain")
            return entry
        data = self._numbered.read(number)
        # If the entry was drafted before an earlier stall, it may have been written with different bytes.
        if data is not None and crc32c.crc32c(data) == link and peek_commit_id(data) == entry.commit_id:
            return self._decode_all([data], number)[0]
        return None

    def write_checkpoint(self) -> None:
        self._write_checkpoint(self._open_if_stale())

    def has_due_checkpoint(self) -> bool:
        """Return True if a checkpoint of the latest known state is due. No request is sent."""
        return self._latest is not None and self._is_checkpoint_due(self._latest)

    def write_due_checkpoint(self) -> None:
        """Write the checkpoint that writes have deferred, if it is due. A failure is logged."""
        if self._latest is not None:
            self._write_checkpoint_if_due(self._latest)

    def _is_checkpoint_due(self, base: SeenState[S], intervals: int = 1) -> bool:
        """Return True if the last checkpoint is older than the last `intervals` multiples of the interval."""
        interval = self._entries_per_checkpoint
        is_due = (base.checkpoint + 1) // interval + intervals <= (base.state.number + 1) // interval
        return is_due or base.tail_bytes >= intervals * self.store.limits.checkpoint_bytes

    def _write_checkpoint_if_due(self, base: SeenState[S]) -> SeenState[S]:
        try:
            return self._write_checkpoint(base) if self._is_checkpoint_due(base) else base
        except (SparklogError, OSError) as error:
            reached("journal: a checkpoint cannot be written after an entry")
            _LOG.warning(
                "cannot write a checkpoint of %s at %s %s: %s", self.title, self.noun, base.state.number, error
            )
            return base
