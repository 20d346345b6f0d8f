"""The journal under topics, consumer groups and transactional ids: opening it, following it, adding to it.

A journal is a chain of numbered entries (`numbered_objects`) and the state that they add up to. Each entry carries the
CRC-32C of the one before. The protocol, in the order things happen:

1. A step is judged on the newest state known and becomes entry `n + 1`, created if absent.
2. "Already exists" or no answer: the entry under that number is read. Our commit id: it is ours, the answer was lost.
   No entry: the same number again. Another entry: read forward to the first missing number, judge the step on that
   state, create there. Wait a random time after the third loss.
3. If more than an hour passed between the last sight of the newest entry and the answer, numbers may have been
   collected and used again. The outcome is unknown: the journal is opened again and our commit id looked for.
4. On a store with round trips, requests are made together. A writer asks for the next number and the root at once. A
   loser asks for the lost number, its neighbours and the root at once. Entries read that way count only after the entry
   before them has been seen again, once ours exists.
5. Acknowledged. A checkpoint is written if one is due; failing to does not fail the write.
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
    STALE_MS,
    CreateResult,
    Expected,
    NumberedObjects,
    ReadResult,
)
from sparklog.log.journal.seen_state import Advance, E, RootAccess, S, SeenState
from sparklog.storage.retries import Backoff

WAIT_AFTER_LOSSES = 3
REMOTE_WAIT = 2
"""On a store with round trips waits stop growing here, at 80 ms: a try takes as long, and who waits longer starves."""
OPEN_TRIES = 3
UNSEEN_MS, UNSEEN_REMOTE_MS = 60_000, 300_000
"""A follower that finds no new entry lists later ones if its last poll is older than this, on a disk and on a remote
store: others may have created some meanwhile, and the next one may be lost. One that polls often lists nothing."""
_LOG = logging.getLogger("sparklog.log")


D = TypeVar("D")


class Journal(ABC, Generic[S, E, D]):
    """A journal with the newest state this process knows. Threads may share it.

    `S` is the state, `E` an entry, `D` the draft of an entry, which gets its number and chain here. `title` and `noun`
    are for messages: "topic 'orders'", "commit".

    Ways to the newest state, and the requests that each makes:

    | method                            | requests                                                                |
    |-----------------------------------|-------------------------------------------------------------------------|
    | `known`, `known_since`            | none                                                                    |
    | `current`, `_open_if_stale`       | none, if the newest state known is younger than an hour                 |
    | `read_next`                       | one: for the next entry                                                 |
    | `refresh`, `_read_on`             | one for each new entry, and one for the first missing one               |
    | `refresh_checking_root`           | the same; on a store with round trips for the root, too, meanwhile      |
    | `_take_in`                        | those of `_read_on` that were not made before                           |
    | `_reopen`                         | two listings, a checkpoint, the entries after it                        |

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

    @abstractmethod
    def _empty(self) -> S: ...

    @abstractmethod
    def _decode(self, data: bytes, key: str, number: int) -> E:
        """Read the entry `number`; `Corrupt` naming `key` if it is damaged or another one."""

    @abstractmethod
    def _encode(self, draft: D, state: S, commit_id: str) -> bytes: ...

    @abstractmethod
    def _applied(self, state: S, entries: Sequence[E]) -> S:
        """Return the state after the next entries; `Corrupt` if they do not follow it."""

    def _check(self, state: S, entry: E) -> None:
        """Raise if an entry, about to be written after `state`, breaks an invariant."""

    @property
    @abstractmethod
    def _entries_per_checkpoint(self) -> int: ...

    @abstractmethod
    def _decode_checkpoint(self, data: bytes, key: str, number: int) -> S:
        """Read the state in a checkpoint; `Corrupt` naming `key` if it is damaged or another one."""

    @abstractmethod
    def _write_checkpoint(self, base: SeenState[S]) -> SeenState[S]:
        """Write a checkpoint of a state that is known; the same with its checkpoint."""

    def key(self, number: int) -> str:
        return self._numbered.key(number)

    def known(self) -> S | None:
        """Return the newest state this process has seen, however old, without a request; None before the first."""
        return None if self._latest is None else self._latest.state

    def known_since(self) -> ClockReading | None:
        """Return when the newest state known here was seen to be the newest; None before the first."""
        return None if self._latest is None else self._latest.seen

    def current(self) -> S:
        """Return the newest state known, without a request where it is younger than an hour."""
        return self._open_if_stale().state

    def refresh(self) -> S:
        """Return the newest state: one request, which meets no entry when nothing changed."""
        return self._read_on(self._latest).latest.state

    def read_next(self) -> S:
        """Read the next entry, if there is one: one request. For a caller that reads on soon: more may follow."""
        base, seen = self._open_if_stale(), self.env.now()
        data = self._numbered.read(base.state.number + 1)
        if data is None:
            return self._publish(self._polled(base, seen)).state
        # The newest one was seen no later than before.
        return self._take_in(base, ReadResult((data,), True), base.seen).latest.state

    def refresh_checking_root(self) -> ClockReading | None:
        """Read on to the newest state. Return when the root was seen to be the one opened, if that cost no time."""
        base, seen = self._latest, self.env.now()
        if base is None:
            self._reopen()
            return None
        return seen if self._read_on_checking_root(base).root_seen else None

    def make_durable(self) -> None:
        """Make durable what was read here, before another object is written that rests on it."""
        self._numbered.make_durable()

    def _open_if_stale(self) -> SeenState[S]:
        base = self._latest
        return self._reopen().latest if base is None or self._is_stale(base.seen) else base

    def _read_on(self, base: SeenState[S] | None) -> Advance[S, E]:
        return self._reopen() if base is None or self._is_stale(base.seen) else self._take_in(base)

    def _read_on_checking_root(self, base: SeenState[S]) -> Advance[S, E]:
        if not self._numbered.is_remote or self._is_stale(base.seen):
            return self._read_on(base)
        seen = self.env.now()
        return self._take_in(base, self._numbered.read_checking_root(base.state.number + 1), seen)

    def _is_stale(self, seen: ClockReading) -> bool:
        return self.env.elapsed_ms(seen) > STALE_MS

    def _publish(self, newer: SeenState[S]) -> SeenState[S]:
        base = self._latest
        if base is None or newer.state.number >= base.state.number or self._is_stale(base.seen):
            self._latest = newer
        return newer

    def _take_in(
        self, base: SeenState[S], sight: ReadResult = NOTHING_READ, seen: ClockReading | None = None
    ) -> Advance[S, E]:
        """Read on from a state (`sight`: seen of the next entries, after `seen`); if too old by then, open again."""
        # Where the sight ends before the first missing number, the state is the newest as of the requests below.
        seen = seen if seen is not None and sight.is_all else self.env.now()
        first = base.state.number + 1
        data = list(sight.objects)
        if not sight.is_all:
            try:
                data += self._numbered.read_forward(first + len(data))
            except Corrupt:
                # The basis is stale, so the missing number may have been deleted since.
                if not self._is_stale(base.seen):
                    raise
        if self._is_stale(base.seen):
            reached("journal: a state is too old to be read on from")
            return replace(self._reopen(), root_seen=sight.root_seen)
        if not data and self._is_next_lost(base, seen):
            reached("journal: a follower finds a gap behind its state")
            return replace(self._reopen(), root_seen=sight.root_seen)
        if not data:
            return Advance(self._publish(self._polled(base, seen)), (), sight.root_seen)
        entries = self._decode_all(data, first)
        self._check_promise(base, entries)
        newer = self._extend(self._polled(base, seen), entries)
        if self._numbered.is_remote and base.state.number >= 0 and base.state.crc is not None:
            newer = replace(newer, earlier=(base.state.number, base.state.crc))
        return Advance(self._publish(newer), entries, sight.root_seen)

    def _is_next_lost(self, base: SeenState[S], now: ClockReading) -> bool:
        """Return True if the entry after a state is missing and a later one exists. Lists only after a long pause."""
        if now.elapsed_ms(base.seen) <= (UNSEEN_REMOTE_MS if self._numbered.is_remote else UNSEEN_MS):
            return False
        # A next entry that is listed is no gap: it was created a moment ago, or a directory cache hides it.
        return min(self._numbered.listed(base.state.number), default=0) > base.state.number + 1

    def _check_promise(self, base: SeenState[S], entries: Sequence[E]) -> None:
        """`Fenced` if what was read next contradicts what this process has created, or shows an error of the store."""
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
                # A connection that broke off, a bit that flipped on the way: read again before calling it damaged.
                entries.append(self._decode(self.store.get(key), key, number))
        return entries

    def _reopen(self, below: int | None = None) -> Advance[S, E]:
        """Open again: list checkpoints, read one (below `below`) and the entries after it, and list later numbers."""
        tries = 0
        while True:
            seen = self.env.now()
            numbers = self.checkpoints()
            opened = self._opened([number for number in numbers if below is None or number < below], seen)
            opened = self._read_to_listed(opened)
            newest = opened.latest.state.number
            refusal = self._refusal(opened.latest, numbers)
            # A directory cache may hide an existing object for a while: retry before reporting it as lost.
            if refusal is not None:
                reached("journal: an opened state is older than one that was seen before")
                tries += 1
                if tries >= OPEN_TRIES:
                    raise refusal
                self.env.pause(tries - 1)
            elif opened.last_listed is not None and opened.last_listed > newest:
                reached("journal: a number below a listed one is waited for")
                self._await_number(newest + 1)
            else:
                self._gap = None
                return Advance(self._publish(opened.latest), opened.entries)

    def _read_to_listed(self, opened: Advance[S, E]) -> Advance[S, E]:
        """Read up to the last listed number: entries may have been written since the journal was read."""
        base = opened.latest
        last = self._numbered.last_listed(base.state.number) if opened.last_listed is None else opened.last_listed
        if last <= base.state.number:
            return replace(opened, last_listed=last)
        first = base.state.number + 1
        entries = self._decode_all(self._numbered.read_forward(first, ahead=True), first)
        newest = self._extend(base, entries) if entries else base
        return Advance(newest, (*opened.entries, *entries), opened.root_seen, last)

    def _await_number(self, missing: int) -> None:
        """Wait briefly for a number that is missing below another one; raise once caches cannot be hiding it."""
        if self._gap is None or self._gap[0] != missing:
            self._gap = missing, Backoff(self.env)
        if not self._gap[1].wait():
            raise self._numbered.gap(missing)

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

    def _refusal(self, opened: SeenState[S], checkpoints: Sequence[int]) -> SparklogError | None:
        """Return the error if a state, just opened, cannot be the newest one."""
        newest = opened.state.number
        if checkpoints and newest < checkpoints[-1]:
            return Corrupt(
                f"{self.noun} {newest + 1} of {self.title} is missing, and no checkpoint up to version "
                f"{checkpoints[-1]} can be read; restore it",
                file=self.key(newest + 1),
            )
        # An entry that was seen once is never taken back, whatever a cache shows.
        if self._latest is not None and newest < self._latest.state.number:
            return Unavailable(
                f"{self.title} shows {self.noun} {newest}, newer ones were seen before; try again later (after a "
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
        """Return the state in a checkpoint; None if it is damaged or gone: the one before will do."""
        key = checkpoint_key(self.prefix, number)
        try:
            return self._decode_checkpoint(self.store.get(key), key, number)
        except (Corrupt, NotFound) as error:
            reached("journal: a checkpoint that cannot be read is passed over")
            _LOG.warning("passing over checkpoint %s of %s: %s", number, self.title, error)
            return None

    def _write(
        self,
        step: Callable[[S], D | None],
        *,
        load: Callable[[SeenState[S]], SeenState[S]] | None = None,
        repeatable: bool = False,
        root_checked: ClockReading | None = None,
    ) -> tuple[E | None, SeenState[S]]:
        """Create the entry that `step` drafts from the newest state; the entry as it was written, and the state.

        * `step`: returns None if there is nothing to write; called again on the newest state after every lost race
        * `load`: loads what `step` needs of a state
        * `repeatable`: after an entry has landed, its step returns None
        * `root_checked`: when `refresh_checking_root` last saw the root for this write; a moment ago will do

        Raises what `step` raises on the newest state, and `Unavailable` if the outcome stays unknown.
        """
        self._guard.check()
        self._writes = True
        commit_id = self.env.new_id()
        tries, latest = 0, self._look_before_writing(root_checked)
        while True:
            base, draft = self._draft(latest.latest, step, load, is_latest=tries > 0)
            if draft is None:
                return None, base
            if tries:
                reached("journal: a step is judged again after a lost race")
            tries += 1
            latest = self._attempt(
                base, self._encode_checked(base.state, draft, commit_id), repeatable, latest.root_seen
            )
            written = latest.with_id(commit_id)
            if written is None and tries >= WAIT_AFTER_LOSSES:
                reached("journal: a writer waits after losing several races")
                latest = self._wait_and_look(latest.latest, tries)
                written = latest.with_id(commit_id)
            if written is not None:
                return written, self._write_checkpoint_if_due(latest.latest)

    def _look_before_writing(self, root_checked: ClockReading | None) -> Advance[S, E]:
        """Return the newest state known; on a store with round trips look at the root, unless that was just done."""
        base, is_remote = self._open_if_stale(), self._numbered.is_remote
        root_seen = is_remote and root_checked is not None and self.env.now().is_soon_after(root_checked)
        if is_remote and not root_seen:
            with suppress(Unavailable):
                # The root must be looked at anyway: whether the next number is free costs no time then.
                return self._read_on_checking_root(base)
        return Advance(base, (), root_seen)

    def _draft(
        self,
        base: SeenState[S],
        step: Callable[[S], D | None],
        load: Callable[[SeenState[S]], SeenState[S]] | None,
        is_latest: bool,
    ) -> tuple[SeenState[S], D | None]:
        """Draft an entry from a state. If the step refuses to, read on and ask it once more."""
        if load is not None:
            base = load(base)
        try:
            return base, step(base.state)
        except SparklogError:
            if is_latest:
                raise
        # Judged on the newest state known here; see whether the newest state says the same.
        reached("journal: a refusal is judged again on the newest state")
        return self._draft(self._read_on(base).latest, step, load, is_latest=True)

    def _encode_checked(self, state: S, draft: D, commit_id: str) -> tuple[E, bytes]:
        """Return the entry of a draft and its bytes, read back: what no reader would take must never be written."""
        data = self._encode(draft, state, commit_id)
        number = state.number + 1
        entry = self._decode(data, self.key(number), number)
        self._check(state, entry)
        return entry, data

    def _attempt(
        self, base: SeenState[S], drafted: tuple[E, bytes], repeatable: bool, root_seen: bool
    ) -> Advance[S, E]:
        """Try to create the next number. Ours is among the entries of the answer if it was created."""
        (entry, data), seen = drafted, self.env.now()
        if seen.elapsed_ms(base.seen) > STALE_MS:
            # Else what is created where numbers were collected has a late time as well.
            reached("journal: a writer stalled before its create")
            return self._reopen()
        number, title = base.state.number + 1, f"commit {entry.commit_id} to {self.title}"
        basis = Expected(base.seen, entry.prev_crc, root_seen, base.earlier, base.checked)
        try:
            answer, sight = self._numbered.create(number, data, entry.commit_id, basis)
        except Unavailable as error:
            raise Unavailable(f"{title}: {error}", is_denied=error.is_denied, is_unknown=not error.is_denied) from error
        if answer is CreateResult.UNKNOWN or not sight.objects:
            reached("journal: a writer stalled during its create")
            try:
                return self._trace(entry, number, repeatable)
            except (Corrupt, Unavailable) as error:
                message = f"{title} stalled for over an hour and its outcome is unknown: {error}"
                raise Unavailable(f"{message}; look before you write again", is_unknown=True) from error
        if answer is CreateResult.CREATED:
            # An earlier attempt at this number, drawn up before a stall, may have landed late: what was stored counts.
            stored = sight.objects[0]
            if stored != data:
                reached("journal: an earlier attempt of the writer landed late")
            written = entry if stored == data else self._decode_all([stored], number)[0]
            created = self._extend(replace(base, seen=seen, checked=seen), (written,))
            return Advance(self._publish(created), (written,))
        return self._take_in(base, sight, seen)

    def _wait_and_look(self, base: SeenState[S], tries: int) -> Advance[S, E]:
        """Wait a random time, then read on: a request of ours that was made before a stall may land as late as this."""
        most = REMOTE_WAIT if self._numbered.is_remote else tries
        self.env.pause(min(tries - WAIT_AFTER_LOSSES, most))
        return self._read_on_checking_root(base)

    def _trace(self, entry: E, number: int, repeatable: bool) -> Advance[S, E]:
        """Open again and look for our entry, which may have been collected since."""
        opened = self._reopen()
        if opened.with_id(entry.commit_id) is not None or number > opened.latest.checkpoint:
            return opened
        try:
            written = self._in_chain(entry, number)
        except NotFound as error:
            if repeatable:
                # Tried again it changes nothing if it has landed: the state itself knows.
                return opened
            raise Unavailable(f"{error} is no longer kept") from None
        return opened if written is None else Advance(opened.latest, (written,))

    def _in_chain(self, entry: E, number: int) -> E | None:
        """Return our entry if the chain of CRCs, walked back from the first checkpoint after it, has it.

        The object under its number proves little: ours may have been collected, and a stalled writer's put there
        since. `NotFound` if a link is gone.
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
            reached("journal: an entry whose outcome was unknown is found in the chain")
            return entry
        data = self._numbered.read(number)
        # Drawn up before another stall, ours may have landed with other bytes.
        if data is not None and crc32c.crc32c(data) == link and peek_commit_id(data) == entry.commit_id:
            return self._decode_all([data], number)[0]
        return None

    def write_checkpoint(self) -> None:
        self._write_checkpoint(self._open_if_stale())

    def _is_checkpoint_due(self, base: SeenState[S]) -> bool:
        many = self._entries_per_checkpoint
        is_due = (base.checkpoint + 1) // many < (base.state.number + 1) // many
        return is_due or base.tail_bytes >= self.store.limits.checkpoint_bytes

    def _write_checkpoint_if_due(self, base: SeenState[S]) -> SeenState[S]:
        try:
            return self._write_checkpoint(base) if self._is_checkpoint_due(base) else base
        except (SparklogError, OSError) as error:
            reached("journal: a checkpoint cannot be written, and the entry counts")
            _LOG.warning("no checkpoint of %s at %s %s: %s", self.title, self.noun, base.state.number, error)
            return base
