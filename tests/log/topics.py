"""Slices without bytes, and commits by hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import crc32c

from sparklog.log.journal.names import append_path, sealed_path
from sparklog.log.state.commit import APPEND, CREATE, Commit
from sparklog.log.state.commit_object import encode_commit
from sparklog.log.state.slice_table import SliceTable
from sparklog.log.state.slices import FileSlices
from sparklog.log.state.topic_state import EMPTY, TopicState
from sparklog.log.topic.topic import Topic
from sparklog.testing.world import START_MS


def file_of(
    slices: Sequence[tuple[int, int]],
    *,
    read_version: int = 0,
    name: str = "a",
    flags: int = 0,
    min_ts: int = 1000,
    nbytes: int = 100,
) -> FileSlices:
    """A file with slices (partition, records), without offsets."""
    n = len(slices)
    return FileSlices(
        path=append_path(read_version, name),
        size=nbytes * n + 40,
        footer_length=40,
        partition=tuple(partition for partition, _ in slices),
        nbytes=(nbytes,) * n,
        offsets=tuple(records for _, records in slices),
        records=tuple(records for _, records in slices),
        min_ts=(min_ts,) * n,
        max_ts=(min_ts + 10,) * n,
        crc=tuple(range(n)),
        flags=(flags,) * n,
    )


def output_of(partition: int, base: int, end: int, *, records: int | None = None, read_version: int = 0) -> FileSlices:
    """A sealed segment."""
    return FileSlices(
        path=sealed_path(partition, read_version, f"s{base}-{end}", base),
        size=500,
        footer_length=0,
        partition=(partition,),
        nbytes=(500,),
        offsets=(end - base,),
        records=(end - base if records is None else records,),
        min_ts=(1000,),
        max_ts=(1010,),
        crc=(99,),
        flags=(0,),
        base=(base,),
        leader_epoch=(-1,),
    )


def append(topic: Topic, *slices: tuple[int, int], name: str | None = None, flags: int = 0) -> int:
    """Append one file with slices (partition, records); the version it became."""
    target = topic.log.append_target()
    file = file_of(
        slices, read_version=target.read_version, name=name or f"f{target.read_version}-{len(slices)}", flags=flags
    )
    return topic.log.commit_append([file], target).version


class Chain:
    """Commits by hand: each `add` follows the ones before, and head and table are kept in step."""

    def __init__(self, partitions: int = 2, configs: dict[str, str | None] | None = None) -> None:
        self.state: TopicState = EMPTY
        self.table = SliceTable()
        self.stored: list[tuple[Commit, bytes]] = []
        self.add(op=CREATE, topic_id="topic-one", partitions=partitions, configs=configs or {})

    def commit(self, **values: object) -> tuple[Commit, bytes]:
        state = self.state
        defaults: dict[str, object] = {
            "version": state.version + 1,
            "topic_id": state.topic_id,
            "commit_id": f"commit-{state.version + 1}",
            "prev_crc": state.crc,
            "time_ms": START_MS + state.version + 1,
            "leader_epoch": state.leader_epoch,
            "op": APPEND,
        }
        commit = Commit(**{**defaults, **values})  # type: ignore[arg-type]
        data = encode_commit(commit)
        # Not read back: some tests make what no reader would take.
        return replace(commit, crc=crc32c.crc32c(data), nbytes=len(data)), data

    def add(self, **values: object) -> Commit:
        commit, data = self.commit(**values)
        self.state = self.state.apply(commit)
        self.table = self.table.apply(commit, self.state)
        self.stored.append((commit, data))
        return commit

    def append(self, *slices: tuple[int, int], name: str | None = None, **values: object) -> Commit:
        """Append a file with slices (partition, records) at the log ends."""
        ends = self.state.log_end.tolist()
        bases = []
        for partition, records in slices:
            bases.append(ends[partition])
            ends[partition] += records
        version = self.state.version
        file = file_of(slices, read_version=version, name=name or f"f{version}").with_base(tuple(bases))
        return self.add(files=(file,), **values)
