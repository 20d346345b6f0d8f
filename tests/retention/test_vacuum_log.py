"""The vacuum and the log itself: commits and checkpoints that go, crashes at every step, vacuums at once."""

from __future__ import annotations

import pytest

from sparklog.errors import Conflict, Corrupt, Unavailable
from sparklog.log.state.history import History
from sparklog.maintenance.work import Settings
from sparklog.retention.vacuum import vacuum
from sparklog.storage.faulty import Call, Crash, Fault, FaultKind
from tests.retention.house import DAY, HOUR, MINUTE, House, meanwhile, requests

WEEK = 7 * DAY


def busy(house: House, days: int, per_day: int = 6, *, vacuum: bool = True) -> None:
    """Days of appends, a rewrite and a vacuum each."""
    for _ in range(days):
        for _ in range(per_day):
            house.append(1)
            house.sleep(DAY // per_day)
        house.rewrite()
        if vacuum:
            house.vacuum()


class TestCommits:
    def test_commits_go_after_a_week_and_what_is_left_opens(self) -> None:
        house = House()
        busy(house, 6)
        assert house.commits() == list(range(house.log.state.version + 1))
        busy(house, 10)
        left = house.commits()
        assert left[0] > 0
        assert left == list(range(left[0], house.log.state.version + 1))
        young = [info for info in house.store.list("t/_log/0") if info.modified_ms > house.now_ms - WEEK]
        assert len(left) >= len(young)
        assert len(left) < 2 * len(young), "commits pile up"
        house.assert_promises()

    def test_every_version_of_the_last_week_can_be_rebuilt(self) -> None:
        house = House()
        busy(house, 16, per_day=5)
        for _ in range(5):
            house.append(1)
            house.sleep(5 * HOUR)
            house.vacuum()
            history = History(house.store, "t")
            states = house.log.states
            first = next(i for i, state in enumerate(states) if state.time_ms >= house.now_ms - WEEK)
            assert first > 20
            assert house.commits()[0] > 0
            for version in range(first, house.log.state.version + 1):
                found = history.at(version).slices.all()
                model = [(s.partition, s.base, s.end) for s in states[version].slices]
                assert (
                    list(zip(*(found.columns[n].tolist() for n in ("partition", "base", "end")), strict=True)) == model
                )

    def test_a_longer_delay_keeps_commits_twice_as_long(self) -> None:
        house = House(configs={"file.delete.delay.ms": 6 * DAY})
        busy(house, 11)
        assert house.commits()[0] == 0
        busy(house, 5)
        assert house.commits()[0] > 0
        house.assert_promises(6 * DAY)

    def test_a_clock_given_by_a_user_takes_no_commits(self) -> None:
        house = House()
        busy(house, 3)
        vacuum(house.process().topic(), Settings(house.now_ms + 100 * DAY))
        assert house.commits() == list(range(house.log.state.version + 1))
        assert house.checkpoints()[0] == 3

    def test_a_clock_that_is_behind_takes_no_commit_above_its_floor(self) -> None:
        """Whoever holds a version that is not below the floor finds it rebuildable."""
        house = House()
        house.append(6)
        house.sleep(30 * DAY)
        house.append(20)
        house.sleep(10 * DAY)
        vacuum(house.process().topic(), Settings(house.now_ms - 20 * DAY))
        floor = house.process().topic().head().floor
        assert house.commits()[0] == 3 <= floor == 6
        house.hold("late", floor)
        assert History(house.store, "t").at(floor).version == floor
        house.assert_promises(held={"late": floor})

    def test_commits_go_only_below_the_second_newest_sound_checkpoint(self) -> None:
        house = House()
        house.append(10)
        house.sleep(30 * DAY)
        assert house.checkpoints() == [3, 7]
        house.vacuum()
        assert house.commits() == list(range(3, house.log.state.version + 1))
        house.assert_promises()

    @pytest.mark.parametrize("part", ["json", "arrow"])
    @pytest.mark.parametrize("which", [-1, -2])
    def test_a_damaged_checkpoint_costs_the_one_before(self, which: int, part: str) -> None:
        house = House()
        house.append(18)
        house.sleep(30 * DAY)
        assert house.checkpoints() == [3, 7, 11, 15]
        damage(house, house.checkpoints()[which], part)
        house.vacuum()
        assert house.commits()[0] == 7, "two sound checkpoints stay above what goes"
        house.assert_promises()

    def test_with_one_sound_checkpoint_nothing_goes(self) -> None:
        house = House()
        house.append(10)
        house.sleep(30 * DAY)
        damage(house, 7, "arrow")
        house.vacuum()
        assert house.commits()[0] == 0
        assert house.checkpoints()[0] == 3
        house.assert_promises()

    def test_a_checkpoint_off_the_chain_does_not_count(self) -> None:
        """One whose commit is another than the one that lies there."""
        house, elsewhere = House(), House()
        elsewhere.sleep(MINUTE)
        for place in (house, elsewhere):
            place.append(18)
        for info in list(elsewhere.store.list(f"t/_log/checkpoints/{11:020d}")):
            if not house.store.create(info.key, elsewhere.store.get(info.key)):
                house.store.replace(info.key, elsewhere.store.get(info.key))
        assert History(house.store, "t").sound(11) is None
        assert History(elsewhere.store, "t").sound(11) is not None
        house.sleep(30 * DAY)
        house.vacuum()
        assert house.commits()[0] == 7
        house.assert_promises()

    def test_what_a_sleeper_put_under_a_collected_number_misleads_nobody(self) -> None:
        house = House()
        sleeper = house.process()
        target = sleeper.target()
        file = sleeper.upload(target, {0: 1})

        def away() -> None:
            busy(house, 12)

        sleeper.at("create:commit", away)
        with pytest.raises(Unavailable, match="outcome is unknown"):
            sleeper.commit([file], target)
        assert house.log.zombies
        assert house.commits()[0] == 1
        assert house.commits()[1] > 2
        floor = house.process().topic().head().floor
        busy(house, 2)
        assert house.process().topic().head().floor > floor, "the zombie holds up the floor"
        house.assert_promises()
        busy(house, 8)
        assert house.commits()[0] > 2, "the zombie stays for ever"
        house.assert_promises()

    def test_a_hold_below_what_was_collected_is_refused(self) -> None:
        house = House()
        house.append(10)
        house.sleep(30 * DAY)
        house.vacuum()
        assert house.commits()[0] == 3
        with pytest.raises(Conflict, match="below the upload floor"):
            house.hold("late", 2)


class TestCheckpoints:
    def test_one_an_hour_stays_of_those_older_than_an_hour(self) -> None:
        house = House()
        for _ in range(120):
            house.append(1)
            house.sleep(2 * MINUTE)
        made = {v: house.log.states[v].time_ms for v in house.checkpoints()}
        house.vacuum()
        left = house.checkpoints()
        first = {min(v for v in made if made[v] // HOUR == hour) for hour in {time // HOUR for time in made.values()}}
        young = {v for v, time in made.items() if time >= house.now_ms - HOUR}
        assert set(left) == first | young
        assert len(left) < len(made) - 10
        assert len([i for i in house.store.list("t/_log/checkpoints/") if i.key.endswith(".arrow")]) == len(left)
        house.assert_promises()

    def test_tables_without_a_head_go(self) -> None:
        house = House()
        house.append(10)
        orphan = "t/_log/checkpoints/00000000000000000005-lost.arrow"
        rival = "t/_log/checkpoints/00000000000000000003-rival.arrow"
        house.store.create(orphan, b"table")
        house.store.create(rival, b"table")
        house.vacuum()
        assert house.store.stat(orphan) is not None, "its writer may be about to write the head"
        house.sleep(HOUR + 1)
        house.vacuum()
        assert house.store.stat(orphan) is None
        assert house.store.stat(rival) is None
        house.assert_promises()
        assert History(house.store, "t").sound(3) is not None

    def test_a_checkpoint_writer_that_stalls_between_table_and_head(self) -> None:
        """The vacuum must not take the table of what becomes the newest checkpoint."""
        house = House()
        house.append(10)
        writer = house.process()
        target = writer.target()
        file = writer.upload(target, {0: 1})

        def away() -> None:
            house.sleep(3 * DAY)
            house.vacuum()

        writer.at("create:checkpoint", away, skip=1)
        writer.commit([file], target)
        assert house.checkpoints()[-1] == 11
        assert History(house.store, "t").sound(11) is not None
        house.assert_promises()

    def test_the_newest_checkpoints_of_a_deleted_topic_stay(self) -> None:
        house = House()
        house.append(8)
        house.process().topic().delete()
        for _ in range(4):
            house.sleep(30 * DAY)
            house.vacuum()
        assert len(house.checkpoints()) >= 2
        assert house.files() == set()
        version = house.log.state.version
        house.process().root.create_topic("t", partitions=2)
        assert house.log.state.version == version + 1
        house.assert_promises()


def damage(house: House, version: int, part: str) -> None:
    keys = [i.key for i in house.store.list(f"t/_log/checkpoints/{version:020d}") if i.key.endswith(part)]
    data = house.store.get(keys[0])
    house.store.replace(keys[0], data[:-9] + b"!" + data[-8:])


def lived() -> House:
    """A topic with something of every kind to delete."""
    house = House()
    house.append(5)
    house.rewrite(sealed=True)
    house.append(1)
    house.hold("old", 5, house.now_ms + DAY)
    house.rewrite(sealed=True)
    house.sleep(15 * DAY)
    writer = house.process()
    writer.upload(writer.target(), {0: 1})
    house.append(3)
    house.sleep(2 * DAY)
    return house


@pytest.mark.sweep
@pytest.mark.parametrize("kind", [FaultKind.CRASH_BEFORE, FaultKind.CRASH_AFTER])
def test_a_crash_at_every_request_and_a_run_after_it(kind: FaultKind) -> None:
    whole = lived()
    count = requests(cleaner := whole.process(), lambda: whole.vacuum(cleaner))
    report = whole.vacuum()
    assert report.objects == 0
    expected = whole.files(), whole.commits(), whole.checkpoints()
    crashed = 0
    for number in range(count):
        house = lived()
        crashed += crash_at(house, number, kind)
        house.assert_promises()
        house.vacuum()
        house.assert_promises()
        files, commits, checkpoints = expected
        assert house.files() == files
        # The run after the crash may find one commit more: the floor that the dead one committed.
        assert set(house.commits()) - set(commits) <= {house.log.state.version}
        assert set(house.checkpoints()) >= set(checkpoints)
    assert crashed > 40


def crash_at(house: House, number: int, kind: FaultKind) -> bool:
    cleaner = house.process()
    first: list[int] = []

    def decide(call: Call) -> Fault | None:
        first.append(call.number)
        return Fault(kind) if call.number - first[0] == number else None

    cleaner.store.decide = decide
    try:
        house.vacuum(cleaner)
    except Crash:
        return True
    # A request that finds nothing has no effect to die after.
    return False


def test_a_store_that_fails_at_every_request() -> None:
    """A failure ends the run, or is reported; nothing that is needed goes, and the next run does the rest."""
    whole = lived()
    count = requests(cleaner := whole.process(), lambda: whole.vacuum(cleaner))
    for number in range(0, count, 3):
        house = lived()
        cleaner = house.process()
        first: list[int] = []

        def decide(call: Call, first: list[int] = first, number: int = number) -> Fault | None:
            first.append(call.number)
            return Fault(FaultKind.ERROR_BEFORE) if call.number - first[0] >= number else None

        cleaner.store.decide = decide
        try:
            report = house.vacuum(cleaner)
        except Unavailable:
            pass
        else:
            assert report.failures
        house.assert_promises()
        house.vacuum()
        assert house.files() == whole.files()
        house.assert_promises()


@pytest.mark.sweep
def test_two_vacuums_at_once() -> None:
    whole = lived()
    whole.vacuum()
    struck = [0]
    for number in range(200):
        house = lived()
        first, second = house.process(), house.process()
        struck = meanwhile(first, number, lambda house=house, second=second: house.vacuum(second))  # type: ignore[misc]
        house.vacuum(first)
        house.assert_promises()
        assert house.files() == whole.files()
        if not struck:
            break
    assert not struck


@pytest.mark.sweep
def test_who_finds_a_head_finds_its_table_at_every_moment() -> None:
    torn: list[int] = []

    def look(house: House) -> None:
        history = History(house.store, "t")
        torn.extend(version for version in house.checkpoints() if history.sound(version) is None)

    for number in range(200):
        house = lived()
        assert house.checkpoints()[0] == 3
        cleaner = house.process()
        struck = meanwhile(cleaner, number, lambda house=house: look(house))  # type: ignore[misc]
        house.vacuum(cleaner)
        assert house.checkpoints()[0] > 3
        if not struck:
            break
    assert not struck
    assert torn == []


def test_a_log_that_is_not_what_this_process_saw_is_not_touched() -> None:
    """A root restored from a backup under a running process: its versions are others now."""
    house, elsewhere = House(), House()
    elsewhere.sleep(MINUTE)
    for place in (house, elsewhere):
        place.append(2)
    cleaner = house.process()
    assert cleaner.topic().head().version == 2
    house.store.restore(elsewhere.store.snapshot())
    house.store.create(f"t/append/{0:020d}-orphan.slices", b"orphan")
    before = house.files()
    house.sleep(HOUR // 2)
    with pytest.raises(Corrupt, match="is not what its checkpoints and commits lead to"):
        vacuum(cleaner.root.topic_handle("t"), Settings(house.now_ms + 2 * DAY))
    assert house.files() == before


def test_a_reader_of_an_old_snapshot_at_every_moment() -> None:
    """Planned within the delay: no file is missed, whatever the vacuum is at."""
    for number in range(200):
        house = House()
        house.append(4)
        house.rewrite()
        house.sleep(10 * DAY)
        house.append(4)
        reader = house.process().topic().snapshot()
        house.rewrite()
        house.sleep(DAY - MINUTE)
        missed: list[str] = []

        def read(house: House = house, reader: object = reader, missed: list[str] = missed) -> None:
            paths = reader.slices.paths()  # type: ignore[attr-defined]
            missed += [path for path in paths if house.store.stat(f"t/{path}") is None]

        cleaner = house.process()
        struck = meanwhile(cleaner, number, read)
        report = house.vacuum(cleaner)
        read()
        assert missed == []
        assert report.objects
        if not struck:
            break
    assert not struck
