"""Lost commits are rebuilt byte for byte from copies in later commits, or reported."""

from __future__ import annotations

import pyarrow as pa
import pytest

from sparklog.errors import Corrupt
from sparklog.log.journal.names import commit_key
from sparklog.testing.world import World
from sparklog.tools.repair.run import repair_root
from sparklog.tools.verification.run import verify_root


def world_with(commits: int, *, inline: bool, carried: int = 127) -> World:
    world = World()
    configs = {"inline.records.bytes": (1 << 17) if inline else 0, "carried.commits": carried}
    topic = world.root().create_topic("t", configs=configs, partitions=2)
    for number in range(commits):
        topic.append(pa.table({"value": [f"{number}a", f"{number}b"], "partition": pa.array([0, 1], pa.int32())}))
    return world


def lose(world: World, numbers: tuple[int, ...]) -> dict[str, bytes]:
    lost = {commit_key("t", number): world.store.get(commit_key("t", number)) for number in numbers}
    for key in lost:
        world.store.delete(key)
    return lost


@pytest.mark.parametrize("lost", [(0,), (3,), (7,), (8,), (8, 9), (2, 3, 4), (5, 12), (1, 2, 3, 4, 5, 6), (140,)])
def test_lost_commits_are_rebuilt_with_identical_bytes(lost: tuple[int, ...]) -> None:
    world = world_with(145, inline=False)
    saved = lose(world, lost)
    report = verify_root(world.store, env=world.env())
    assert set(saved) <= {finding.file for finding in report.findings}, "each is named"
    planned = repair_root(world.store, env=world.env())
    assert planned.sound, planned.left
    assert not any(world.store.stat(key) for key in saved), "nothing was changed"
    done = repair_root(world.store, execute=True, env=world.env())
    assert done.sound, done.left
    assert all(item.how.startswith("rebuilt") for item in done.repaired)
    assert {key: world.store.get(key) for key in saved} == saved
    assert world.topic("t").count().records == 290


def test_lost_records_are_reported_and_the_log_can_be_read() -> None:
    world = world_with(20, inline=True)
    saved = lose(world, (8, 13))
    done = repair_root(world.store, execute=True, env=world.env())
    how = {item.file: item.how for item in done.repaired}
    assert (
        "they are not stored anywhere else: partition 0 offsets 7 to 7, partition 1 offsets "
        "7 to 7" in how[commit_key("t", 8)]
    )
    assert {finding.file for finding in done.left} == set(saved)
    for key, data in saved.items():
        document = data[: data.index(b"\n") + 1]
        stored = world.store.get(key)
        assert stored.startswith(document)
        assert len(stored) == len(data)
    topic = world.topic("t")
    topic.append([{"value": "next"}])
    with pytest.raises(Corrupt, match=rf"{8:020d}.json.*offset 7"):
        topic.scan().to_table()
    rest = topic.scan(start={0: 8, 1: 8}, end={0: 12, 1: 12}).to_table()
    assert rest.num_rows == 8
    # The original object, if it is found again, replaces the rebuilt one.
    for key, data in saved.items():
        world.store.replace(key, data)
    assert verify_root(world.store, env=world.env()).sound


def test_commit_without_a_copy_is_not_rebuilt() -> None:
    world = world_with(20, inline=False, carried=0)
    saved = lose(world, (8,))
    report = repair_root(world.store, execute=True, env=world.env())
    assert not report.repaired
    assert set(saved) <= {finding.file for finding in report.left}
    assert not world.store.stat(commit_key("t", 8))


def test_copy_with_another_crc_is_not_used() -> None:
    world = world_with(20, inline=False)
    lose(world, (8,))
    other = world_with(20, inline=True)
    for number in range(9, 21):
        world.store.replace(commit_key("t", number), other.store.get(commit_key("t", number)))
    world.store.delete(commit_key("t", 9))
    repair_root(world.store, execute=True, env=world.env())
    with pytest.raises(Corrupt):
        world.topic("t")


def test_replaced_records_of_a_compacted_topic_remain_deleted() -> None:
    world = World()
    topic = world.root().create_topic("t", configs={"cleanup.policy": "compact"})
    for number in range(20):
        topic.append(pa.table({"key": [f"k{number % 3}"], "value": [f"{number}"]}))
    assert sum(batch.num_rows for batch in topic.table()) == 3
    lose(world, (8,))
    with pytest.raises(Corrupt, match="entry 8 of the log is missing"):
        world.topic("t")
    assert repair_root(world.store, execute=True, env=world.env()).repaired
    with pytest.raises(Corrupt, match="offset 7"):
        list(world.topic("t").table())
