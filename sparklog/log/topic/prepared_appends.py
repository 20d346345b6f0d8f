"""Appends whose files are complete but not published yet, and groups of appends that share a commit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

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
    def max_inline_bytes(self) -> int:
        """The maximum size of the inline records in the commit."""
        return self.target.inline_bytes if self.may_inline else 0

    @property
    def needs_own_commit(self) -> bool:
        """True if the append must be the only append in its commit.

        A commit has at most one writer, one transaction and one entry per Kafka producer. The limit of its inline
        records applies to all of its files. If an append has no records, a commit may not be needed.
        """
        has_own_fields = self.writer is not None or self.txn is not None or bool(self.kafka_writers)
        return has_own_fields or not self.may_inline or not any(any(file.records) for file in self.files)


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
        slices = {file.path: zip(file.partition, file.base, file.offsets, strict=True) for file in commit.files}
        paths = {file.path for append in self.appends for file in append.files}
        # The inline files of all appends were joined, in append order, to one file that has another path.
        inline_path = next(iter(slices.keys() - paths), INLINE_PATH)
        return [_outcome(commit, slices, inline_path, append.files) for append in self.appends]


def append_groups(appends: Sequence[PreparedAppend]) -> list[AppendGroup]:
    """Divide appends into as few groups as possible, in order."""
    groups = list[AppendGroup]()
    for append in appends:
        if groups and groups[-1].accepts(append):
            groups[-1] = AppendGroup((*groups[-1].appends, append))
        else:
            groups.append(AppendGroup((append,)))
    return groups


def _outcome(
    commit: Commit, slices: Mapping[str, Iterator[Slice]], inline_path: str, files: Sequence[FileSlices]
) -> AppendOutcome:
    """Return the outcome of an append, given the slices by path that follow the slices of the previous appends."""
    base = dict[int, int]()
    end = dict[int, int]()
    for file in files:
        if not file.partition:
            continue
        for partition, first, offsets in islice(slices[file.path or inline_path], len(file)):
            base.setdefault(partition, first)
            end[partition] = first + offsets
    records = sum([sum(file.records) for file in files])
    return AppendOutcome(commit.version, base, end, records, commit_id=commit.commit_id, time_ms=commit.created_ms)
