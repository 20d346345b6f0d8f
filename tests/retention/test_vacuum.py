"""The vacuum: the files that it deletes and keeps, with one test per rule, on a store in memory."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sparklog.errors import Conflict, NotFound
from sparklog.log.state.commit_intents import LogStartIntent
from sparklog.log.state.history import History
from sparklog.log.state.writer_runs import WriterKey
from sparklog.maintenance.work_items import Settings
from sparklog.retention.vacuum import IDLE_MS, VacuumReport, vacuum
from sparklog.testing.world import DAY_MS, HOUR_MS, MINUTE_MS
from tests.retention.vacuum_world import VacuumWorld, meanwhile, requests


def kinds(report: VacuumReport) -> dict[str, int]:
    found: dict[str, int] = {}
    for item in report.removed:
        found[item.kind] = found.get(item.kind, 0) + item.objects
    return found


class TestUnnamedFiles:
    def test_replaced_files_are_deleted_after_a_day(self) -> None:
        world = VacuumWorld()
        old = world.append(3)
        new = world.rewrite()
        world.advance(DAY_MS - MINUTE_MS)
        assert world.vacuum().removed == ()
        assert world.files() == {*old, new}
        world.advance(2 * MINUTE_MS)
        report = world.vacuum()
        assert world.files() == {new}
        assert kinds(report) == {"append file": 3}
        assert report.removed[0].reason == "replaced or expired before version 4"
        assert report.nbytes == 12
        world.assert_promises()

    def test_recently_replaced_old_file_is_kept(self) -> None:
        world = VacuumWorld()
        old = world.append(2)
        world.advance(10 * DAY_MS)
        world.rewrite()
        world.advance(MINUTE_MS)
        world.vacuum()
        assert set(old) < world.files()
        world.assert_promises()

    def test_expired_files_are_deleted_after_a_day(self) -> None:
        world = VacuumWorld()
        old = world.append(2)
        topic = world.process().topic()
        topic.log.commit(LogStartIntent(topic.log.state().topic_id, {0: 2}))
        world.advance(DAY_MS + 1)
        world.vacuum()
        assert world.files() == {old[1]}

    def test_unreferenced_files_are_deleted_and_reported(self) -> None:
        world = VacuumWorld()
        writer = world.process()
        orphan = writer.upload(writer.target(), {0: 1})
        world.append(1)
        world.advance(DAY_MS + 1)
        report = world.vacuum()
        assert orphan.path not in world.files()
        assert "unreferenced" in report.removed[0].reason

    def test_upload_based_on_the_latest_version_is_kept(self) -> None:
        world = VacuumWorld()
        writer = world.process()
        target = writer.target()
        file = writer.upload(target, {0: 1})
        world.advance(100 * DAY_MS)
        world.vacuum()
        writer.commit([file], target)
        world.assert_promises()
        assert file.path in world.files()

    def test_indexes_are_deleted_with_their_segment(self) -> None:
        world = VacuumWorld()
        world.append(2)
        first = world.rewrite(sealed=True)
        second = world.rewrite(sealed=True)
        world.append(1)
        world.advance(DAY_MS + 1)
        report = world.vacuum()
        assert kinds(report) == {"append file": 2, "segment": 1, "segment index": 2}
        assert {path for path in world.files() if path.startswith("sealed/")} == {
            second,
            *(second.replace(".log", suffix) for suffix in (".index", ".timeindex")),
        }
        assert first not in world.files()

    def test_unrecognized_files_are_kept_and_counted(self) -> None:
        world = VacuumWorld()
        world.store.create("t/append/notes.txt", b"mine")
        world.append(2)
        world.rewrite()
        world.advance(DAY_MS + 1)
        assert world.vacuum().foreign == 1
        assert "append/notes.txt" in world.files()

    def test_delete_delay_is_the_topic_config(self) -> None:
        world = VacuumWorld(configs={"file.delete.delay.ms": 3 * DAY_MS})
        world.append(2)
        world.rewrite()
        world.advance(2 * DAY_MS)
        assert world.vacuum().removed == ()
        world.advance(DAY_MS + 1)
        assert world.vacuum().objects == 2

    def test_vacuum_does_not_commit_to_an_idle_topic(self) -> None:
        world = VacuumWorld()
        world.append(2)
        world.rewrite()
        versions = []
        for _ in range(6):
            world.advance(DAY_MS + 1)
            world.vacuum()
            versions.append(world.log.state.version)
        assert len(set(versions)) == 1, "one upload floor for one deletion, none for nothing"

    def test_dry_run_reports_the_deletions_and_changes_nothing(self) -> None:
        world = VacuumWorld()
        world.append(9)
        world.rewrite()
        world.hold("old", 1, world.now_ms + HOUR_MS)
        world.advance(20 * DAY_MS)
        world.append(9)
        world.advance(2 * DAY_MS)
        before = world.store.snapshot()
        told = world.vacuum(dry_run=True)
        assert world.store.snapshot() == before
        done = world.vacuum()
        assert (told.removed, told.floor, told.ended_leases) == (done.removed, done.floor, done.ended_leases)
        assert told.objects > 9


class TestWriters:
    """The upload floor and writers that take longer than the delay."""

    def test_slow_writer_must_upload_again(self) -> None:
        world = VacuumWorld()
        writer = world.process()
        target = writer.target()
        file = writer.upload(target, {0: 5})
        world.append(2)
        world.advance(DAY_MS + 1)
        world.vacuum()
        assert file.path not in world.files()
        with pytest.raises(Conflict, match="write the records again"):
            writer.commit([file], target)
        assert file.path not in world.log.file_versions
        writer.append({0: 5})
        world.assert_promises()

    def test_slow_writer_at_every_request_of_the_vacuum(self) -> None:
        """Either the commit of the writer is rejected, or its file exists."""
        outcomes = set()
        for number in range(200):
            world = VacuumWorld()
            writer = world.process()
            target = writer.target()
            file = writer.upload(target, {0: 5})
            world.append(2)
            world.rewrite()
            world.advance(DAY_MS + 1)

            def commit(writer=writer, file=file, target=target) -> None:  # type: ignore[no-untyped-def]
                try:
                    writer.commit([file], target)
                    outcomes.add("committed")
                except Conflict:
                    outcomes.add("refused")

            cleaner = world.process()
            struck = meanwhile(cleaner, number, commit)
            world.vacuum(cleaner)
            world.assert_promises()
            if not struck:
                break
            assert (file.path in world.log.file_versions) == (file.path in world.files())
        assert not struck, "the vacuum makes more requests than were tried"
        assert outcomes == {"committed", "refused"}

    def test_writer_that_stalls_in_a_create(self) -> None:
        world = VacuumWorld()
        writer = world.process()
        target = writer.target()
        file = writer.upload(target, {0: 5})

        def away() -> None:
            world.append(1)
            world.advance(2 * DAY_MS)
            world.vacuum()

        writer.at("create:commit", away)
        with pytest.raises(Conflict, match="write the records again"):
            writer.commit([file], target)
        world.assert_promises()
        assert file.path not in world.log.file_versions

    @pytest.mark.parametrize("skew", [-2 * DAY_MS, 2 * DAY_MS, 400 * DAY_MS])
    def test_wrong_clock_does_not_lose_records(self, skew: int) -> None:
        """With a clock a year ahead, writers must upload again, and no records are lost."""
        world = VacuumWorld()
        writer = world.process()
        target = writer.target()
        file = writer.upload(target, {0: 5})
        world.append(5)
        world.rewrite()
        world.advance(MINUTE_MS)
        topic = world.process().topic()
        vacuum(topic, Settings(world.now_ms + skew))
        if skew > 0:
            with pytest.raises(Conflict, match="write the records again"):
                writer.commit([file], target)
        else:
            writer.commit([file], target)
        world.assert_promises(delay_ms=0)
        assert world.commits() == list(range(world.log.state.version + 1)), "commits go by the store's clock alone"


class TestHolds:
    def test_files_of_a_leased_version_are_kept_until_the_release(self) -> None:
        world = VacuumWorld()
        old = world.append(3)
        world.hold("backup", 3)
        world.rewrite()
        world.advance(DAY_MS + 1)
        report = world.vacuum()
        assert set(old) < world.files()
        assert report.held == 3
        world.assert_promises(held={"backup": 3})
        world.hold("backup", None)
        world.advance(DAY_MS + 1)
        world.vacuum()
        assert not set(old) & world.files()

    def test_expired_lease_is_removed_by_a_commit(self) -> None:
        world = VacuumWorld()
        old = world.append(3)
        world.hold("scan", 3, world.now_ms + 2 * DAY_MS)
        world.rewrite()
        world.advance(DAY_MS + HOUR_MS)
        assert world.vacuum().ended_leases == ()
        assert set(old) < world.files()
        world.advance(DAY_MS)
        assert world.vacuum().ended_leases == ("scan",)
        assert not set(old) & world.files()
        assert not world.process().topic().log.state().leases

    def test_user_clock_does_not_expire_leases(self) -> None:
        world = VacuumWorld()
        old = world.append(3)
        world.hold("scan", 3, world.now_ms + 2 * DAY_MS)
        world.rewrite()
        vacuum(world.process().topic(), Settings(world.now_ms + 100 * DAY_MS))
        assert set(old) < world.files()

    def test_lease_renewed_during_the_vacuum_remains_in_effect(self) -> None:
        world = VacuumWorld()
        old = world.append(3)
        world.hold("scan", 3, world.now_ms + HOUR_MS)
        world.rewrite()
        world.advance(2 * DAY_MS)
        cleaner = world.process()
        cleaner.topic()
        cleaner.at("create:commit", lambda: world.hold("scan", 3, world.now_ms + DAY_MS))
        world.vacuum(cleaner)
        assert world.process().topic().log.state().leases["scan"].expires_ms == world.now_ms + DAY_MS
        assert set(old) < world.files()
        world.assert_promises(held={"scan": 3})

    def test_lease_acquired_at_every_request_of_the_vacuum(self) -> None:
        outcomes = set()
        for number in range(200):
            world = VacuumWorld()
            old = world.append(3)
            world.rewrite()
            world.advance(DAY_MS + 1)

            def take(world: VacuumWorld = world) -> None:
                try:
                    world.hold("clone", 3)
                    outcomes.add("held")
                except Conflict:
                    outcomes.add("refused")

            cleaner = world.process()
            struck = meanwhile(cleaner, number, take)
            world.vacuum(cleaner)
            leases = {name: lease.version for name, lease in world.process().topic().log.state().leases.items()}
            world.assert_promises(held=leases)
            assert bool(leases) == (set(old) < world.files())
            if not struck:
                break
        assert not struck
        assert outcomes == {"held", "refused"}

    @pytest.mark.parametrize("version", [5, 6, 7])
    def test_leased_version_can_be_rebuilt_after_commits_are_deleted(self, version: int) -> None:
        world = VacuumWorld()
        world.append(10)
        world.hold("backup", version)
        world.rewrite()
        for _ in range(4):
            world.advance(6 * DAY_MS)
            world.append(6)
            world.vacuum()
        history = History(world.store, "t")
        assert len(history.commits) < world.log.state.version, "no commit went: this tests nothing"
        held = history.at(version)
        assert [(s.base, s.end) for s in world.log.states[version].slices] == list(
            zip(held.slices.all().base.tolist(), held.slices.all().end.tolist(), strict=True)
        )
        world.assert_promises(held={"backup": version})

    def test_leased_version_that_cannot_be_rebuilt_stops_the_vacuum(self) -> None:
        world = VacuumWorld()
        old = world.append(6)
        world.hold("backup", 2)
        world.rewrite()
        world.advance(DAY_MS + 1)
        world.store.delete("t/_log/00000000000000000001.json")
        with pytest.raises(NotFound, match="cannot be rebuilt"):
            world.vacuum()
        assert set(old) < world.files()


class TestOtherTopics:
    def test_files_of_a_clone_outlive_the_source_topic(self) -> None:
        world = VacuumWorld()
        old = world.append(3)
        world.hold("clone of t", 3)
        other = world.process()
        # The model does not contain files of other topics.
        world.model.created = lambda key, data: None  # type: ignore[method-assign]
        clone = other.root.create_topic("c", partitions=2)
        rows = other.topic().log.snapshot().slices.select(0)
        target = clone.log.append_target()
        file = replace(other.upload(target, {0: 6}), path=f"/t/{rows.path(0)}")
        clone.log.commit_append([file], target)
        other.topic().delete()
        world.advance(30 * DAY_MS)
        world.vacuum()
        assert set(old) == world.files()
        world.vacuum(topic="c")
        world.advance(30 * DAY_MS)
        world.vacuum(topic="c")
        assert set(old) == world.files()
        assert world.process().topic("c").log.snapshot().slices.paths() == {file.path}

    def test_data_of_a_deleted_topic_is_deleted_after_its_delay(self) -> None:
        world = VacuumWorld(configs={"file.delete.delay.ms": 3 * DAY_MS})
        world.append(3)
        world.rewrite()
        world.process().topic().delete()
        world.advance(2 * DAY_MS)
        world.vacuum()
        assert len(world.files()) == 4
        world.advance(DAY_MS + 1)
        report = world.vacuum()
        assert world.files() == set()
        assert {item.reason for item in report.removed} == {"its topic was deleted"}
        world.advance(DAY_MS)
        version = world.log.state.version
        world.vacuum()
        assert world.log.state.version == version

    def test_recreated_topic_keeps_its_files(self) -> None:
        world = VacuumWorld()
        old = world.append(3)
        someone = world.process()
        someone.topic().delete()
        world.advance(HOUR_MS)
        someone.root.create_topic("t", partitions=2)
        new = world.append(2)
        world.advance(DAY_MS - HOUR_MS - MINUTE_MS)
        world.vacuum()
        assert set(old) < world.files(), "readers of the old topic still have a minute"
        world.advance(DAY_MS)
        world.append(1)
        report = world.vacuum()
        assert not set(old) & world.files()
        assert set(new) < world.files()
        assert {item.reason for item in report.removed} == {"its topic was deleted"}
        world.assert_promises()

    def test_writer_of_a_deleted_topic_is_rejected(self) -> None:
        world = VacuumWorld()
        world.append(1)
        writer = world.process()
        target = writer.target()
        file = writer.upload(target, {0: 1})
        other = world.process()
        other.topic().delete()
        other.root.create_topic("t", partitions=2)
        world.advance(2 * DAY_MS)
        world.vacuum()
        with pytest.raises(Conflict):
            writer.commit([file], target)
        world.assert_promises()


class TestRegistry:
    def test_writers_idle_for_90_days_are_removed(self) -> None:
        world = VacuumWorld()
        driver = world.process()
        driver.append({0: 1}, driver.target(), WriterKey("old", 3))
        driver.append({0: 1}, driver.target(), WriterKey("alive", 3, "run-1"))
        world.advance(IDLE_MS - DAY_MS)
        # A replay of a new run writes no batch, but proves that the writer is active.
        driver.append({0: 1}, driver.target(), WriterKey("alive", 3, "run-2"))
        world.advance(DAY_MS)
        assert world.vacuum().idle_writers == ()
        world.advance(1)
        assert world.vacuum().idle_writers == ("old",)
        assert set(world.process().topic().log.state().registry) == {"alive"}

    def test_writer_that_commits_during_the_vacuum_is_kept(self) -> None:
        world = VacuumWorld()
        driver = world.process()
        driver.append({0: 1}, driver.target(), WriterKey("q", 3, "run-1"))
        world.advance(IDLE_MS + DAY_MS)
        cleaner = world.process()
        target = driver.target()
        cleaner.at(
            "create:commit", lambda: driver.commit([driver.upload(target, {0: 1})], target, WriterKey("q", 3, "run-2"))
        )
        world.vacuum(cleaner)
        assert set(world.process().topic().log.state().registry) == {"q"}

    def test_user_clock_does_not_remove_writers(self) -> None:
        world = VacuumWorld()
        driver = world.process()
        driver.append({0: 1}, driver.target(), WriterKey("q", 3))
        report = vacuum(world.process().topic(), Settings(world.now_ms + 2 * IDLE_MS))
        assert report.idle_writers == ()
        assert world.process().topic().log.state().registry


def test_request_budget_of_an_idle_vacuum() -> None:
    world = VacuumWorld()
    world.append(30)
    world.advance(HOUR_MS)
    cleaner = world.process()
    cleaner.topic()
    assert requests(cleaner, lambda: world.vacuum(cleaner)) < 30
