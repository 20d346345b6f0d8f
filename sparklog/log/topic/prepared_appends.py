"""Appends whose files are complete but not published yet, and groups of appends that share a commit."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice

from sparklog.log.state.commit import Commit, Txn
from sparklog.log.state.slices import INLINE_PATH, FileSlices
from sparklog.log.state.writer_runs import KafkaWriterKey, WriterKey
from sparklog.log.write.append_target import AppendOutcome, AppendTarget

Slice = tuple[int, int, int]
"""The partition, base offset and number of offsets of a slice in a commit."""


@dataclass(frozen=True, slots=True)
class PreparedAppend:
    """Files that tasks wrote for `target` and that no commit references yet. They are published atomically.

    * `writer`: the batch that consists of the files; a batch is published only once
    * `txn`: the transaction that the files belong to
    * `kafka_writers`: the Kafka producers whose batches are in the files
    * `may_inline`: whether small files may become inline records of the commit
    * `is_optimistic`: whether the files were written for a cached state that may be outdated. The commit fails with
      `Conflict` if the topic's configs or partitions have changed.
    """

    files: Sequence[FileSlices]
    target: AppendTarget
    writer: WriterKey | None = None
    txn: Txn | None = None
    kafka_writers: tuple[KafkaWriterKey, ...] = ()
    may_inline: bool = True
    is_optimistic: bool = False

    @property
    def needs_own_commit(self) -> bool:
        """True if the append must be the only append in its commit.

        A commit has at most one writer, one transaction and one entry per Kafka producer. The limit of its inline
        records applies to all of its files. If an append has no records, a commit may not be needed. In a shared
        commit, the inline records of all appends precede the other files, so the offsets of an append that has both
        would not be contiguous.
        """
        has_own_fields = self.writer is not None or self.txn is not None or bool(self.kafka_writers)
        has_both = len({file.path == INLINE_PATH for file in self.files}) > 1
        return has_own_fields or has_both or not self.may_inline or self.records == 0

    @property
    def records(self) -> int:
        return sum([sum(file.records) for file in self.files])


@dataclass(frozen=True, slots=True)
class AppendGroup:
    """Appends that are published by one commit: one append, or several appends that do not need their own commit and
    whose targets accept the same files.
    """

    appends: tuple[PreparedAppend, ...]

    def accepts(self, append: PreparedAppend) -> bool:
        """Return True if an append may be added to the group."""
        first = self.appends[0]
        needs_own_commit = first.needs_own_commit or append.needs_own_commit
        return not needs_own_commit and first.target.accepts_files_for(append.target)

    def joined(self) -> PreparedAppend:
        """Return one append with the files of all appends."""
        first, *others = self.appends
        if not others:
            return first
        return PreparedAppend(
            [file for append in self.appends for file in append.files],
            # The targets differ only in the version, and in the time of the root check. The journal checks the root
            # again if the check of the last append is more than a second old. Another append may have a later check,
            # which would only save a request.
            others[-1].target,
            # If the topic has changed, all appends are rejected, and the queue commits each append alone.
            is_optimistic=any(append.is_optimistic for append in self.appends),
        )

    def outcomes(self, commit: Commit) -> list[AppendOutcome]:
        """Return the outcome of each append, given the group's commit."""
        if not commit.files:
            note = "the batch was replayed; only the new run was recorded"
            return [AppendOutcome(commit.version, {}, {}, 0, True, note, commit.commit_id)]
        if len(self.appends) == 1:
            return [_outcome(commit, chain.from_iterable(map(_slices, commit.files)), self.appends[0])]
        slices = {file.path: _slices(file) for file in commit.files}
        paths = {file.path for append in self.appends for file in append.files}
        # The inline files of all appends were joined, in append order, to one file that has another path.
        inline_path = next(iter(slices.keys() - paths), INLINE_PATH)
        outcomes = []
        for append in self.appends:
            parts = (islice(slices[file.path or inline_path], len(file)) for file in append.files if file.partition)
            outcomes.append(_outcome(commit, chain.from_iterable(parts), append))
        return outcomes


def append_groups(appends: Sequence[PreparedAppend]) -> list[AppendGroup]:
    """Divide one or more appends into as few groups as possible, in order."""
    first, *others = appends
    groups = [AppendGroup((first,))]
    for append in others:
        if groups[-1].accepts(append):
            groups[-1] = AppendGroup((*groups[-1].appends, append))
        else:
            groups.append(AppendGroup((append,)))
    return groups


def _slices(file: FileSlices) -> Iterator[Slice]:
    return zip(file.partition, file.base, file.offsets, strict=True)


def _outcome(commit: Commit, slices: Iterable[Slice], append: PreparedAppend) -> AppendOutcome:
    """Return the outcome of an append, given its slices in the commit."""
    base: dict[int, int] = {}
    end: dict[int, int] = {}
    for partition, first, offsets in slices:
        base.setdefault(partition, first)
        end[partition] = first + offsets
    return AppendOutcome(
        commit.version, base, end, append.records, commit_id=commit.commit_id, time_ms=commit.created_ms
    )
