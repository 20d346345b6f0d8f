"""The commit log of one topic: opening it, following it, and committing to it.

The protocol, in the order things happen:

1. An intent is checked against the newest state known and becomes commit `n + 1`, created if absent.
2. "Already exists" or no answer: whoever lies there is read. Our commit id: it is ours, the answer was lost. Nothing
   there: the same number again. Somebody else's: read forward to the first missing number, check the intent against
   that state, create there; wait a random time after the third loss.
3. If more than an hour passed between the last sight of the newest commit and the answer, numbers may have been
   collected and used again: the outcome is unknown, the log is opened afresh and our commit id looked for.
4. Acknowledged. If 128 commits or 1 MiB of commits have come since the newest checkpoint, one is written; failing to
   does not fail the commit.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import crc32c

from sparklog.errors import Corrupt, NotFound, SparklogError, Unavailable
from sparklog.log.journal.clock import ClockGuard
from sparklog.log.journal.documents import peek_commit_id
from sparklog.log.journal.env import Env, Moment
from sparklog.log.journal.names import checkpoint_key, checkpoint_prefix, checkpoint_table_name, checkpoint_version
from sparklog.log.journal.numbered_objects import STALE_MS, Answer, Numbered, pause
from sparklog.log.state.checkpoint import (
    Checkpoint,
    TableRef,
    decode_checkpoint,
    decode_table,
    encode_checkpoint,
    encode_table,
)
from sparklog.log.state.commit import Commit, Edit, Resolved, decode_commit, encode_commit
from sparklog.log.state.intents import Intent, Nothing, check_features
from sparklog.log.state.invariants import check_commit
from sparklog.log.state.slice_table import SliceTable
from sparklog.log.state.snapshot import Snapshot
from sparklog.log.state.topic_state import EMPTY, Head
from sparklog.storage.store import Store

CHECKPOINT_COMMITS = 128
CHECKPOINT_BYTES = 1 << 20
WAIT_AFTER_LOSSES = 3
OPEN_TRIES = 3
LONG_TAIL = 4096
"""Commits kept for a table that nobody has asked for yet; beyond, the table is loaded."""
_LOG = logging.getLogger("sparklog.log")

Resolver = Callable[[str, Head], Sequence[Resolved]]
"""Reads decisions of the open transactions in the head of a topic: what every commit records of them."""


@dataclass(frozen=True)
class LogState:
    """What is known of a log: its head, and the slice table or what it takes to load it.

    `seen`: both clocks before the request that showed this head to be the newest. `tail`: commits since `checkpoint`,
    kept until the table is loaded.
    """

    head: Head
    seen: Moment
    checkpoint: Checkpoint | None
    tail: tuple[Commit, ...]
    tail_bytes: int
    table: SliceTable | None

    @property
    def checkpoint_version(self) -> int:
        return -1 if self.checkpoint is None else self.checkpoint.head.version

    @property
    def checkpoint_due(self) -> bool:
        commits = self.head.version - self.checkpoint_version
        return commits >= CHECKPOINT_COMMITS or self.tail_bytes >= CHECKPOINT_BYTES

    def extended(self, commits: Sequence[Commit], seen: Moment) -> LogState:
        """With the next commits; `Corrupt` if they do not follow."""
        head, table = self.head, self.table
        for commit in commits:
            head = head.apply(commit)
            if table is not None:
                table = table.apply(commit, head)
        size = self.tail_bytes + sum(commit.nbytes for commit in commits)
        tail = self.tail if table is not None else (*self.tail, *commits)
        return LogState(head, seen, self.checkpoint, tail, size, table)


@dataclass(frozen=True, slots=True)
class Outcome:
    """Of a commit: what was written (None: `nothing` says why not), the head after it, edits dropped, tries it took."""

    commit: Commit | None
    head: Head
    nothing: Nothing | None = None
    dropped: tuple[Edit, ...] = ()
    tries: int = 1


class CommitLog:
    """The log of one topic, with the newest state this process knows. Safe to share between threads."""

    def __init__(
        self,
        store: Store,
        topic: str,
        env: Env,
        guard: ClockGuard,
        resolver: Resolver | None = None,
        root_id: str | None = None,
    ) -> None:
        self.store = store
        self.topic = topic
        self.env = env
        self._guard = guard
        self._resolver = resolver
        self._numbered = Numbered(store, topic, env, root_id)
        self._state: LogState | None = None

    # -- following

    def known(self) -> Head | None:
        """The newest head this process has seen, however old; None before the first. Never a request."""
        return None if self._state is None else self._state.head

    def current(self) -> LogState:
        """The newest state known, without a request where it is younger than an hour."""
        state = self._state
        return self._open()[0] if state is None or self._is_stale(state.seen) else state

    def refresh(self) -> LogState:
        """The newest state there is: one request that finds nothing when nothing changed."""
        state = self._state
        if state is None or self._is_stale(state.seen):
            return self._open()[0]
        return self._forward(state)[0]

    def make_durable(self) -> None:
        """Make durable what was read here, before something that rests on it is written elsewhere."""
        self._numbered.make_durable()

    def existing(self, refresh: bool = True) -> LogState:
        """The newest state there is or, without `refresh`, the newest one known. `NotFound` if there is no topic."""
        state = self.refresh() if refresh else self.current()
        if not state.head.exists:
            raise self._not_found()
        return state

    def snapshot(self, refresh: bool = True) -> Snapshot:
        """The same with all slices."""
        state = self.with_table(self.existing(refresh))
        if state.table is None or not state.head.exists:
            raise self._not_found()
        return Snapshot(self.topic, self.store, state.head, state.table)

    def _not_found(self) -> NotFound:
        return NotFound(f"topic '{self.topic}' does not exist in {self.store.location}; create it")

    def with_table(self, state: LogState) -> LogState:
        """The state with its slice table; a newer one if what it takes to load it is gone."""
        if state.table is not None or state.checkpoint is None:
            return state
        below = None
        missing: set[int] = set()
        for _ in range(8):
            try:
                return self._publish(self._load_table(state))
            except (Corrupt, NotFound) as error:
                version = state.checkpoint_version
                _LOG.warning("checkpoint %s of topic %s: %s", version, self.topic, error)
                # Deleted since we looked: a newer one exists. Damaged, or still there without its table: the one
                # before does.
                below = version if isinstance(error, Corrupt) or version in missing else None
                missing.add(version)
                state = self._open(below)[0]
                if state.table is not None:
                    return state
        raise Unavailable(f"no slice table of topic '{self.topic}' can be loaded; run verify")

    def _load_table(self, state: LogState) -> LogState:
        checkpoint = state.checkpoint
        if checkpoint is None:
            return state
        key = checkpoint_prefix(self.topic) + checkpoint.table.name
        head = checkpoint.head
        table = decode_table(self.store.get(key, 0, checkpoint.table.size + 1), checkpoint.table, key, head.version)
        for commit in state.tail:
            head = head.apply(commit)
            table = table.apply(commit, head)
        return replace(state, table=table, tail=())

    def _is_stale(self, seen: Moment) -> bool:
        return self.env.now().elapsed_ms(seen) > STALE_MS

    def _publish(self, state: LogState) -> LogState:
        known = self._state
        if known is None or state.head.version >= known.head.version or self._is_stale(known.seen):
            self._state = state
        return state

    def _forward(self, state: LogState, known: Sequence[bytes] = ()) -> tuple[LogState, list[Commit]]:
        """Read on from a state (`known`: the next commits already read); one too old by then is opened afresh."""
        seen = self.env.now()
        first = state.head.version + 1
        found = [*known, *self._numbered.read_forward(first + len(known))]
        if self._is_stale(state.seen):
            return self._open()
        commits = self._decode(found, first)
        return self._publish(self._extended(state, commits, seen)), commits

    def _extended(self, state: LogState, commits: Sequence[Commit], seen: Moment) -> LogState:
        try:
            state = state.extended(commits, seen)
        except Corrupt as error:
            raise error if error.file else Corrupt(error.message, file=f"{self.topic}/_log") from None
        if len(state.tail) <= LONG_TAIL:
            return state
        try:
            return self.with_table(state)
        except (SparklogError, OSError) as error:
            # Only to save memory: the commits that led here must not fail for it.
            _LOG.warning("the slice table of topic %s is not loaded: %s", self.topic, error)
            return state

    def _decode(self, found: Sequence[bytes], first: int) -> list[Commit]:
        commits = []
        for version, data in enumerate(found, first):
            key = self._numbered.key(version)
            try:
                commits.append(decode_commit(data, key, version))
            except Corrupt:
                # A connection that broke off, a bit that flipped on the way: read again before calling it damaged.
                commits.append(decode_commit(self.store.get(key), key, version))
        return commits

    # -- opening

    def _open(self, below: int | None = None) -> tuple[LogState, list[Commit]]:
        """Open afresh: one listing, one checkpoint, the tail (also given). `below`: only older checkpoints."""
        for tries in range(OPEN_TRIES):
            seen = self.env.now()
            versions = self._checkpoints()
            state = LogState(EMPTY, seen, None, (), 0, SliceTable())
            for version in reversed(versions):
                checkpoint = self._read_checkpoint(version) if below is None or version < below else None
                if checkpoint is not None:
                    state = LogState(checkpoint.head, seen, checkpoint, (), 0, None)
                    break
            start = state.head.version + 1
            commits = self._decode(self._numbered.read_forward(start, ahead=True), start)
            state = self._extended(state, commits, seen)
            missing = bool(versions) and state.head.version < versions[-1]
            known = self._state
            # What was seen once is never taken back, whatever a cache shows.
            backward = known is not None and state.head.version < known.head.version
            if not missing and not backward and not self._is_stale(seen):
                return self._publish(state), commits
            # A directory cache may hide for a while what exists: look again before calling it lost.
            self.env.sleep(pause(self.env.random, tries))
        if missing:
            raise Corrupt(
                f"commit {state.head.version + 1} of topic '{self.topic}' is missing, and no checkpoint up to version "
                f"{versions[-1]} can be read; restore the topic",
                file=self._numbered.key(state.head.version + 1),
            )
        if backward:
            raise Unavailable(
                f"topic '{self.topic}' shows version {state.head.version}, newer ones were seen before; try again "
                "later (after a restore: open the root again)"
            )
        raise Unavailable(f"opening topic '{self.topic}' takes longer than an hour; try again later")

    def _checkpoints(self) -> list[int]:
        found = (checkpoint_version(info.key) for info in self.store.list(checkpoint_prefix(self.topic)))
        return sorted(version for version in found if version is not None)

    def _read_checkpoint(self, version: int) -> Checkpoint | None:
        """None if it is damaged or gone: the one before will do."""
        key = checkpoint_key(self.topic, version)
        try:
            return decode_checkpoint(self.store.get(key), key, version)
        except (Corrupt, NotFound) as error:
            _LOG.warning("passing over checkpoint %s of topic %s: %s", version, self.topic, error)
            return None

    # -- committing

    def commit(self, intent: Intent, origin: Head | None = None) -> Outcome:
        """Commit what `intent` says. Raises what it raises, and `Unavailable` if the outcome stays unknown.

        `origin` is the head that the caller decided on (the newest known, if None).
        """
        self._guard.check()
        commit_id = self.env.new_id()
        state = self.current()
        origin = state.head if origin is None else origin
        tries, looked = 0, False
        while True:
            tries += 1
            if intent.needs_table:
                state = self.with_table(state)
            try:
                draft = intent.draft(self.topic, state.head, origin, state.table)
            except SparklogError:
                if looked:
                    raise
                # Judged on the newest state known here; see whether the newest there is says the same.
                state, looked = self._forward(state)[0], True
                continue
            looked = True
            if isinstance(draft, Nothing):
                return Outcome(None, state.head, draft, draft.dropped, tries)
            if self._resolver is not None and state.head.open and not draft.resolved:
                draft = replace(draft, resolved=tuple(self._resolver(self.topic, state.head)))
            commit = draft.commit(state.head, commit_id, self.env.wall_ms(), self._guard.store_ms())
            data = encode_commit(commit)
            # Read back before it is written: what no reader would take must never lie in the log.
            commit = decode_commit(data, self._numbered.key(commit.version), commit.version)
            check_commit(state.head, commit, state.head.apply(commit))
            written, state = self._attempt(state, commit, data, intent)
            if written is not None:
                state = self._checkpoint_if_due(state)
                return Outcome(written, state.head, None, draft.dropped, tries)
            if tries >= WAIT_AFTER_LOSSES:
                self.env.sleep(pause(self.env.random, tries - WAIT_AFTER_LOSSES))
                state, commits = self._forward(state)
                # A request made before a stall may land as late as this.
                landed = [other for other in commits if other.commit_id == commit_id]
                if landed:
                    return Outcome(landed[0], state.head, None, draft.dropped, tries)

    def _attempt(self, state: LogState, commit: Commit, data: bytes, intent: Intent) -> tuple[Commit | None, LogState]:
        """Try one number: the commit as it stands in the log, or None, and the newest state."""
        seen = self.env.now()
        try:
            answer, found = self._numbered.create(
                commit.version, data, commit.commit_id, peek_commit_id, state.seen, commit.prev_crc
            )
        except Unavailable as error:
            raise Unavailable(f"commit {commit.commit_id} to topic '{self.topic}': {error}") from error
        if answer is Answer.STALLED or found is None:
            try:
                return self._trace(commit, intent)
            except (Corrupt, Unavailable) as error:
                raise Unavailable(
                    f"commit {commit.commit_id} to topic '{self.topic}' stalled for over an hour and its outcome is "
                    f"unknown: {error}; look before you write again"
                ) from error
        if answer is Answer.OURS:
            # An earlier attempt at this number, drawn up before a stall, may have landed late: what lies there counts.
            written = commit if found == data else self._decode([found], commit.version)[0]
            return written, self._publish(self._extended(state, (written,), seen))
        state, commits = self._forward(state, known=[found])
        mine = [other for other in commits if other.commit_id == commit.commit_id]
        return (mine[0] if mine else None), state

    def _trace(self, commit: Commit, intent: Intent) -> tuple[Commit | None, LogState]:
        """After a stall: open afresh and find out whether our commit is in the log."""
        state, commits = self._open()
        for found in commits:
            if found.commit_id == commit.commit_id:
                return found, state
        checkpoint = state.checkpoint
        if checkpoint is None or commit.version > checkpoint.head.version:
            return None, state
        try:
            return self._in_chain(commit, checkpoint), state
        except NotFound as error:
            if intent.repeatable:
                # Tried again it changes nothing if it has landed: the state itself knows.
                return None, state
            raise Unavailable(f"{error} is no longer kept") from None

    def _in_chain(self, commit: Commit, newest: Checkpoint) -> Commit | None:
        """Our commit if the chain of CRCs, walked back from a checkpoint after it, says that it is in the log.

        What lies under its number says little: it may have been collected, and a stalled writer's commit put there
        since. `NotFound` if a link is gone.
        """
        checkpoint = newest
        for version in self._checkpoints():
            found = self._read_checkpoint(version) if commit.version <= version < newest.head.version else None
            if found is not None:
                checkpoint = found
                break
        link = checkpoint.head.crc
        for version in range(checkpoint.head.version, commit.version, -1):
            data = self._numbered.read(version)
            if data is None or crc32c.crc32c(data) != link:
                raise NotFound(self._numbered.key(version))
            link = self._decode([data], version)[0].prev_crc
        if link == commit.crc:
            return commit
        data = self._numbered.read(commit.version)
        # Drawn up before another stall, ours may have landed with other bytes.
        if data is not None and crc32c.crc32c(data) == link and peek_commit_id(data) == commit.commit_id:
            return self._decode([data], commit.version)[0]
        return None

    # -- checkpoints

    def _checkpoint_if_due(self, state: LogState) -> LogState:
        if not state.checkpoint_due:
            return state
        try:
            return self.write_checkpoint(state)
        except (SparklogError, OSError) as error:
            _LOG.warning("no checkpoint of topic %s at version %s: %s", self.topic, state.head.version, error)
            return state

    def write_checkpoint(self, state: LogState) -> LogState:
        """Write a checkpoint of this state, unless somebody wrote one meanwhile that makes it unnecessary."""
        check_features(state.head)
        versions = [version for version in self._checkpoints() if version <= state.head.version]
        if versions and versions[-1] > state.checkpoint_version:
            newest = self._read_checkpoint(versions[-1])
            if newest is not None:
                tail = tuple(commit for commit in state.tail if commit.version > newest.head.version)
                state = self._publish(replace(state, checkpoint=newest, tail=tail, tail_bytes=0))
                if not state.checkpoint_due:
                    return state
        state = self.with_table(state)
        table = state.table
        if table is None:
            return state
        data, unsealed = encode_table(table)
        name = checkpoint_table_name(state.head.version, self.env.new_id())
        ref = TableRef(name, len(data), crc32c.crc32c(data), len(table), unsealed)
        checkpoint = Checkpoint(state.head, ref)
        key = checkpoint_prefix(self.topic) + name
        if not self.store.create(key, data) and self.store.get(key) != data:
            # Nobody else uses this name: "exists" was our own first try, or wrong. A head must not name what is not.
            raise Unavailable(f"{key} was not written as it should; the next committer tries again")
        head_key = checkpoint_key(self.topic, state.head.version)
        if self.store.create(head_key, encode_checkpoint(checkpoint)):
            self._numbered.drop_unless_here(head_key, state.head.version, state.head.crc)
        else:
            found = self._read_checkpoint(state.head.version)
            if found is None:
                return state
            checkpoint = found
        return self._publish(replace(state, checkpoint=checkpoint, tail=(), tail_bytes=0))
