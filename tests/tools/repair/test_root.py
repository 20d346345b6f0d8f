"""Repair of a root: objects get their original bytes if these follow from other objects, and valid bytes otherwise."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from sparklog.compaction.run import CompactOptions
from sparklog.errors import BadRequest
from sparklog.log.journal.names import checkpoint_key, checkpoint_prefix, commit_key, entry_number
from sparklog.maintenance.work_items import InProcess, Settings
from sparklog.storage.local import LocalStore
from sparklog.testing.world import DAY_MS, HOUR_MS, World
from sparklog.tools.repair.file_fixes import build_indexes
from sparklog.tools.repair.fixes import Fix, RepairReport, summary
from sparklog.tools.repair.run import BLOCKED, repair_root
from sparklog.tools.verification.run import verify_root
from sparklog.tools.verification.slice_checks import CollectedBatches
from tests.support.compaction import compact_topic
from tests.support.small_limits import small_limits
from tests.tools.repair.small_root import small_root
from tests.tools.verification.damage import by_kind, flip, sampled, undone, verified
from tests.tools.verification.whole_root import WholeRoot, rows

EXACT = ("index", "timeindex", "txnindex", "_groups checkpoint", "_transactions checkpoint")
"""Types of files that are restored byte for byte after any damage."""
FIXED = (*EXACT, "arrow checkpoint", "json checkpoint")
KINDS = (*FIXED, "_groups", "_transactions", "json", "log", "root", "slices")


@pytest.fixture(scope="module")
def whole(fixtures: Path) -> WholeRoot:
    return WholeRoot(fixtures)


@pytest.fixture(scope="module")
def small() -> World:
    return small_root()


def repaired(whole: World, key: str, *, execute: bool = True) -> RepairReport:
    owner = key.split("/", 1)[0]
    topics = () if owner.startswith("_") else (owner,)
    return repair_root(whole.store, topics=topics, execute=execute, env=whole.env())


def smashed(data: bytes, position: int) -> bytes:
    return data[:position] + bytes(byte ^ 0xA5 for byte in data[position : position + 9]) + data[position + 9 :]


def flips(whole: World, rng: random.Random, kinds: tuple[str, ...], times: int) -> None:
    """Flip bits one by one at random positions, and check that each is repaired."""
    keys = by_kind(whole)
    for kind in kinds * times:
        key = rng.choice(keys[kind])
        data = whole.store.get(key)
        position, bit = sampled(data, rng), rng.randrange(8)
        with undone(whole):
            whole.store.replace(key, flip(data, position, bit))
            report = repaired(whole, key)
            assert report.sound, (key, position, bit, report.left)
            assert whole.store.get(key) == data or kind in ("arrow checkpoint", "json checkpoint"), (key, position, bit)
            assert not repaired(whole, key).repaired


def other_damage(whole: World, rng: random.Random, kinds: tuple[str, ...], times: int) -> None:
    """Overwrite, truncate, extend and delete files; check that derived files are rebuilt and others are not worse."""
    keys = by_kind(whole)
    changes: list[Callable[[bytes, int], bytes | None]] = [
        smashed,
        lambda data, position: data[:position],
        lambda data, position: data + b"\0" * 5,
        lambda data, position: None,
    ]
    for number, kind in enumerate(kinds * times):
        key = rng.choice(keys[kind])
        data = whole.store.get(key)
        changed = changes[number % len(changes)](data, rng.randrange(len(data)))
        with undone(whole):
            whole.store.delete(key)
            if changed is not None:
                whole.store.create(key, changed)
            try:
                before = {finding.file for finding in verified(whole, key).findings}
            except BadRequest:
                continue
            report = repaired(whole, key)
            if kind in FIXED:
                assert report.sound, (key, number, report.left)
            # A missing copy of a deleted entry is not damage.
            if kind in EXACT and before:
                assert whole.store.get(key) == data, (key, number)
            assert {finding.file for finding in report.left} <= before, (key, number)
            assert not repaired(whole, key).repaired, (key, number)


SMALL = tuple(kind for kind in KINDS if not kind.startswith(("_transactions", "txnindex")))


def test_flipped_bits_are_repaired(small: World) -> None:
    flips(small, random.Random(1), SMALL, 1)


def test_other_damage_is_repaired(small: World) -> None:
    other_damage(small, random.Random(2), SMALL, 1)


@pytest.mark.slow
def test_flipped_bits_of_all_types_of_files(whole: WholeRoot) -> None:
    flips(whole, random.Random(3), KINDS, 6)


@pytest.mark.slow
def test_other_damage_of_all_types_of_files(whole: WholeRoot) -> None:
    other_damage(whole, random.Random(4), KINDS, 8)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5, 9))
def test_damage_of_hundreds_of_files(whole: WholeRoot, seed: int) -> None:
    flips(whole, random.Random(seed), KINDS, 20)
    other_damage(whole, random.Random(seed), KINDS, 20)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["index", "timeindex", "txnindex", "json checkpoint", "_groups"])
def test_flipped_bits_at_all_positions_of_the_smallest_file(whole: WholeRoot, kind: str) -> None:
    key = min(by_kind(whole)[kind], key=lambda name: len(whole.store.get(name)))
    data = whole.store.get(key)
    for position in range(0, len(data), max(1, len(data) // 200)):
        with undone(whole):
            whole.store.replace(key, flip(data, position, position % 8))
            assert repaired(whole, key).sound, position


def test_dry_run_changes_nothing_and_reports_the_repairs(small: World) -> None:
    keys = by_kind(small)
    index, commit = keys["index"][0], commit_key("latest", 2)
    with undone(small):
        small.store.replace(index, b"1234567")
        small.store.replace(commit, b"{}")
        before = small.store.snapshot()
        report = repair_root(small.store, env=small.env())
        assert small.store.snapshot() == before
        assert [item.file for item in report.repaired] == [index]
        assert {finding.file for finding in report.left} == {commit}
        text = summary(report)
        assert f"{index}: would be rebuilt from the segment" in text
        assert "restore the file from a backup" in text
        assert "after which 1 problem remains that repair cannot fix" in text
        assert text.endswith("nothing was changed; add --execute to repair")


def test_repaired_file_is_set_aside(small: World) -> None:
    index = by_kind(small)["index"][0]
    with undone(small):
        small.store.replace(index, b"1234567")
        (item,) = repair_root(small.store, execute=True, env=small.env()).repaired
        assert item.aside is not None
        assert item.aside.startswith("_repair/")
        assert small.store.get(item.aside) == b"1234567"
        report = verify_root(small.store, env=small.env())
        assert report.sound
        assert report.foreign == report.unreferenced == ()


def test_latest_checkpoint_that_cannot_be_rebuilt_is_kept() -> None:
    """Without it, readers would use an older state, or find no state of a deleted topic."""
    world = small_root()
    newest = max(info.key for info in world.store.list(checkpoint_prefix("latest")) if info.key.endswith(".json"))
    for info in list(world.store.list("latest/_log/")):
        if entry_number(info.key) is not None and info.key[-25:] < newest[-25:]:
            world.store.delete(info.key)
    world.store.delete(commit_key("latest", int(newest[-25:-5])))
    world.store.replace(newest, b"{}\n")
    report = repair_root(world.store, topics=("latest",), execute=True, env=world.env())
    assert newest in {finding.file for finding in report.left}
    assert world.store.get(newest) == b"{}\n"


@pytest.mark.parametrize("damaged", [5, 4])
def test_group_is_readable_after_a_damaged_entry(damaged: int) -> None:
    world = World()
    with small_limits(checkpoint_entries=100):
        from sparklog.groups.lag import Groups

        group = Groups(world.root()).group("g")
        world.root().create_topic("t").append(rows(0, 9, 1))
        for number in range(7):
            group.alter({"t": {0: number}})
        key = commit_key("_groups/g", damaged)
        world.store.replace(key, b"{}\n")
        report = repair_root(world.store, execute=True, env=world.env())
        again = Groups(world.root()).group("g")
        assert [offset.offset for offset in again.committed().values()] == [6]
        # Two copies are above the entry, so it is not needed. If there is only one, the next copy makes it unnecessary.
        assert report.sound == (damaged == 4)


def test_key_filters_are_rebuilt() -> None:
    world = World()
    with small_limits(filter_min_bytes=200):
        topic = world.root().create_topic("t", configs={"cleanup.policy": "compact", "segment.bytes": 4096})
        for number in range(4):
            topic.append(rows(60 * number, 60, 1, keys=300))
        settings = Settings(world.now_ms + 3650 * DAY_MS)
        compact_topic(topic, settings, InProcess(), CompactOptions(roll=True))
        filters = [info.key for info in world.store.list("t/") if info.key.endswith(".bloom")]
        assert filters
        for key in filters:
            data = world.store.get(key)
            for changed in (smashed(data, len(data) - 40), data[:20], None):
                world.store.delete(key)
                if changed is not None:
                    world.store.create(key, changed)
                assert repair_root(world.store, execute=True, env=world.env()).sound
                assert world.store.get(key) == data


@pytest.mark.usefixtures("records_in_files")
def test_footer_is_rebuilt_if_its_slices_are_valid() -> None:
    world = World()
    with small_limits(index_min_bytes=200):
        topic = world.root().create_topic("t", partitions=2)
        topic.append(rows(0, 80, 2))
    (key,) = (info.key for info in world.store.list("t/append/"))
    data = world.store.get(key)
    for changed in (smashed(data, len(data) - 60), data[:-30]):
        world.store.replace(key, changed)
        assert repair_root(world.store, execute=True, env=world.env()).sound
        assert world.store.get(key) == data


@pytest.mark.usefixtures("records_in_files")
def test_files_that_the_vacuum_would_delete_are_set_aside() -> None:
    world = World()
    root = world.root()
    topic = root.create_topic("t", configs={"file.delete.delay.ms": HOUR_MS})
    for number in range(6):
        topic.append(rows(5 * number, 5, 1))
        world.now_ms += DAY_MS
    from sparklog.retention.vacuum import vacuum

    unnamed = f"t/append/{1:020d}-left.slices"
    world.store.create(unnamed, b"left by a writer that died")
    compact_topic(topic, Settings(world.now_ms + 3650 * DAY_MS), InProcess(), CompactOptions(roll=True))
    world.now_ms += DAY_MS
    topic.append(rows(50, 5, 1))
    world.store.create(f"t/append/{topic.log.state().version:020d}-young.slices", b"an upload in flight")
    assert not repair_root(world.store, execute=True, env=world.env()).repaired, "the floor is not above them"
    # The floor is raised, and the vacuum crashes before it deletes any file.
    before = world.store.snapshot()
    vacuum(topic, Settings(world.now_ms))
    world.store.restore({**before, **world.store.snapshot()})
    named = {file.key for file in _named(world)}
    report = repair_root(world.store, execute=True, env=world.env())
    aside = {item.file for item in report.repaired}
    assert unnamed in aside
    assert not aside & named
    assert world.store.get(report.repaired[0].aside or "")
    assert [info.key for info in world.store.list("t/append/") if info.key.endswith("young.slices")]
    after = verify_root(world.store, env=world.env())
    assert after.sound
    assert world.topic("t").scan().to_table().num_rows == 35


def _named(world: World) -> list[object]:
    from sparklog.tools.verification.topic_log import read_topic

    return list(read_topic(world.store, "t", world.now_ms).files)


def test_fix_applies_patches_to_a_range() -> None:
    fix = Fix("k", "", 10, ((2, b"ab"), (7, b"cde")))
    old = b"0123456789"
    assert fix.patched(0, old) == b"01ab456cde"
    assert b"".join(fix.patched(start, old[start : start + 3]) for start in range(0, 10, 3)) == b"01ab456cde"


def test_segment_without_batches_has_empty_indexes() -> None:
    assert build_indexes(0, CollectedBatches(), 4096) == (b"", b"")


def test_checkpoint_is_rebuilt_from_the_commits(small: World) -> None:
    key = checkpoint_key(
        "latest", max(int(name[-25:-5]) for name in by_kind(small)["json checkpoint"] if "latest/" in name)
    )
    with undone(small):
        small.store.delete(key)
        small.store.create(key, b"not a checkpoint")
        report = repaired(small, key)
        assert report.sound
        assert [item.how for item in report.repaired] == ["rebuilt from the commits"]
        assert len(list(small.store.list(key[:-5]))) == 2, "the head and one table"


def test_file_deleted_by_the_vacuum_during_the_repair_is_missing(small: World) -> None:
    """The file is deleted just before its flipped bit is repaired."""
    with undone(small):
        key = next(info.key for info in small.store.list("latest/sealed/") if info.key.endswith(".log"))
        small.store.replace(key, flip(small.store.get(key), 200, 3))

        def vanish(line: str) -> None:
            if line == f"repairing {key}":
                small.store.delete(key)

        report = repair_root(small.store, topics=("latest",), execute=True, say=vanish, env=small.env())
        assert [finding.kind for finding in report.left if finding.file == key] == ["missing"]


@pytest.mark.parametrize("suffix", [".index", ".bloom", ".log", "_groups"])
def test_directory_with_the_name_of_an_object_is_reported_once(small: World, tmp_path: Path, suffix: str) -> None:
    store = LocalStore(tmp_path / "root", durable=False)
    for info in small.store.list(""):
        store.create(info.key, small.store.get(info.key))
    in_place = [info.key for info in store.list("") if info.key.endswith(suffix) or info.key.startswith(suffix)]
    key = in_place[0]
    (tmp_path / "root" / key).unlink()
    (tmp_path / "root" / key).mkdir()
    world = World(store)
    for execute in (False, True):
        report = repair_root(store, execute=execute, env=world.env())
        assert [(finding.file, finding.remedy) for finding in report.left] == [(key, BLOCKED)]
    (tmp_path / "root" / key).rmdir()
    assert repair_root(store, execute=True, env=world.env()).sound is (suffix != ".log")


@pytest.mark.parametrize("suffix", [".log", ".slices"])
def test_file_with_a_damaged_start_is_not_truncated(small: World, suffix: str) -> None:
    key = next(info.key for info in small.store.list("latest/") if info.key.endswith(suffix))
    data = small.store.get(key)
    with undone(small):
        small.store.replace(key, b"\0\0" + data)
        assert not repaired(small, key).sound
        assert small.store.get(key) == b"\0\0" + data, "all of it is left"
        small.store.replace(key, data + b"\0\0")
        assert repaired(small, key).sound
        assert small.store.get(key) == data
