"""The files that versions of a topic reference: the first and last version, and the slices."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sparklog.compaction.run import CompactOptions
from sparklog.errors import NotFound
from sparklog.log.state.history import History
from sparklog.log.topic.inventory import (
    FilesOfVersions,
    files_of_versions,
    merge_files,
    oldest_base,
    referenced_files,
    start_at,
)
from sparklog.maintenance.work_items import InProcess, Settings
from sparklog.testing.world import World
from tests.support.compaction import compact_topic
from tests.support.records import rows

pytestmark = pytest.mark.usefixtures("records_in_files")


def history_of(appends: int) -> History:
    """Return the history of a topic with this many append files, which a compaction then merges, and one more file."""
    world = World()
    topic = world.root().create_topic("t")
    for _ in range(appends):
        topic.append(rows("x"))
    compact_topic(topic, Settings(world.now_ms), InProcess(), CompactOptions(roll=True))
    topic.append(rows("x"))
    return History(world.store, "t")


def files_from(history: History, base: int) -> FilesOfVersions:
    return files_of_versions(history, start_at(history, base), int(history.commits.version[-1]))


def test_replaced_files_are_referenced_until_the_version_that_replaces_them() -> None:
    history = history_of(3)
    newest = int(history.commits.version[-1])
    found = files_from(history, -1)
    replaced = [file for file in found.files.values() if file.key in found.unreferenced_since]
    assert [file.key.partition("-")[0][-1] for file in replaced] == ["0", "1", "2"]
    assert set(found.unreferenced_since.values()) == {newest - 1}
    assert {file.key for file in found.of_last()} == {file.key for file in referenced_files(history.at(newest)).files()}
    assert found.last.version == newest
    assert found.times.keys() == set(range(-1, newest + 1))


def test_the_oldest_version_without_missing_files() -> None:
    found = files_from(history_of(3), -1)
    replaced, kept = sorted(found.unreferenced_since), next(file.key for file in found.of_last())
    assert found.since([]) == 0
    assert found.since(replaced[:1]) == found.last.version - 1
    with pytest.raises(NotFound, match="is missing, but version 5 references it; run sparklog verify"):
        found.since([kept])


def test_a_walk_from_a_later_version_starts_with_its_files() -> None:
    history = history_of(3)
    whole, late = files_from(history, -1), files_from(history, 4)
    assert late.files.keys() == whole.files.keys() - whole.unreferenced_since.keys()
    assert (late.unreferenced_since, late.since([])) == ({}, 4)


def test_a_file_has_the_slices_of_all_its_references() -> None:
    first, *_ = referenced_files(history_of(2).at(2)).files()
    (claim,) = first.claims
    other = replace(first, claims=(replace(claim, base=claim.base + 7),))
    assert [file.claims for file in merge_files([first, other, first]).values()] == [(claim, *other.claims)]


def test_a_log_with_a_missing_commit_starts_at_a_checkpoint_or_not_at_all() -> None:
    history = history_of(2)
    assert oldest_base(history, 2) == -1
    history.store.delete("t/_log/00000000000000000000.json")
    with pytest.raises(NotFound, match="version 2 of topic 't' cannot be rebuilt"):
        oldest_base(History(history.store, "t"), 2)
