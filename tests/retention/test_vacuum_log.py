"""The vacuum of a log: deleted commits and checkpoints, crashes at each step, and concurrent vacuums."""

from __future__ import annotations

import pytest

from sparklog.errors import Conflict, Corrupt, Unavailable
from sparklog.log.journal.names import commit_key
from sparklog.log.state.history import History
from sparklog.log.topic.root import topic_of
from sparklog.maintenance.work_items import Settings
from sparklog.retention.retain import retain_root
from sparklog.retention.vacuum import vacuum
from sparklog.testing.faulty_store import Call, Crash, Fault, FaultKind
from sparklog.testing.world import DAY_MS, HOUR_MS, MINUTE_MS
from tests.retention.vacuum_world import VacuumWorld, meanwhile, requests
from tests.support.built_once import built_once
from tests.support.seeds import thinned

WEEK = 7 * DAY_MS


def busy(world: VacuumWorld, days: int, per_day: int = 6, *, vacuum: bool = True) -> None:
    """Run days of appends, each with a rewrite and a vacuum."""
    for _ in range(days):
        for _ in range(per_day):
            world.append(1)
            world.advance(DAY_MS // per_day)
        world.rewrite()
        if vacuum:
            world.vacuum()


class TestCommits:
    def test_commits_are_deleted_after_a_week_and_the_log_can_be_opened(self) -> None:
        world = VacuumWorld()
        busy(world, 6)
        assert world.commits() == list(range(world.log.state.version + 1))
        busy(world, 10)
        left = world.commits()
        assert left[0] > 0
        assert left == list(range(left[0], world.log.state.version + 1))
        young = [info for info in world.store.list("t/_log/0") if info.modified_ms > world.now_ms - WEEK]
        assert len(left) >= len(young)
        assert len(left) < 2 * len(young), "commits pile up"
        world.assert_promises()

    def test_all_versions_of_the_last_week_can_be_rebuilt(self) -> None:
        world = VacuumWorld()
        busy(world, 16, per_day=5)
        for _ in range(5):
            world.append(1)
            world.advance(5 * HOUR_MS)
            world.vacuum()
            history = History(world.store, "t")
            states = world.log.states
            first = next(i for i, state in enumerate(states) if state.time_ms >= world.now_ms - WEEK)
            assert first > 20
            assert world.commits()[0] > 0
            for version in range(first, world.log.state.version + 1):
                found = history.at(version).slices.all()
                model = [(s.partition, s.base, s.end) for s in states[version].slices]
                assert (
                    list(zip(*(found.columns[n].tolist() for n in ("partition", "base", "end")), strict=True)) == model
                )

    def test_commits_are_kept_for_twice_the_delete_delay(self) -> None:
        world = VacuumWorld(configs={"file.delete.delay.ms": 6 * DAY_MS})
        busy(world, 11)
        assert world.commits()[0] == 0
        busy(world, 5)
        assert world.commits()[0] > 0
        world.assert_promises(6 * DAY_MS)

    def test_user_clock_does_not_delete_commits(self) -> None:
        world = VacuumWorld()
        busy(world, 3)
        vacuum(world.process().topic(), Settings(world.now_ms + 100 * DAY_MS))
        assert world.commits() == list(range(world.log.state.version + 1))
        assert world.checkpoints()[0] == 3

    def test_slow_clock_does_not_delete_commits_above_its_floor(self) -> None:
        """A leased version that is not below the floor can be rebuilt."""
        world = VacuumWorld()
        world.append(6)
        world.advance(30 * DAY_MS)
        world.append(20)
        world.advance(10 * DAY_MS)
        vacuum(world.process().topic(), Settings(world.now_ms - 20 * DAY_MS))
        floor = world.process().topic().log.state().floor
        assert world.commits()[0] == 3 <= floor == 6
        world.hold("late", floor)
        assert History(world.store, "t").at(floor).version == floor
        world.assert_promises(held={"late": floor})

    def test_commits_are_only_deleted_below_the_second_latest_valid_checkpoint(self) -> None:
        world = VacuumWorld()
        world.append(10)
        world.advance(30 * DAY_MS)
        assert world.checkpoints() == [3, 7]
        world.vacuum()
        assert world.commits() == list(range(3, world.log.state.version + 1))
        world.assert_promises()

    @pytest.mark.parametrize("part", ["json", "arrow"])
    @pytest.mark.parametrize("which", [-1, -2])
    def test_damaged_checkpoint_moves_the_anchor_back(self, which: int, part: str) -> None:
        world = VacuumWorld()
        world.append(18)
        world.advance(30 * DAY_MS)
        assert world.checkpoints() == [3, 7, 11, 15]
        damage(world, world.checkpoints()[which], part)
        world.vacuum()
        assert world.commits()[0] == 7, "two sound checkpoints stay above what goes"
        world.assert_promises()

    def test_nothing_is_deleted_with_one_valid_checkpoint(self) -> None:
        world = VacuumWorld()
        world.append(10)
        world.advance(30 * DAY_MS)
        damage(world, 7, "arrow")
        world.vacuum()
        assert world.commits()[0] == 0
        assert world.checkpoints()[0] == 3
        world.assert_promises()

    def test_checkpoint_with_another_crc_is_ignored(self) -> None:
        """The checkpoint belongs to another commit than the stored one."""
        world, elsewhere = VacuumWorld(), VacuumWorld()
        elsewhere.sleep(MINUTE_MS)
        for place in (world, elsewhere):
            place.append(18)
        for info in list(elsewhere.store.list(f"t/_log/checkpoints/{11:020d}")):
            if not world.store.create(info.key, elsewhere.store.get(info.key)):
                world.store.replace(info.key, elsewhere.store.get(info.key))
        assert History(world.store, "t").checkpoint(11) is None
        assert History(elsewhere.store, "t").checkpoint(11) is not None
        world.advance(30 * DAY_MS)
        world.vacuum()
        assert world.commits()[0] == 7
        world.assert_promises()

    def test_commit_of_a_stalled_writer_with_a_deleted_number_is_ignored(self) -> None:
        world = VacuumWorld()
        sleeper = world.process()
        target = sleeper.target()
        file = sleeper.upload(target, {0: 1})

        def away() -> None:
            busy(world, 12)

        sleeper.at("create:commit", away)
        with pytest.raises(Unavailable, match="outcome is unknown"):
            sleeper.commit([file], target)
        assert world.log.zombies
        assert world.commits()[0] == 1
        assert world.commits()[1] > 2
        floor = world.process().topic().log.state().floor
        busy(world, 2)
        assert world.process().topic().log.state().floor > floor, "the zombie holds up the floor"
        world.assert_promises()
        busy(world, 8)
        assert world.commits()[0] > 2, "the zombie stays for ever"
        world.assert_promises()

    def test_lease_below_the_deleted_commits_is_rejected(self) -> None:
        world = VacuumWorld()
        world.append(10)
        world.advance(30 * DAY_MS)
        world.vacuum()
        assert world.commits()[0] == 3
        with pytest.raises(Conflict, match="below the retention floor"):
            world.hold("late", 2)


class TestCheckpoints:
    def test_one_checkpoint_per_hour_is_kept(self) -> None:
        world = VacuumWorld()
        for _ in range(120):
            world.append(1)
            world.advance(2 * MINUTE_MS)
        made = {v: world.log.states[v].time_ms for v in world.checkpoints()}
        world.vacuum()
        left = world.checkpoints()
        first = {
            min(v for v in made if made[v] // HOUR_MS == hour) for hour in {time // HOUR_MS for time in made.values()}
        }
        young = {v for v, time in made.items() if time >= world.now_ms - HOUR_MS}
        assert set(left) == first | young
        assert len(left) < len(made) - 10
        assert len([i for i in world.store.list("t/_log/checkpoints/") if i.key.endswith(".arrow")]) == len(left)
        world.assert_promises()

    def test_tables_without_a_document_are_deleted(self) -> None:
        world = VacuumWorld()
        world.append(10)
        orphan = "t/_log/checkpoints/00000000000000000005-lost.arrow"
        rival = "t/_log/checkpoints/00000000000000000003-rival.arrow"
        world.store.create(orphan, b"table")
        world.store.create(rival, b"table")
        world.vacuum()
        assert world.store.stat(orphan) is not None, "its writer may be about to write the head"
        world.advance(HOUR_MS + 1)
        world.vacuum()
        assert world.store.stat(orphan) is None
        assert world.store.stat(rival) is None
        world.assert_promises()
        assert History(world.store, "t").checkpoint(3) is not None

    def test_checkpoint_writer_that_stalls_between_table_and_document(self) -> None:
        """The vacuum must not delete the table of a checkpoint whose document is written later."""
        world = VacuumWorld()
        world.append(10)
        writer = world.process()
        target = writer.target()
        file = writer.upload(target, {0: 1})

        def away() -> None:
            world.advance(3 * DAY_MS)
            world.vacuum()

        writer.at("create:checkpoint", away, skip=1)
        writer.commit([file], target)
        assert world.checkpoints()[-1] == 11
        assert History(world.store, "t").checkpoint(11) is not None
        world.assert_promises()

    def test_latest_checkpoints_of_a_deleted_topic_are_kept(self) -> None:
        world = VacuumWorld()
        world.append(8)
        world.process().topic().delete()
        for _ in range(4):
            world.advance(30 * DAY_MS)
            world.vacuum()
        assert len(world.checkpoints()) >= 2
        assert world.files() == set()
        version = world.log.state.version
        world.process().root.create_topic("t", partitions=2)
        assert world.log.state.version == version + 1
        world.assert_promises()


def damage(world: VacuumWorld, version: int, part: str) -> None:
    keys = [i.key for i in world.store.list(f"t/_log/checkpoints/{version:020d}") if i.key.endswith(part)]
    data = world.store.get(keys[0])
    world.store.replace(keys[0], data[:-9] + b"!" + data[-8:])


@built_once
def lived() -> VacuumWorld:
    """Return a topic with deletable files of all kinds."""
    world = VacuumWorld()
    world.append(5)
    world.rewrite(sealed=True)
    world.append(1)
    world.hold("old", 5, world.now_ms + DAY_MS)
    world.rewrite(sealed=True)
    world.advance(15 * DAY_MS)
    writer = world.process()
    writer.upload(writer.target(), {0: 1})
    world.append(3)
    world.advance(2 * DAY_MS)
    return world


@pytest.mark.sweep
@pytest.mark.parametrize("step", thinned(3))
@pytest.mark.parametrize("kind", [FaultKind.CRASH_BEFORE, pytest.param(FaultKind.CRASH_AFTER, marks=pytest.mark.slow)])
def test_vacuum_after_a_crash_at_every_request(kind: FaultKind, step: int) -> None:
    whole = lived()
    count = requests(cleaner := whole.process(), lambda: whole.vacuum(cleaner))
    report = whole.vacuum()
    assert report.objects == 0
    expected = whole.files(), whole.commits(), whole.checkpoints()
    crashed = 0
    for number in range(0, count, step):
        world = lived()
        crashed += crash_at(world, number, kind)
        world.assert_promises()
        world.vacuum()
        world.assert_promises()
        files, commits, checkpoints = expected
        assert world.files() == files
        # The next run may find one more commit: the floor of the crashed run.
        assert set(world.commits()) - set(commits) <= {world.log.state.version}
        assert set(world.checkpoints()) >= set(checkpoints)
    assert crashed > 40 // step


def crash_at(world: VacuumWorld, number: int, kind: FaultKind) -> bool:
    cleaner = world.process()
    first: list[int] = []

    def decide(call: Call) -> Fault | None:
        first.append(call.number)
        return Fault(kind) if call.number - first[0] == number else None

    cleaner.store.decide = decide
    try:
        world.vacuum(cleaner)
    except Crash:
        return True
    # A request that finds nothing has no effect, so there is no crash after it.
    return False


@pytest.mark.parametrize("step", thinned(8))
def test_vacuum_with_a_failure_at_every_request(step: int) -> None:
    """A failure stops the run or is reported; no referenced file is deleted, and the next run deletes the rest."""
    whole = lived()
    count = requests(cleaner := whole.process(), lambda: whole.vacuum(cleaner))
    for number in range(0, count, step):
        world = lived()
        cleaner = world.process()
        first: list[int] = []

        def decide(call: Call, first: list[int] = first, number: int = number) -> Fault | None:
            first.append(call.number)
            return Fault(FaultKind.ERROR_BEFORE) if call.number - first[0] >= number else None

        cleaner.store.decide = decide
        try:
            report = world.vacuum(cleaner)
        except Unavailable:
            pass
        else:
            assert report.failures
        world.assert_promises()
        world.vacuum()
        assert world.files() == whole.files()
        world.assert_promises()


@pytest.mark.sweep
@pytest.mark.parametrize("step", thinned(3))
def test_two_concurrent_vacuums(step: int) -> None:
    whole = lived()
    whole.vacuum()
    struck = [0]
    for number in range(0, 200, step):
        world = lived()
        first, second = world.process(), world.process()
        struck = meanwhile(first, number, lambda world=world, second=second: world.vacuum(second))  # type: ignore[misc]
        world.vacuum(first)
        world.assert_promises()
        assert world.files() == whole.files()
        if not struck:
            break
    assert not struck


@pytest.mark.sweep
@pytest.mark.parametrize("step", thinned(3))
def test_checkpoint_document_always_has_its_table(step: int) -> None:
    torn: list[int] = []

    def look(world: VacuumWorld) -> None:
        history = History(world.store, "t")
        torn.extend(version for version in world.checkpoints() if history.checkpoint(version) is None)

    for number in range(0, 200, step):
        world = lived()
        assert world.checkpoints()[0] == 3
        cleaner = world.process()
        struck = meanwhile(cleaner, number, lambda world=world: look(world))  # type: ignore[misc]
        world.vacuum(cleaner)
        assert world.checkpoints()[0] > 3
        if not struck:
            break
    assert not struck
    assert torn == []


@pytest.mark.parametrize("deleted", [False, True])
@pytest.mark.parametrize("hidden_ms", [60_000, 10 * MINUTE_MS])
def test_vacuum_waits_for_a_commit_that_a_cache_hides(deleted: bool, hidden_ms: int) -> None:
    """A mount with a cache of missing names returns "not found" for a commit that its listing contains."""
    world = VacuumWorld(configs={"file.delete.delay.ms": 3 * DAY_MS})
    paths = world.append(3)
    world.rewrite()
    if deleted:
        world.process().root.delete_topic("t")
    cleaner = world.process()
    cleaner.root.engine.log("t").refresh()
    world.advance(4 * DAY_MS)
    until = world.now_ms + hidden_ms
    cleaner.hidden = lambda key: key == commit_key("t", 3) and world.now_ms < until
    if hidden_ms > 90_000:
        before = world.files()
        with pytest.raises(Unavailable, match=r"t/_log/.*3.json .* is listed but cannot be read: .*; try again"):
            world.vacuum(cleaner)
        assert world.files() == before
        (report,) = retain_root(cleaner.root, world.settings(), topics=["t"])
        assert [failure.code for failure in report.failures] == ["SPARKLOG_UNAVAILABLE"]
        world.advance(hidden_ms)
    world.vacuum(cleaner)
    assert not set(paths) & set(world.files())


def test_hidden_delete_does_not_shorten_the_delay() -> None:
    world = VacuumWorld(configs={"file.delete.delay.ms": 30 * DAY_MS})
    paths = world.append(2)
    world.process().root.delete_topic("t")
    cleaner = world.process()
    version = cleaner.root.engine.log("t").refresh().topic_state.version
    world.advance(4 * DAY_MS)
    until = world.now_ms + MINUTE_MS
    cleaner.hidden = lambda key: key == commit_key("t", version) and world.now_ms < until
    world.vacuum(cleaner)
    assert set(paths) <= set(world.files())


def test_vacuum_does_not_change_a_replaced_log() -> None:
    """The root is restored from a backup while a process runs, so the process knows other versions."""
    world, elsewhere = VacuumWorld(), VacuumWorld()
    elsewhere.sleep(MINUTE_MS)
    for place in (world, elsewhere):
        place.append(2)
    cleaner = world.process()
    assert cleaner.topic().log.state().version == 2
    world.store.restore(elsewhere.store.snapshot())
    world.store.create(f"t/append/{0:020d}-orphan.slices", b"orphan")
    before = world.files()
    world.advance(HOUR_MS // 2)
    with pytest.raises(Corrupt, match="differs from the replay of its checkpoints"):
        vacuum(topic_of(cleaner.root, "t"), Settings(world.now_ms + 2 * DAY_MS))
    assert world.files() == before


@pytest.mark.parametrize("step", thinned(3))
def test_reader_of_an_old_snapshot_at_every_request(step: int) -> None:
    """A reader that planned within the delay finds all files at each request of the vacuum."""
    for number in range(0, 200, step):
        world = VacuumWorld()
        world.append(4)
        world.rewrite()
        world.advance(10 * DAY_MS)
        world.append(4)
        reader = world.process().topic().log.snapshot()
        world.rewrite()
        world.advance(DAY_MS - MINUTE_MS)
        missed: list[str] = []

        def read(world: VacuumWorld = world, reader: object = reader, missed: list[str] = missed) -> None:
            paths = reader.slices.paths()  # type: ignore[attr-defined]
            missed += [path for path in paths if world.store.stat(f"t/{path}") is None]

        cleaner = world.process()
        struck = meanwhile(cleaner, number, read)
        report = world.vacuum(cleaner)
        read()
        assert missed == []
        assert report.objects
        if not struck:
            break
    assert not struck
