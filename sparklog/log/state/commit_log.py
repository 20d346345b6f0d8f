"""The journal of one topic.

Its entries are commits. Its state is the topic state and a slice table, which is loaded lazily.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import count, takewhile
from typing import TYPE_CHECKING

from sparklog.errors import Corrupt, NotFound, SparklogError, Unavailable, advice
from sparklog.log.journal.clocks import ClockReading
from sparklog.log.journal.documents import CARRIED_COMMITS
from sparklog.log.journal.journal import Journal
from sparklog.log.journal.names import checkpoint_key, checkpoint_prefix
from sparklog.log.journal.seen_state import Advance, RootAccess, SeenState
from sparklog.log.state.checkpoint import (
    Checkpoint,
    decode_checkpoint,
    decode_table,
    encode_checkpoint,
    write_slice_table,
)
from sparklog.log.state.commit import Commit, Edit, TxnDecision
from sparklog.log.state.commit_object import decode_commit, encode_commit
from sparklog.log.state.embedded_commits import (
    RECENT_RECORDS,
    RecentDocuments,
    commits_to_read,
    verified_chain,
    with_embedded_copies,
)
from sparklog.log.state.invariants import check_commit
from sparklog.log.state.slice_table import SliceTable, Snapshot
from sparklog.log.state.topic_state import EMPTY, TopicState
from sparklog.storage.parallel_reads import request_both

if TYPE_CHECKING:
    from sparklog.log.state.commit_intents import Draft, Intent, Nothing

MAX_LOAD_ATTEMPTS = 8
OWN_OBJECTS = 2
"""The number of latest commits that are read from their own objects when a log is opened. Earlier commits are read from
embedded copies.
"""
_LOG = logging.getLogger("sparklog.log")

Resolver = Callable[[str, TopicState], Sequence[TxnDecision]]
"""A function that returns the decisions on a topic's open transactions. The next commit records these decisions."""


SHOWN_TOPICS = 5


def no_topic(name: str, location: str, others: Sequence[str] | None = None, *, is_wanted: bool = True) -> NotFound:
    """Return the error for a topic that does not exist.

    `others` are the existing topics, or None if they are unknown. If `is_wanted` is true, the message says how to
    create the topic.
    """
    if others is None:
        hint = advice(python="root.topics() lists the topics", shell="`sparklog topics list` lists the topics")
    elif not others:
        hint = "the root has no topics"
    elif len(others) > SHOWN_TOPICS:
        hint = f"the root has topics such as {', '.join(others[:SHOWN_TOPICS])}"
    else:
        hint = f"the topics are {', '.join(others)}"
    create = advice(python=f"; root.ensure_topic({name!r}) creates it", shell="") if is_wanted else ""
    return NotFound(f"topic '{name}' does not exist in {location}; {hint}{create}")


@dataclass(frozen=True)
class LogState:
    """The state of a topic's log.

    If `table` is None, the slice table is loaded from `checkpoint` and the commits in `tail`.
    """

    topic_state: TopicState
    checkpoint: Checkpoint | None
    tail: tuple[Commit, ...]
    table: SliceTable | None

    @property
    def number(self) -> int:
        return self.topic_state.version

    @property
    def crc(self) -> int | None:
        return self.topic_state.crc

    @property
    def checkpoint_version(self) -> int:
        return -1 if self.checkpoint is None else self.checkpoint.state.version


_EMPTY_STATE = LogState(EMPTY, None, (), SliceTable())


@dataclass(frozen=True, slots=True)
class CommitResult:
    """The result of a commit. If no commit was written, `commit` is None and `nothing` contains the reason."""

    commit: Commit | None
    state: TopicState
    nothing: Nothing | None = None
    dropped: tuple[Edit, ...] = ()


class CommitLog(Journal[LogState, Commit, "Draft"]):
    """The journal of one topic, with the latest state that this process has read. Thread-safe."""

    noun = "commit"

    def __init__(self, root: RootAccess, topic: str, resolver: Resolver | None = None) -> None:
        super().__init__(root, topic, f"topic '{topic}'")
        self._root = root
        self.topic = topic
        self._resolver = resolver
        self._documents = RecentDocuments()
        self._checked: tuple[TopicState, Commit | None, TopicState] = EMPTY, None, EMPTY

    def existing(self, refresh: bool = True) -> LogState:
        """Return the latest state, or the latest cached state if `refresh` is false.

        Raises `NotFound` if there is no topic.
        """
        return self._existing(refresh).state

    def snapshot(self, refresh: bool = True) -> Snapshot:
        """Return the latest state with all slices. `refresh` has the same meaning as in `existing`."""
        return self._snapshot(self._existing(refresh))

    def snapshot_if_exists(self) -> Snapshot | None:
        """Return the latest state with all slices, or None if the topic does not exist."""
        latest = self._refresh_from(self._latest).latest
        return self._snapshot(latest) if latest.state.topic_state.exists else None

    def _snapshot(self, base: SeenState[LogState]) -> Snapshot:
        state = self._with_table(base).state
        if state.table is None or not state.topic_state.exists:
            raise self._not_found()
        return Snapshot(self.topic, self.store, state.topic_state, state.table)

    def _existing(self, refresh: bool) -> SeenState[LogState]:
        base = self._refresh_from(self._latest).latest if refresh else self._open_if_stale()
        if not base.state.topic_state.exists:
            raise self._not_found()
        return base

    def _not_found(self) -> NotFound:
        return no_topic(self.topic, self.store.location)

    def _with_table(self, base: SeenState[LogState]) -> SeenState[LogState]:
        """Load the slice table. If its checkpoint has been deleted, load the table of a later state."""
        if base.state.table is not None:
            return base
        missing: set[int] = set()
        for _ in range(MAX_LOAD_ATTEMPTS):
            version = base.checkpoint
            try:
                return self._publish(replace(base, state=self._load_table(base.state)))
            except (Corrupt, NotFound) as error:
                _LOG.warning("cannot load the slice table of checkpoint %s of %s: %s", version, self.title, error)
                # If the checkpoint was deleted after it was read, a later checkpoint exists. If the checkpoint is
                # corrupt, or is still listed although its table was deleted, use the previous checkpoint.
                below = version if isinstance(error, Corrupt) or version in missing else None
            missing.add(version)
            base = self._reopen(below).latest
            if base.state.table is not None:
                return base
        raise Unavailable(f"cannot load a slice table of {self.title}; run sparklog verify")

    def _load_table(self, state: LogState) -> LogState:
        checkpoint = state.checkpoint
        if checkpoint is None:
            return state
        key = checkpoint_prefix(self.topic) + checkpoint.table.name
        topic_state = checkpoint.state
        table = decode_table(
            self.store.get(key, 0, checkpoint.table.size + 1), checkpoint.table, key, topic_state.version
        )
        return self._applied(LogState(topic_state, checkpoint, (), table), state.tail)

    def commit(
        self, intent: Intent, origin: TopicState | None = None, *, root_checked_at: ClockReading | None = None
    ) -> CommitResult:
        """Commit the draft of `intent`.

        `origin` is the topic state that the intent is based on, and `root_checked_at` is the result of
        `refresh_checking_root`.
        """
        from sparklog.log.state.commit_intents import Nothing

        self._root.ensure_probed()
        decided_on = self.current().topic_state if origin is None else origin
        drafts: list[Draft | Nothing] = []

        def step(state: LogState) -> Draft | None:
            draft = intent.draft(self.topic, state.topic_state, decided_on, state.table)
            drafts.append(draft)
            return None if isinstance(draft, Nothing) else draft

        load = self._with_table if intent.needs_table else None
        written, latest = self._write(step, load=load, repeatable=intent.repeatable, root_checked_at=root_checked_at)
        last = drafts[-1]
        return CommitResult(
            written, latest.state.topic_state, last if isinstance(last, Nothing) else None, last.dropped
        )

    def _empty(self) -> LogState:
        return _EMPTY_STATE

    def _decode(self, data: bytes, key: str, number: int) -> Commit:
        # Check only the document, because corrupt inline records only affect readers of these records.
        commit = decode_commit(data, key, number, check_sections=False)
        if commit.inline is not None:
            RECENT_RECORDS.add(self.store, key, commit.inline_start, data[commit.inline_start :])
        self._documents.add(commit, data, self.store.limits.checkpoint_bytes)
        return commit

    def _opened(self, checkpoints: Sequence[int], seen: ClockReading) -> Advance[LogState, Commit]:
        """Read the latest checkpoint and the commits after it. On a remote store, list the commits first."""
        if not (self._numbered.is_remote and self.store.lists_after):
            return super()._opened(checkpoints, seen)
        latest = checkpoints[-1] if checkpoints else -1
        readable, listed = request_both(
            self.store,
            lambda: self._first_readable(reversed(checkpoints)),
            lambda: self._numbered.listed(latest),
        )
        state = readable or self._empty()
        return self._read_from(state, seen, self._read_with_embedded(state, listed), max(listed, default=latest))

    def _read_with_embedded(self, state: LogState, listed: Sequence[int]) -> list[Commit] | None:
        """Read the commits after a state from a few objects that contain embedded commits. Return None if the commits
        must be read one by one.

        A listing may be outdated, so reading continues after the last commit in the listing that follows without a gap.
        The objects of that commit and of the previous commit must exist, because a commit that its writer withdraws may
        contain copies of documents of a deleted log.
        """
        if state.number >= 0 and CARRIED_COMMITS not in state.topic_state.read_features:
            return None
        first = state.number + 1
        last = first + sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(listed, count(first)))) - 1
        latest = range(max(first, last + 1 - OWN_OBJECTS), last + 1)
        objects = self._numbered.read_some(sorted({*commits_to_read(first, last), *latest, last + 1}))
        if any(number not in objects for number in latest):
            return None
        newer = [objects.pop(last + 1)] if last + 1 in objects else []
        try:
            read = {number: (self._decode(data, self.key(number), number), data) for number, data in objects.items()}
            commits = with_embedded_copies(self.topic, read, first)
            missing = [number for number in range(first, last + 1) if number not in commits]
            for number, data in self._numbered.read_some(missing).items():
                commits[number] = self._decode(data, self.key(number), number)
        except Corrupt:
            return None
        entries = verified_chain(commits, first, last, state.crc)
        if entries is None:
            return None
        newer += self._numbered.read_forward(last + 2) if newer else []
        return [*entries, *self._decode_all(newer, last + 1)]

    def _encode(self, draft: Draft, state: LogState, commit_id: str) -> bytes:
        if self._resolver is not None and state.topic_state.open and not draft.resolved:
            draft = replace(draft, resolved=tuple(self._resolver(self.topic, state.topic_state)))
        now_ms = self.env.wall_ms()
        commit = draft.commit(state.topic_state, commit_id, now_ms, self._guard.store_ms(now_ms))
        max_commits, max_bytes = state.topic_state.carried_commits, self.store.limits.checkpoint_bytes
        embedded = (
            self._documents.copies_for(commit.version, state.crc, max_commits, max_bytes) if max_commits else None
        )
        if embedded is not None:
            commit.embed(embedded)
        return encode_commit(commit)

    def _check(self, state: LogState, entry: Commit) -> None:
        after = state.topic_state.apply(entry)
        check_commit(state.topic_state, entry, after)
        self._checked = state.topic_state, entry, after

    def _applied(self, state: LogState, entries: Sequence[Commit]) -> LogState:
        topic_state, table = state.topic_state, state.table
        base, own_entry, after = self._checked
        for commit in entries:
            # For a commit of this process, `_check` has already computed the next state.
            topic_state = after if base is topic_state and own_entry is commit else topic_state.apply(commit)
            if table is not None:
                table = table.apply(commit, topic_state)
        if CARRIED_COMMITS not in topic_state.write_features:
            self._documents.clear()
        tail = state.tail if table is not None else (*state.tail, *entries)
        return LogState(topic_state, state.checkpoint, tail, table)

    def _extend(self, base: SeenState[LogState], entries: Sequence[Commit]) -> SeenState[LogState]:
        base = super()._extend(base, entries)
        if len(base.state.tail) <= self.store.limits.tail_commits:
            return base
        try:
            return self._with_table(base)
        except (SparklogError, OSError) as error:
            # The table is loaded only to save memory. If loading it fails, the commit that triggered the loading must
            # not fail.
            _LOG.warning("cannot load the slice table of topic %s: %s", self.topic, error)
            return base

    @property
    def _entries_per_checkpoint(self) -> int:
        return self.store.limits.checkpoint_commits

    def _decode_checkpoint(self, data: bytes, key: str, number: int) -> LogState:
        checkpoint = decode_checkpoint(data, key, number)
        return LogState(checkpoint.state, checkpoint, (), None)

    def _write_checkpoint(self, base: SeenState[LogState]) -> SeenState[LogState]:
        """Write a checkpoint, unless a checkpoint that another process has written in the meantime is sufficient."""
        from sparklog.log.state.commit_intents import check_features

        check_features(base.state.topic_state)
        version = base.state.number
        versions = [number for number in self.checkpoints() if number <= version]
        if versions and versions[-1] > base.checkpoint:
            copied = self.read_checkpoint(versions[-1])
            if copied is not None:
                base = self._with_checkpoint(base, copied)
                if not self._is_checkpoint_due(base):
                    return base
        base = self._with_table(base)
        state = base.state
        if state.table is None:
            return base
        snapshot = Snapshot(self.topic, self.store, state.topic_state, state.table)
        checkpoint = Checkpoint(state.topic_state, write_slice_table(self.store, snapshot, self.env.new_id()))
        key = checkpoint_key(self.topic, state.number)
        if self._numbered.create_copy(key, encode_checkpoint(checkpoint), state.number, state.crc):
            return self._with_checkpoint(base, LogState(state.topic_state, checkpoint, (), None))
        copied = self.read_checkpoint(state.number)
        return base if copied is None else self._with_checkpoint(base, copied)

    def _with_checkpoint(self, base: SeenState[LogState], copied: LogState) -> SeenState[LogState]:
        tail = tuple(commit for commit in base.state.tail if commit.version > copied.number)
        state = replace(base.state, checkpoint=copied.checkpoint, tail=tail)
        return self._publish(SeenState(state, base.seen, base.checked, copied.number))
