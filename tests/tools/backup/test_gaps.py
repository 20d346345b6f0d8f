"""Backups of roots with lost commits or entries, and repositories with lost objects: errors report the object."""

from __future__ import annotations

import pytest

from sparklog.errors import Corrupt, SparklogError
from sparklog.groups.lag import Groups
from sparklog.log.journal.names import commit_key
from sparklog.tools.backup.backing_up import back_up
from sparklog.tools.backup.restoring import restore
from tests.tools.backup.backup_world import BackupWorld


def written() -> BackupWorld:
    world = BackupWorld()
    root = world.root()
    topic = root.create_topic("a")
    for number in range(6):
        topic.append([{"value": f"{number}"}])
        Groups(root).group("g").alter({"a": {0: number}})
    return world


@pytest.mark.parametrize("prefix", ["a", "_groups/g"])
def test_backup_of_a_root_with_a_gap_reports_it(prefix: str) -> None:
    world = written()
    world.store.delete(commit_key(prefix, 3))
    with pytest.raises(Corrupt, match="entry 3 of the log is missing, although entries 4 to") as raised:
        back_up(world.root(), world.another("place"))
    assert raised.value.file == commit_key(prefix, 3)


@pytest.mark.parametrize("prefix", ["a", "_groups/g"])
def test_restore_reports_a_missing_object_of_the_repository(prefix: str) -> None:
    world = written()
    repository = world.another("place")
    back_up(world.root(), repository)
    numbers = [info.key for info in repository.list(f"{prefix}/_log/0")]
    repository.delete(numbers[-1])
    with pytest.raises(SparklogError, match=rf"{numbers[-1]}|entry 5 of .g. is missing"):
        restore(repository, world.another("restored"), env=world.env())
