"""The vacuum: what it deletes and what it must not, one story for each rule, on a store in memory."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sparklog.errors import Conflict, NotFound
from sparklog.log.state.history import History
from sparklog.log.state.intents import LogStartIntent
from sparklog.log.state.registry import WriterKey
from sparklog.maintenance.work import Settings
from sparklog.retention.vacuum import IDLE_MS, VacuumReport, vacuum
from tests.retention.house import DAY, HOUR, MINUTE, House, meanwhile, requests


def kinds(report: VacuumReport) -> dict[str, int]:
    found: dict[str, int] = {}
    for item in report.removed:
        found[item.kind] = found.get(item.kind, 0) + item.objects
    return found


class TestUnnamedFiles:
    def test_replaced_files_go_a_day_after_they_were_replaced(self) -> None:
        house = House()
        old = house.append(3)
        new = house.rewrite()
        house.sleep(DAY - MINUTE)
        assert house.vacuum().removed == ()
        assert house.files() == {*old, new}
        house.sleep(2 * MINUTE)
        report = house.vacuum()
        assert house.files() == {new}
        assert kinds(report) == {"append file": 3}
        assert report.removed[0].reason == "replaced or expired before version 4"
        assert report.nbytes == 12
        house.assert_promises()

    def test_a_file_made_ten_days_ago_and_replaced_a_minute_ago_stays(self) -> None:
        house = House()
        old = house.append(2)
        house.sleep(10 * DAY)
        house.rewrite()
        house.sleep(MINUTE)
        house.vacuum()
        assert set(old) < house.files()
        house.assert_promises()

    def test_what_expired_goes_a_day_later(self) -> None:
        house = House()
        old = house.append(2)
        topic = house.process().topic()
        topic.commit(LogStartIntent(topic.head().topic_id, {0: 2}))
        house.sleep(DAY + 1)
        house.vacuum()
        assert house.files() == {old[1]}

    def test_orphans_go_and_say_so(self) -> None:
        house = House()
        writer = house.process()
        orphan = writer.upload(writer.target(), {0: 1})
        house.append(1)
        house.sleep(DAY + 1)
        report = house.vacuum()
        assert orphan.path not in house.files()
        assert "orphan" in report.removed[0].reason

    def test_an_upload_for_the_newest_version_is_left_alone_however_old(self) -> None:
        house = House()
        writer = house.process()
        target = writer.target()
        file = writer.upload(target, {0: 1})
        house.sleep(100 * DAY)
        house.vacuum()
        writer.commit([file], target)
        house.assert_promises()
        assert file.path in house.files()

    def test_indexes_go_with_their_segment(self) -> None:
        house = House()
        house.append(2)
        first = house.rewrite(sealed=True)
        second = house.rewrite(sealed=True)
        house.append(1)
        house.sleep(DAY + 1)
        report = house.vacuum()
        assert kinds(report) == {"append file": 2, "segment": 1, "segment index": 2}
        assert {path for path in house.files() if path.startswith("sealed/")} == {
            second,
            *(second.replace(".log", suffix) for suffix in (".index", ".timeindex")),
        }
        assert first not in house.files()

    def test_what_is_not_ours_stays_and_is_counted(self) -> None:
        house = House()
        house.store.create("t/append/notes.txt", b"mine")
        house.append(2)
        house.rewrite()
        house.sleep(DAY + 1)
        assert house.vacuum().foreign == 1
        assert "append/notes.txt" in house.files()

    def test_the_delay_is_the_topics_own(self) -> None:
        house = House(configs={"file.delete.delay.ms": 3 * DAY})
        house.append(2)
        house.rewrite()
        house.sleep(2 * DAY)
        assert house.vacuum().removed == ()
        house.sleep(DAY + 1)
        assert house.vacuum().objects == 2

    def test_an_idle_topic_gets_no_commits(self) -> None:
        house = House()
        house.append(2)
        house.rewrite()
        versions = []
        for _ in range(6):
            house.sleep(DAY + 1)
            house.vacuum()
            versions.append(house.log.state.version)
        assert len(set(versions)) == 1, "one upload floor for one deletion, none for nothing"

    def test_a_dry_run_says_what_a_run_does_and_changes_nothing(self) -> None:
        house = House()
        house.append(9)
        house.rewrite()
        house.hold("old", 1, house.now_ms + HOUR)
        house.sleep(20 * DAY)
        house.append(9)
        house.sleep(2 * DAY)
        before = house.store.snapshot()
        told = house.vacuum(dry_run=True)
        assert house.store.snapshot() == before
        done = house.vacuum()
        assert (told.removed, told.floor, told.ended_holds) == (done.removed, done.floor, done.ended_holds)
        assert told.objects > 9


class TestWriters:
    """The upload floor against writers that take longer than the delay."""

    def test_a_slow_writer_is_told_to_upload_again(self) -> None:
        house = House()
        writer = house.process()
        target = writer.target()
        file = writer.upload(target, {0: 5})
        house.append(2)
        house.sleep(DAY + 1)
        house.vacuum()
        assert file.path not in house.files()
        with pytest.raises(Conflict, match="upload it again"):
            writer.commit([file], target)
        assert file.path not in house.log.file_versions
        writer.append({0: 5})
        house.assert_promises()

    def test_a_slow_writer_at_every_moment_of_the_vacuum(self) -> None:
        """Whatever it is between: its commit is refused, or its file is there."""
        outcomes = set()
        for number in range(200):
            house = House()
            writer = house.process()
            target = writer.target()
            file = writer.upload(target, {0: 5})
            house.append(2)
            house.rewrite()
            house.sleep(DAY + 1)

            def commit(writer=writer, file=file, target=target) -> None:  # type: ignore[no-untyped-def]
                try:
                    writer.commit([file], target)
                    outcomes.add("committed")
                except Conflict:
                    outcomes.add("refused")

            cleaner = house.process()
            struck = meanwhile(cleaner, number, commit)
            house.vacuum(cleaner)
            house.assert_promises()
            if not struck:
                break
            assert (file.path in house.log.file_versions) == (file.path in house.files())
        assert not struck, "the vacuum makes more requests than were tried"
        assert outcomes == {"committed", "refused"}

    def test_a_writer_that_stalls_in_its_create(self) -> None:
        house = House()
        writer = house.process()
        target = writer.target()
        file = writer.upload(target, {0: 5})

        def away() -> None:
            house.append(1)
            house.sleep(2 * DAY)
            house.vacuum()

        writer.at("create:commit", away)
        with pytest.raises(Conflict, match="upload it again"):
            writer.commit([file], target)
        house.assert_promises()
        assert file.path not in house.log.file_versions

    @pytest.mark.parametrize("skew", [-2 * DAY, 2 * DAY, 400 * DAY])
    def test_a_wrong_clock_loses_nothing(self, skew: int) -> None:
        """A vacuum may think it is next year: uploads are asked for again, records stay."""
        house = House()
        writer = house.process()
        target = writer.target()
        file = writer.upload(target, {0: 5})
        house.append(5)
        house.rewrite()
        house.sleep(MINUTE)
        topic = house.process().topic()
        vacuum(topic, Settings(house.now_ms + skew))
        if skew > 0:
            with pytest.raises(Conflict, match="upload it again"):
                writer.commit([file], target)
        else:
            writer.commit([file], target)
        house.assert_promises(delay_ms=0)
        assert house.commits() == list(range(house.log.state.version + 1)), "commits go by the store's clock alone"


class TestHolds:
    def test_what_a_held_version_names_stays_until_it_is_let_go(self) -> None:
        house = House()
        old = house.append(3)
        house.hold("backup", 3)
        house.rewrite()
        house.sleep(DAY + 1)
        report = house.vacuum()
        assert set(old) < house.files()
        assert report.held == 3
        house.assert_promises(held={"backup": 3})
        house.hold("backup", None)
        house.sleep(DAY + 1)
        house.vacuum()
        assert not set(old) & house.files()

    def test_a_hold_that_ran_out_is_let_go_by_a_commit(self) -> None:
        house = House()
        old = house.append(3)
        house.hold("scan", 3, house.now_ms + 2 * DAY)
        house.rewrite()
        house.sleep(DAY + HOUR)
        assert house.vacuum().ended_holds == ()
        assert set(old) < house.files()
        house.sleep(DAY)
        assert house.vacuum().ended_holds == ("scan",)
        assert not set(old) & house.files()
        assert not house.process().topic().head().holds

    def test_a_clock_given_by_a_user_ends_no_hold(self) -> None:
        house = House()
        old = house.append(3)
        house.hold("scan", 3, house.now_ms + 2 * DAY)
        house.rewrite()
        vacuum(house.process().topic(), Settings(house.now_ms + 100 * DAY))
        assert set(old) < house.files()

    def test_a_hold_renewed_while_the_vacuum_looks_stays(self) -> None:
        house = House()
        old = house.append(3)
        house.hold("scan", 3, house.now_ms + HOUR)
        house.rewrite()
        house.sleep(2 * DAY)
        cleaner = house.process()
        cleaner.topic()
        cleaner.at("create:commit", lambda: house.hold("scan", 3, house.now_ms + DAY))
        house.vacuum(cleaner)
        assert house.process().topic().head().holds["scan"].expires_ms == house.now_ms + DAY
        assert set(old) < house.files()
        house.assert_promises(held={"scan": 3})

    def test_a_hold_taken_at_every_moment_of_the_vacuum(self) -> None:
        outcomes = set()
        for number in range(200):
            house = House()
            old = house.append(3)
            house.rewrite()
            house.sleep(DAY + 1)

            def take(house: House = house) -> None:
                try:
                    house.hold("clone", 3)
                    outcomes.add("held")
                except Conflict:
                    outcomes.add("refused")

            cleaner = house.process()
            struck = meanwhile(cleaner, number, take)
            house.vacuum(cleaner)
            holds = {name: hold.version for name, hold in house.process().topic().head().holds.items()}
            house.assert_promises(held=holds)
            assert bool(holds) == (set(old) < house.files())
            if not struck:
                break
        assert not struck
        assert outcomes == {"held", "refused"}

    @pytest.mark.parametrize("version", [5, 6, 7])
    def test_a_held_version_stays_rebuildable_when_its_commits_would_go(self, version: int) -> None:
        house = House()
        house.append(10)
        house.hold("backup", version)
        house.rewrite()
        for _ in range(4):
            house.sleep(6 * DAY)
            house.append(6)
            house.vacuum()
        history = History(house.store, "t")
        assert len(history.commits) < house.log.state.version, "no commit went: this tests nothing"
        held = history.at(version)
        assert [(s.base, s.end) for s in house.log.states[version].slices] == list(
            zip(held.slices.all().base.tolist(), held.slices.all().end.tolist(), strict=True)
        )
        house.assert_promises(held={"backup": version})

    def test_a_hold_that_cannot_be_rebuilt_stops_the_deletion(self) -> None:
        house = House()
        old = house.append(6)
        house.hold("backup", 2)
        house.rewrite()
        house.sleep(DAY + 1)
        house.store.delete("t/_log/00000000000000000001.json")
        with pytest.raises(NotFound, match="cannot be rebuilt"):
            house.vacuum()
        assert set(old) < house.files()


class TestOtherTopics:
    def test_a_clones_files_outlive_their_topic_while_it_holds_them(self) -> None:
        house = House()
        old = house.append(3)
        house.hold("clone of t", 3)
        other = house.process()
        # The model knows no files of other topics.
        house.model.created = lambda key, data: None  # type: ignore[method-assign]
        clone = other.root.create_topic("c", partitions=2)
        rows = other.topic().snapshot().slices.select(0)
        target = clone.append_target()
        file = replace(other.upload(target, {0: 6}), path=f"/t/{rows.path(0)}")
        clone.commit_append([file], target)
        other.topic().delete()
        house.sleep(30 * DAY)
        house.vacuum()
        assert set(old) == house.files()
        house.vacuum(topic="c")
        house.sleep(30 * DAY)
        house.vacuum(topic="c")
        assert set(old) == house.files()
        assert house.process().topic("c").snapshot().slices.paths() == {file.path}

    def test_a_deleted_topic_loses_its_data_after_the_delay_it_had(self) -> None:
        house = House(configs={"file.delete.delay.ms": 3 * DAY})
        house.append(3)
        house.rewrite()
        house.process().topic().delete()
        house.sleep(2 * DAY)
        house.vacuum()
        assert len(house.files()) == 4
        house.sleep(DAY + 1)
        report = house.vacuum()
        assert house.files() == set()
        assert {item.reason for item in report.removed} == {"its topic was deleted"}
        house.sleep(DAY)
        version = house.log.state.version
        house.vacuum()
        assert house.log.state.version == version

    def test_a_topic_created_again_keeps_its_own_files(self) -> None:
        house = House()
        old = house.append(3)
        someone = house.process()
        someone.topic().delete()
        house.sleep(HOUR)
        someone.root.create_topic("t", partitions=2)
        new = house.append(2)
        house.sleep(DAY - HOUR - MINUTE)
        house.vacuum()
        assert set(old) < house.files(), "readers of the old topic still have a minute"
        house.sleep(DAY)
        house.append(1)
        report = house.vacuum()
        assert not set(old) & house.files()
        assert set(new) < house.files()
        assert {item.reason for item in report.removed} == {"its topic was deleted"}
        house.assert_promises()

    def test_a_writer_of_the_topic_that_was_deleted_gets_nowhere(self) -> None:
        house = House()
        house.append(1)
        writer = house.process()
        target = writer.target()
        file = writer.upload(target, {0: 1})
        other = house.process()
        other.topic().delete()
        other.root.create_topic("t", partitions=2)
        house.sleep(2 * DAY)
        house.vacuum()
        with pytest.raises(Conflict):
            writer.commit([file], target)
        house.assert_promises()


class TestRegistry:
    def test_writers_idle_for_90_days_are_forgotten(self) -> None:
        house = House()
        driver = house.process()
        driver.append({0: 1}, driver.target(), WriterKey("old", 3))
        driver.append({0: 1}, driver.target(), WriterKey("alive", 3, "run-1"))
        house.sleep(IDLE_MS - DAY)
        # A replay by a new run writes no batch, but it is a sign of life.
        driver.append({0: 1}, driver.target(), WriterKey("alive", 3, "run-2"))
        house.sleep(DAY)
        assert house.vacuum().idle_writers == ()
        house.sleep(1)
        assert house.vacuum().idle_writers == ("old",)
        assert set(house.process().topic().head().registry) == {"alive"}

    def test_a_writer_that_comes_back_while_the_vacuum_looks_stays(self) -> None:
        house = House()
        driver = house.process()
        driver.append({0: 1}, driver.target(), WriterKey("q", 3, "run-1"))
        house.sleep(IDLE_MS + DAY)
        cleaner = house.process()
        target = driver.target()
        cleaner.at(
            "create:commit", lambda: driver.commit([driver.upload(target, {0: 1})], target, WriterKey("q", 3, "run-2"))
        )
        house.vacuum(cleaner)
        assert set(house.process().topic().head().registry) == {"q"}

    def test_a_clock_given_by_a_user_forgets_nobody(self) -> None:
        house = House()
        driver = house.process()
        driver.append({0: 1}, driver.target(), WriterKey("q", 3))
        report = vacuum(house.process().topic(), Settings(house.now_ms + 2 * IDLE_MS))
        assert report.idle_writers == ()
        assert house.process().topic().head().registry


def test_the_budget_of_a_vacuum_that_finds_nothing() -> None:
    house = House()
    house.append(30)
    house.sleep(HOUR)
    cleaner = house.process()
    cleaner.topic()
    assert requests(cleaner, lambda: house.vacuum(cleaner)) < 30
