"""What an append carries from the driver to its tasks, and what comes of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sparklog.log.state.commit import Commit
from sparklog.log.state.configs import TopicConfigs
from sparklog.storage.store import Store


@dataclass(frozen=True, slots=True)
class AppendTarget:
    """All that a task needs to write files for a topic: picklable, carried from the driver to the tasks."""

    store: Store
    root_id: str
    topic: str
    topic_id: str
    partitions: int
    configs: TopicConfigs
    read_version: int
    leader_epoch: int


@dataclass(frozen=True, slots=True)
class AppendOutcome:
    """Of an append: first and next offsets per partition that got records. `skipped`: a replay (see `note`)."""

    version: int
    base: Mapping[int, int]
    end: Mapping[int, int]
    records: int
    skipped: bool = False
    note: str = ""
    commit_id: str = ""


def appended(commit: Commit | None, records: int) -> AppendOutcome:
    """The outcome of `commit`; without files in it a replay, of which at most the run was recorded."""
    if commit is None or not commit.files:
        version = -1 if commit is None else commit.version
        return AppendOutcome(
            version, {}, {}, 0, True, "a replay: only the new run was recorded", commit.commit_id if commit else ""
        )
    base: dict[int, int] = {}
    end: dict[int, int] = {}
    for file in commit.files:
        for partition, first, offsets in zip(file.partition, file.base, file.offsets, strict=True):
            base.setdefault(partition, first)
            end[partition] = first + offsets
    return AppendOutcome(commit.version, base, end, records, commit_id=commit.commit_id)
