"""The journal under topics, consumer groups and transactional ids: open it, follow it, and append to it.

A journal is a chain of numbered entries (`numbered_objects`) and the state that they add up to. Each entry carries the
CRC-32C of the one before. Appending an entry (`_write`), by Writer A:

1. A drafts the entry from the latest state it knows, which ends at n, and creates entry n + 1 if it is absent.
2. If n + 1 exists or no response arrives, A reads it. If its commit id is A's, the response was lost, and A's entry is
   written. If there is none, A creates it again. If Writer B created it, A reads forward to the first missing number,
   drafts the entry again from that state, and creates it there. After the third lost race, A waits a random time.
3. If more than an hour passed between A's last read of the end of the journal and the response, numbers may have been
   deleted and reused. A opens the journal again and searches for its commit id; if it cannot tell, the outcome is
   unknown.
4. A writes a checkpoint if one is due. If that fails, the entry is written all the same.

On a remote store, requests are made in parallel. Before step 1, A reads n + 1 and the root's id together. After a lost
race, A reads the lost number, its neighbours and the root's id together. Entries that were read this way count only
after A, having created its own, has read the entry before them again (`Expected.earlier`).
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
"""On a remote store, waits stop growing here, at 80 ms. An attempt takes as long, and a longer wait would starve."""
MAX_OPEN_ATTEMPTS = 3
READS_OF_MISSING = 10
"""How often a missing number is read before the journal is opened again."""
LIST_AFTER_MS, LIST_AFTER_REMOTE_MS = 60_000, 300_000
"""A follower that finds no next entry lists later ones if its last poll is older than this, on a disk and on a remote
store: other processes may have created some since, and the next one may be lost. Frequent polls list nothing."""
_LOG = logging.getLogger("sparklog.log")


D = TypeVar("D")


class Journal(ABC, Generic[S, E, D]):
    """A journal with the latest state that this process knows. Threads may share it.

    `S` is the state, `E` an entry, and `D` the draft of an entry, which gets its number and chain here. `title` and
    `noun` are for messages: "topic 'orders'", "commit".

    Ways to the latest state, and the requests that each makes:

    | method                                           | requests                                                 |
    |--------------------------------------------------|----------------------------------------------------------|
    | `known`, `known_since`                           | none                                                     |
    | `current`, `_open_if_stale`                      | none, if the state known is younger than an hour         |
    | `read_next`                                      | one: for the next entry                                  |
    | `refresh`, `_refresh_from`                            | one per new entry, and one for the first missing number  |
    | `refresh_checking_root`, `_refresh_from_checking_root`| the same, and on a remote store one in parallel for the  |
    |                                                  | root                                                     |
    | `_apply`                                         | those of `_refresh_from` that were not made before            |
    | `_reopen`                                        | two listings, a checkpoint, and the entries after it     |

    All but the first open the journal again if the state known is older than an hour.
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
        """A missing number below others and its backoff, so that reopening the journal does not wait again in full."""
        self._writes = False

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.prefix!r}, {self.store.location!r})"

    # -- what a kind of journal defines

    @abstractmethod
    def _empty(self) -> S: ...

    @abstractmethod
    def _decode(self, data: bytes, key: str, number: int) -> E:
        """Decode the entry `number`. Raises `Corrupt`, naming `key`, if it is damaged or has another number."""

    @abstractmethod
    def _encode(self, draft: D, state: S, commit_id: str) -> bytes: ...

    @abstractmethod
    def _applied(self, state: S, entries: Sequence[E]) -> S:
        """Return the state after the next entries. Raises `Corrupt` if they do not follow it."""

    def _check(self, state: S, entry: E) -> None:
        """Raise if an entry that is about to be written after `state` breaks an invariant."""

    @property
    @abstractmethod
    def _entries_per_checkpoint(self) -> int: ...

    @abstractmethod
    def _decode_checkpoint(self, data: bytes, key: str, number: int) -> S:
        """Decode the state in a checkpoint. Raises `Corrupt`, naming `key`, if it is damaged or of another number."""

    @abstractmethod
    def _write_checkpoint(self, base: SeenState[S]) -> SeenState[S]:
        """Write a checkpoint of a known state, and return the state with it."""

    # -- reading

    def key(self, number: int) -> str:
        return self._numbered.key(number)

    def known(self) -> S | None:
        """Return the latest state that this process has read, however old, without a request; None before the first."""
        return None if self._latest is None else self._latest.state

    def known_since(self) -> ClockReading | None:
        """Return when the latest known state was read; None before the first."""
        return None if self._latest is None else self._latest.seen

    def current(self) -> S:
        """Return the latest known state, without a request if it is younger than an hour."""
        return self._open_if_stale().state

    def refresh(self) -> S:
        """Return the latest state: one request, which finds no entry if nothing changed."""
        return self._refresh_from(self._latest).latest.state

    def read_next(self) -> S:
        """Read the next entry, if there is one, with one request. More entries may follow, so the caller reads on."""
        base, seen = self._open_if_stale(), self.env.now()
        data = self._numbered.read(base.state.number + 1)
        if data is None:
            return self._publish(self._polled(base, seen)).state
        # The end of the journal was read no later than before.
        return self._apply(base, ReadResult((data,), True), base.seen).latest.state

    def refresh_checking_root(self) -> ClockReading | None:
        """Read on to the latest state. Return when the root's id was checked, if that cost no time of its own."""
        base, seen = self._latest, self.env.now()
        if base is None:
            self._reopen()
            return None
        return seen if self._refresh_from_checking_root(base).root_seen else None

    def make_durable(self) -> None:
        """Make the entries read so far durable, before another object is written that depends on them."""
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
        """Read on from a state, or open the journal again if that is too old by now.

        `found` has the next entries, as far as they were read after `seen`. `is_confirmed`: the entry of the state was
        read again after that.
        """
        # If these do not end at a missing number, the state is the latest as of the requests below.
        seen = seen if seen is not None and found.is_all else self.env.now()
        first = base.state.number + 1
        data = list(found.objects)
        if not found.is_all:
            try:
                data += self._numbered.read_forward(first + len(data))
            except Corrupt:
                # If the base is stale, the missing number may have been deleted since.
                if not self._is_stale(base.seen):
                    raise
        if self._is_stale(base.seen):
            reached("journal: a cached state is too old to continue from")
            return replace(self._reopen(), root_seen=found.root_seen)
        if not data and self._is_next_lost(base, seen):
            reached("journal: a follower finds a gap after its state")
            return replace(self._reopen(), root_seen=found.root_seen)
        if not data:
            return Advance(self._publish(self._polled(base, seen)), (), found.root_seen)
        entries = self._decode_all(data, first)
        self._check_exclusive(base, entries)
        newer = self._extend(self._polled(base, seen), entries)
        newer = replace(newer, earlier=self._earlier(base, len(entries), is_confirmed))
        return Advance(self._publish(newer), entries, found.root_seen)

    def _earlier(self, base: SeenState[S], count: int, is_confirmed: bool) -> EntryRef | None:
        """Return the entry that must still exist when this process creates one after `count` entries read from `base`.

        It is the state from before those entries were read. On a disk, the state before earlier polls counts as well,
        and a base that was read again after the first of these entries was created (`is_confirmed`) does not.
        """
        number, crc = base.state.number, base.state.crc
        if not self._numbered.is_remote:
            if base.earlier is not None and number + count - base.earlier[0] <= READ_AHEAD:
                return base.earlier
            # Maintenance may have deleted an entry that is followed by many others.
            if is_confirmed or count > READ_AHEAD:
                return None
        return None if number < 0 or crc is None else (number, crc)

    def _is_next_lost(self, base: SeenState[S], now: ClockReading) -> bool:
        """Return True if the entry after a state is missing and a later one exists. Lists only after a long pause."""
        if now.elapsed_ms(base.seen) <= (LIST_AFTER_REMOTE_MS if self._numbered.is_remote else LIST_AFTER_MS):
            return False
        # A next entry that is listed is no gap: it was created a moment ago, or a directory cache hides it.
        return min(self._numbered.listed(base.state.number), default=0) > base.state.number + 1

    def _check_exclusive(self, base: SeenState[S], entries: Sequence[E]) -> None:
        """Raise `Fenced` if new entries contradict this process's own, or show an error of the store."""
        first = base.state.number + 1
        self._numbered.check_created(first, [entry.crc for entry in entries])
        if self._writes and entries and entries[0].prev_crc != base.state.crc:
            self._numbered.check_followed(base.state.number)

    def _polled(self, base: SeenState[S], seen: ClockReading) -> SeenState[S]:
        """Return the state as of a poll at `seen`. Before a poll that comes late, a later number may have been lost."""
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
                # The bytes may have been damaged on their way from the store, so read them a second time.
                entries.append(self._decode(self.store.get(key), key, number))
        return entries

    # -- opening

    def _reopen(self, below: int | None = None) -> Advance[S, E]:
        """Open again: list checkpoints, read one (below `below`) and the entries after it, and list later numbers."""
        tries = 0
        while True:
            seen = self.env.now()
            checkpoints = self.checkpoints()
            opened = self._opened([number for number in checkpoints if below is None or number < below], seen)
            opened = self._read_to_listed(opened)
            number = opened.latest.state.number
            problem = self._problem_of(opened.latest, checkpoints)
            # A directory cache may hide an existing object for a while: retry before reporting it as lost.
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
        """Read up to the last listed number: entries may have been written since the journal was read."""
        base = opened.latest
        last = self._numbered.last_listed(base.state.number) if opened.last_listed is None else opened.last_listed
        if last <= base.state.number:
            return replace(opened, last_listed=last)
        first = base.state.number + 1
        entries = self._decode_all(self._numbered.read_forward(first, ahead=True), first)
        latest = self._extend(base, entries) if entries else base
        return Advance(latest, (*opened.entries, *entries), opened.root_seen, last)

    def _await_number(self, missing: int) -> None:
        """Wait for a number that is missing below another one; raise once caches cannot be hiding it.

        Only the number itself is read. The caller opens the journal again if it appears, and also after a few reads:
        the entries may have been deleted, or the later one withdrawn.
        """
        if self._gap is None or self._gap[0] != missing:
            self._gap = missing, Backoff(self.env)
        for _ in range(READS_OF_MISSING):
            if not self._gap[1].wait():
                raise self._numbered.gap(missing)
            if self._numbered.read(missing) is not None:
                return

    def _problem_of(self, opened: SeenState[S], checkpoints: Sequence[int]) -> SparklogError | None:
        """Return the error if a state, just opened, cannot be the latest one."""
        number = opened.state.number
        if checkpoints and number < checkpoints[-1]:
            return Corrupt(
                f"{self.noun} {number + 1} of {self.title} is missing, and no checkpoint up to version "
                f"{checkpoints[-1]} can be read; restore it",
                file=self.key(number + 1),
            )
        # An entry that was read once is never withdrawn, whatever a cache shows.
        if self._latest is not None and number < self._latest.state.number:
            return Unavailable(
                f"{self.title} ends at {self.noun} {number}, but later ones were read before; try again later (after a "
                "restore: open the root again)"
            )
        if self._is_stale(opened.seen):
            return Unavailable(f"opening {self.title} takes longer than an hour; try again later")
        return None

    def checkpoints(self) -> list[int]:
        """Return the numbers of the checkpoints, in order: one listing."""
        return numbers_below(self.store, checkpoint_prefix(self.prefix))

    def _first_readable(self, numbers: Iterable[int]) -> S | None:
        return next((state for state in map(self.read_checkpoint, numbers) if state is not None), None)

    def read_checkpoint(self, number: int) -> S | None:
        """Return the state in a checkpoint; None if it is damaged or missing, and an older one must be used."""
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
        root_checked: ClockReading | None = None,
    ) -> tuple[E | None, SeenState[S]]:
        """Create the entry that `step` drafts from the latest state.

        Args:
            step: returns None if there is nothing to write; called again with the latest state after every lost race.
            load: loads the parts of a state that `step` needs.
            repeatable: once its entry is written, the step returns None.
            root_checked: when `refresh_checking_root` checked the root for this write; a second ago is recent enough.

        Returns:
            The entry as it was written, and the state after it.

        Raises:
            SparklogError: what `step` raises for the latest state.
            Unavailable: the outcome is unknown.
        """
        self._guard.check()
        self._writes = True
        commit_id = self.env.new_id()
        tries, advance = 0, self._base_for_write(root_checked)
        while True:
            base, draft = self._draft(advance.latest, step, load, is_latest=tries > 0)
            if draft is None:
                return None, base
            if tries:
                reached("journal: a step is repeated after a lost race")
            tries += 1
            encoded = self._encode_checked(base.state, draft, commit_id)
            advance = self._attempt(base, encoded, repeatable, advance.root_seen)
            written = advance.with_id(commit_id)
            if written is None and tries >= WAIT_AFTER_LOSSES:
                reached("journal: a writer waits after losing several races")
                # A request that this writer made before a stall may succeed as late as this.
                longest = REMOTE_WAIT if self._numbered.is_remote else tries
                self.env.pause(min(tries - WAIT_AFTER_LOSSES, longest))
                advance = self._refresh_from_checking_root(advance.latest)
                written = advance.with_id(commit_id)
            if written is not None:
                return written, self._write_checkpoint_if_due(advance.latest)

    def _base_for_write(self, root_checked: ClockReading | None) -> Advance[S, E]:
        """Return the latest known state; on a remote store check the root, unless the caller has just done so."""
        base = self._open_if_stale()
        if not self._numbered.is_remote:
            return Advance(base)
        if root_checked is not None and self.env.now().is_soon_after(root_checked):
            return Advance(base, root_seen=True)
        with suppress(Unavailable):
            # The root must be checked anyway, so it takes no longer to read the next number in parallel.
            return self._refresh_from_checking_root(base)
        return Advance(base)

    def _draft(
        self,
        base: SeenState[S],
        step: Callable[[S], D | None],
        load: Callable[[SeenState[S]], SeenState[S]] | None,
        is_latest: bool,
    ) -> tuple[SeenState[S], D | None]:
        """Draft an entry from a state. If the step raises and a later state may exist, draft it from that."""
        base = base if load is None else load(base)
        try:
            return base, step(base.state)
        except SparklogError:
            if is_latest:
                raise
        reached("journal: a step that fails on a cached state is repeated on the latest")
        return self._draft(self._refresh_from(base).latest, step, load, is_latest=True)

    def _encode_checked(self, state: S, draft: D, commit_id: str) -> tuple[E, bytes]:
        """Return the entry of a draft and its bytes. It is decoded first: an unreadable entry must not be written."""
        data = self._encode(draft, state, commit_id)
        number = state.number + 1
        entry = self._decode(data, self.key(number), number)
        self._check(state, entry)
        return entry, data

    def _attempt(
        self, base: SeenState[S], encoded: tuple[E, bytes], repeatable: bool, root_seen: bool
    ) -> Advance[S, E]:
        """Try to create the next number, and read on. The entry is among those of the result if it was created."""
        (entry, data), seen = encoded, self.env.now()
        if seen.elapsed_ms(base.seen) > STALE_MS:
            # Without this, an entry created under a deleted number would also have a recent time.
            reached("journal: a writer stalled before its create")
            return self._reopen()
        number, title = base.state.number + 1, f"commit {entry.commit_id} to {self.title}"
        expected = Expected(base.seen, entry.prev_crc, root_seen, base.earlier, base.checked)
        try:
            result, found = self._numbered.create(number, data, entry.commit_id, expected)
        except Unavailable as error:
            raise Unavailable(f"{title}: {error}", is_denied=error.is_denied, is_unknown=not error.is_denied) from error
        if result is CreateResult.UNKNOWN or not found.objects:
            reached("journal: a writer stalled during its create")
            try:
                return self._search_own(entry, number, repeatable)
            except (Corrupt, Unavailable) as error:
                message = f"{title} stalled for over an hour and its outcome is unknown: {error}"
                raise Unavailable(f"{message}; check the log before you write again", is_unknown=True) from error
        if result is CreateResult.CONFLICT:
            # On a disk, the loser of a race has just read the entry before again.
            return self._apply(base, found, seen, is_confirmed=True)
        # An earlier attempt at this number, drafted before a stall, may have succeeded late. The stored bytes count.
        stored = found.objects[0]
        if stored != data:
            reached("journal: an earlier attempt of the writer succeeded late")
            entry = self._decode_all([stored], number)[0]
        created = self._extend(base, (entry,))
        latest = SeenState(created.state, seen, seen, created.checkpoint, created.tail_bytes)
        return Advance(self._publish(latest), (entry,))

    def _search_own(self, entry: E, number: int, repeatable: bool) -> Advance[S, E]:
        """Open the journal again and search for this writer's entry, which may have been deleted since."""
        opened = self._reopen()
        if opened.with_id(entry.commit_id) is not None or number > opened.latest.checkpoint:
            return opened
        try:
            written = self._own_in_chain(entry, number)
        except NotFound as error:
            if repeatable:
                # If the entry was written, the state shows it, and the step returns None.
                return opened
            raise Unavailable(f"{error} is no longer kept") from None
        return opened if written is None else Advance(opened.latest, (written,))

    def _own_in_chain(self, entry: E, number: int) -> E | None:
        """Return this writer's entry if the chain of CRCs, walked back from the first checkpoint after it, has it.

        The object under its number proves little: the entry may have been deleted, and a stalled writer may have
        created the number since. Raises `NotFound` if the chain is incomplete.
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
        # The entry may have been written with other bytes if it was drafted before an earlier stall.
        if data is not None and crc32c.crc32c(data) == link and peek_commit_id(data) == entry.commit_id:
            return self._decode_all([data], number)[0]
        return None

    def write_checkpoint(self) -> None:
        self._write_checkpoint(self._open_if_stale())

    def _is_checkpoint_due(self, base: SeenState[S]) -> bool:
        interval = self._entries_per_checkpoint
        is_due = (base.checkpoint + 1) // interval < (base.state.number + 1) // interval
        return is_due or base.tail_bytes >= self.store.limits.checkpoint_bytes

    def _write_checkpoint_if_due(self, base: SeenState[S]) -> SeenState[S]:
        try:
            return self._write_checkpoint(base) if self._is_checkpoint_due(base) else base
        except (SparklogError, OSError) as error:
            reached("journal: a checkpoint cannot be written after an entry")
            _LOG.warning("no checkpoint of %s at %s %s: %s", self.title, self.noun, base.state.number, error)
            return base
