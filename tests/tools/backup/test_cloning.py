"""Clones: their records, the files that they share, and vacuums that keep these files."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

import pytest

from sparklog.errors import BadRequest, Conflict, Corrupt, NotFound
from sparklog.kafka.importing.run import import_log_dir
from sparklog.log.state.commit_intents import DeleteIntent, LogStartIntent
from sparklog.log.state.history import History
from sparklog.log.state.writer_runs import WriterKey
from sparklog.log.topic import cloning
from sparklog.log.topic.cloning import Cloned, clone_topic
from sparklog.log.topic.engine import RootEngine
from sparklog.log.topic.root import Root, open_root
from sparklog.retention import vacuum, vacuum_plan
from sparklog.testing.faulty_store import Call, Crash, Fault, FaultKind, FaultyStore
from sparklog.testing.world import DAY_MS, HOUR_MS
from sparklog.tools.verification.run import verify_root
from sparklog.transactions.producer import transactional
from tests.support.crash_points import crash_points
from tests.support.seeds import first_of
from tests.tools.backup.backup_world import BackupWorld, batch, contents, rows_of

LOG_DIR = Path(__file__).parents[3] / "examples" / "data" / "kafka-log-dir"
CONFIGS = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.0", "segment.bytes": "300"}


def filled(world: BackupWorld, *, configs: dict[str, str] | None = None, appends: int = 5) -> Root:
    root = world.root()
    topic = root.create_topic("a", partitions=2, configs=CONFIGS if configs is None else configs)
    for i in range(appends):
        keys = [b"k%d" % (i % 2), b"k2", b"own%d" % i]
        topic.append(batch([b"v%d-%d" % (i, j) for j in range(3)], keys=keys, partition=i % 2))
    return root


def shared(root: Root, name: str) -> set[str]:
    """Return the files of other topics that a topic references."""
    return {path for path in root.topic(name).log.snapshot().slices.paths() if path.startswith("/")}


class TestWhatItShows:
    def test_clone_has_the_records_of_the_source_and_copies_no_files(self) -> None:
        world = BackupWorld()
        root = filled(world)
        world.compact("a")
        before = {info.key for info in world.store.list("") if "/_log/" not in info.key}
        found = clone_topic(world.root(), "a", "b")
        assert {info.key for info in world.store.list("") if "/_log/" not in info.key} == before
        root = world.root()
        assert rows_of(root.topic("b")) == rows_of(root.topic("a"))
        ours, theirs = root.topic("b").log.state(), root.topic("a").log.state()
        assert ours.topic_id == found.topic_id != theirs.topic_id
        assert ours.configs.explicit == theirs.configs.explicit
        assert ours.log_end.tolist() == theirs.log_end.tolist() == list(found.log_ends)
        assert ours.first_dirty_offset.tolist() == theirs.first_dirty_offset.tolist() != [0, 0]
        assert ours.leader_epoch == theirs.leader_epoch + 1
        assert found.files == len(shared(root, "b")) > 0

    def test_source_and_clone_are_independent(self) -> None:
        world = BackupWorld()
        root = filled(world)
        clone_topic(root, "a", "b")
        was = rows_of(root.topic("a"))
        root.topic("b").append(batch([b"mine"], keys=[b"x"]))
        root.topic("a").append(batch([b"theirs"], keys=[b"x"]))
        root.topic("b").alter(configs={"segment.bytes": 1000})
        assert rows_of(root.topic("b")) == {**was, (0, 9): (b"x", b"mine", world.now_ms)}
        assert rows_of(root.topic("a")) == {**was, (0, 9): (b"x", b"theirs", world.now_ms)}
        assert root.topic("a").log.state().configs.explicit == CONFIGS

    def test_clone_as_of_a_version_and_a_time(self) -> None:
        world = BackupWorld()
        root = filled(world, appends=2)
        two = rows_of(root.topic("a"))
        time_ms, version = world.now_ms, root.topic("a").log.state().version
        world.now_ms += HOUR_MS
        root.topic("a").append(batch([b"later"], keys=[b"k0"]))
        world.compact("a")
        clone_topic(world.root(), "a", "by-version", version=version)
        clone_topic(world.root(), "a", "by-time", time_ms=time_ms)
        assert rows_of(world.topic("by-version")) == rows_of(world.topic("by-time")) == two
        assert rows_of(world.topic("a")) != two
        for wrong in ({"version": 999}, {"time_ms": 5}):
            with pytest.raises(NotFound):
                clone_topic(world.root(), "a", "c", **wrong)
        with pytest.raises(BadRequest, match="expected either a version or a time to clone, found both"):
            clone_topic(world.root(), "a", "c", version=version, time_ms=time_ms)

    def test_clone_of_a_deleted_topic(self) -> None:
        world = BackupWorld()
        root = filled(world)
        rows, version = rows_of(root.topic("a")), root.topic("a").log.state().version
        root.delete_topic("a")
        with pytest.raises(NotFound, match="does not exist"):
            clone_topic(world.root(), "a", "b")
        with pytest.raises(NotFound, match="did not exist at version"):
            clone_topic(world.root(), "a", "b", version=version + 1)
        clone_topic(world.root(), "a", "b", version=version)
        world.now_ms += 30 * DAY_MS
        world.retain()
        assert rows_of(world.topic("b")) == rows
        # The new topic may have the name of the deleted source, whose files are in the same directory.
        clone_topic(world.root(), "b", "a")
        for _ in range(3):
            world.now_ms += 30 * DAY_MS
            world.retain()
            assert rows_of(world.topic("a")) == rows_of(world.topic("b")) == rows

    def test_clone_keeps_log_starts_and_gaps(self) -> None:
        world = BackupWorld()
        root = filled(world)
        topic = root.topic("a")
        topic.log.commit(LogStartIntent(topic.log.state().topic_id, {0: 4, 1: 6}))
        clone_topic(root, "a", "b")
        assert root.topic("b").log.state().log_start.tolist() == [4, 6]
        assert root.topic("b").log.state().log_end.tolist() == [9, 6]
        assert rows_of(root.topic("b")) == rows_of(root.topic("a"))
        assert root.topic("b").append(batch([b"x"], keys=[b"x"], partition=1)).base == {1: 6}

    def test_clone_contains_only_committed_transactions(self) -> None:
        world = BackupWorld()
        root = filled(world, configs={})
        for name, outcome in (("x", "commit"), ("y", "abort"), ("z", "prepare")):
            writing = transactional(root, name).begin()
            writing.append("a", batch([name.encode()]))
            if name == "y":
                writing.prepare()
            getattr(writing, outcome)()
        root.topic("a").append(batch([b"behind"]))
        found = clone_topic(world.root(), "a", "b")
        values = [value for _, value, _ in rows_of(world.topic("b")).values()]
        assert found.left_out == 2
        assert b"x" in values
        assert b"behind" in values
        assert b"y" not in values
        assert b"z" not in values
        assert world.topic("b").log.state().log_end.tolist() == world.topic("a").log.state().log_end.tolist()
        assert not world.topic("b").log.state().open

    def test_clone_contains_no_part_of_a_later_transaction(self) -> None:
        world = BackupWorld()
        root = filled(world, configs={})
        owner = transactional(root, "two").begin()
        for part in (b"one", b"two"):
            job = transactional(root, "two").join(owner.n, part.decode())
            job.append("a", batch([part]))
            job.prepare()
        owner.commit()
        version = root.topic("a").append(batch([b"behind"])).version
        for older, (name, seen) in enumerate([("all", {b"one", b"two"}), ("both", {b"one", b"two"}), ("half", set())]):
            clone_topic(world.root(), "a", name, version=version - older)
            values = {value for _, value, _ in rows_of(world.topic(name)).values()}
            assert values & {b"one", b"two"} == seen

    def test_clone_has_an_empty_registry(self) -> None:
        world = BackupWorld()
        root = filled(world)
        key = WriterKey("query", 0)
        root.topic("a").append(batch([b"x"], keys=[b"x"]), writer=key)
        clone_topic(root, "a", "b")
        assert not root.topic("b").append(batch([b"x"], keys=[b"x"]), writer=key).skipped
        assert root.topic("a").append(batch([b"x"], keys=[b"x"]), writer=key).skipped

    def test_existing_names_and_dry_runs_change_nothing(self) -> None:
        world = BackupWorld()
        root = filled(world)
        root.create_topic("b")
        before = world.store.snapshot()
        with pytest.raises(Conflict, match="'b' already exists"):
            clone_topic(world.root(), "a", "b")
        assert clone_topic(world.root(), "a", "c", dry_run=True).files == 5
        assert world.store.snapshot() == before
        with pytest.raises(Conflict, match="differs only in case"):
            clone_topic(world.root(), "a", "A")
        assert not world.topic("a").log.state().leases


@pytest.mark.parametrize("cloned", [False, True])
def test_clone_of_an_imported_topic_with_transactions(tmp_path: Path, cloned: bool) -> None:
    """Reads use the index files of the shared segments, and `.txnindex` files to skip aborted records."""
    root = open_root(tmp_path / "root", create=True)
    for name in import_log_dir(root, LOG_DIR).names:
        clone_topic(root, name, f"{name}-2")
        if cloned:
            clone_topic(root, f"{name}-2", f"{name}-3")
        copy = root.topic(f"{name}-{3 if cloned else 2}")
        for uncommitted in (False, True):
            assert rows_of(copy, uncommitted=uncommitted) == rows_of(root.topic(name), uncommitted=uncommitted)
        rows = sorted(rows_of(root.topic(name)))
        assert rows
        for partition, offset in rows[:: max(1, len(rows) // 20)]:
            found, right = (each.record_at(partition, offset) for each in (copy, root.topic(name)))
            assert found.column("value").equals(right.column("value"))
        for _, _, stamp in list(rows_of(copy).values())[:5]:
            assert copy.offset_for_timestamp(stamp) == root.topic(name).offset_for_timestamp(stamp)


class TestVacuums:
    def years(self, world: BackupWorld, *names: str) -> None:
        """Rewrite and vacuum both topics until nothing more is deleted."""
        for _ in range(6):
            world.now_ms += 2 * DAY_MS
            for name in names:
                topic = world.topic(name)
                topic.append(batch([b"more"], keys=[b"k0"]))
                world.compact(name)
            world.retain()

    def test_clone_survives_rewrites_and_vacuums_of_the_source(self) -> None:
        world = BackupWorld()
        root = filled(world)
        clone_topic(root, "a", "b")
        rows = rows_of(root.topic("b"))
        self.years(world, "a")
        assert rows_of(world.topic("b")) == rows
        assert {f"a/{path.split('/', 2)[2]}" for path in shared(world.root(), "b")} <= {
            i.key for i in world.store.list("a/")
        }

    @pytest.mark.usefixtures("records_in_files")
    @pytest.mark.parametrize("end", ["rewritten", "deleted"])
    def test_lease_ends_with_the_last_version_that_references_the_files(self, end: str) -> None:
        world = BackupWorld()
        root = filled(world)
        clone_topic(root, "a", "b")
        files = shared(root, "b")
        if end == "deleted":
            world.now_ms += 3 * DAY_MS
            world.retain()
            assert world.topic("a").log.state().leases
            world.root().delete_topic("b")
            self.years(world, "a")
        else:
            self.years(world, "a", "b")
            assert not shared(world.root(), "b")
        assert not world.topic("a").log.state().leases
        left = {info.key for info in world.store.list("a/")}
        assert not {path[1:] for path in files} & left

    def test_plan_on_the_clone_remains_valid_for_the_delay(self) -> None:
        world = BackupWorld()
        root = filled(world)
        clone_topic(root, "a", "b")
        world.compact("a")
        world.now_ms += 3 * DAY_MS
        plan = world.topic("b").log.snapshot()
        world.compact("b")
        world.now_ms += 12 * HOUR_MS
        world.retain()
        assert plan.slices.paths() <= {f"/{info.key}" for info in world.store.list("a/")}

    def test_vacuum_of_the_clone_does_not_affect_the_source(self) -> None:
        world = BackupWorld()
        root = filled(world)
        rows = rows_of(root.topic("a"))
        clone_topic(root, "a", "b")
        self.years(world, "b")
        world.root().delete_topic("b")
        world.now_ms += 9 * DAY_MS
        world.retain()
        assert rows_of(world.topic("a")) == rows

    @pytest.mark.usefixtures("records_in_files")
    def test_deleted_source_only_keeps_files_of_the_clone(self) -> None:
        world = BackupWorld()
        root = filled(world)
        clone_topic(root, "a", "b")
        rows = rows_of(root.topic("b"))
        root.topic("a").append(batch([b"only in a"], keys=[b"k0"]))
        root.delete_topic("a")
        for _ in range(4):
            world.now_ms += 10 * DAY_MS
            world.retain()
        assert rows_of(world.topic("b")) == rows
        data = {f"/{info.key}" for info in world.store.list("a/") if "/_log/" not in info.key}
        assert data == shared(world.root(), "b")

    def test_clone_of_a_clone_has_a_lease_in_the_first_topic(self) -> None:
        world = BackupWorld()
        root = filled(world)
        clone_topic(root, "a", "b")
        rows = rows_of(root.topic("b"))
        self.years(world, "a")
        clone_topic(world.root(), "b", "c")
        world.root().delete_topic("b")
        self.years(world, "a")
        assert rows_of(world.topic("c")) == rows
        assert not [info for info in world.store.list("b/") if "/_log/" not in info.key]
        world.root().delete_topic("c")
        self.years(world, "a")
        assert not world.topic("a").log.state().leases

    def test_clone_below_the_retention_floor_is_rejected(self) -> None:
        world = BackupWorld()
        root = filled(world)
        version = root.topic("a").log.state().version
        self.years(world, "a")
        floor = world.topic("a").log.state().floor
        with pytest.raises(Conflict, match=f"has been vacuumed; choose a version from {floor} on"):
            clone_topic(world.root(), "a", "b", version=floor - 1)
        assert version < floor

    def test_vacuum_does_not_wait_for_a_clone_that_was_never_created(self) -> None:
        world = BackupWorld()
        filled(world)

        def decide(call: Call) -> Fault | None:
            return Fault(FaultKind.CRASH_BEFORE) if call.verb == "create" and call.key.startswith("b/") else None

        dying = FaultyStore(world.store, decide)
        with pytest.raises(Crash):
            clone_topic(world.root(dying), "a", "b")
        assert list(world.topic("a").log.state().leases) != []
        world.now_ms += 23 * HOUR_MS
        world.retain()
        assert list(world.topic("a").log.state().leases) != []
        world.now_ms += 2 * HOUR_MS
        world.retain()
        assert list(world.topic("a").log.state().leases) == []


def requests_of_a_clone() -> list[str]:
    world = BackupWorld()
    filled(world)
    labels: list[str] = []
    clone_topic(world.root(FaultyStore(world.store, lambda call: labels.append(call.label))), "a", "b")
    return labels


@pytest.mark.sweep
@pytest.mark.parametrize(("point", "kind"), crash_points(requests_of_a_clone()))
def test_clone_is_atomic_if_killed_at_any_request(point: int, kind: FaultKind) -> None:
    world = BackupWorld()
    rows = rows_of(filled(world).topic("a"))
    dying = FaultyStore(world.store, lambda call: Fault(kind) if call.number == point else None)
    # A request that finds nothing fails before the process can crash after it.
    with contextlib.suppress(Crash):
        clone_topic(world.root(dying), "a", "b")
    TestVacuums().years(world, "a")
    there = "b" in world.root().topics()
    if not there:
        assert not world.topic("a").log.state().leases
        clone_topic(world.root(), "a", "b")
    else:
        assert rows_of(world.topic("b")) == rows


@pytest.mark.sweep
@pytest.mark.parametrize("moment", first_of([*range(0, 40, 4), *(n for n in range(40) if n % 4)], 10))
def test_vacuum_between_any_two_requests_does_not_affect_the_clone(moment: int) -> None:
    """Also run with a source that was rewritten long ago, whose files the vacuum would delete."""
    world = BackupWorld()
    filled(world)
    version = world.topic("a").log.state().version
    rows = rows_of(world.topic("a"))
    world.compact("a")
    world.now_ms += DAY_MS + HOUR_MS
    world.topic("a").append(batch([b"x"], keys=[b"x"]))
    world.now_ms += DAY_MS + HOUR_MS
    world.topic("a").append(batch([b"y"], keys=[b"y"]))

    def decide(call: Call) -> None:
        if call.number == moment:
            world.retain()

    try:
        clone_topic(world.root(FaultyStore(world.store, decide)), "a", "b", version=version)
    except (Conflict, NotFound):
        assert "b" not in world.root().topics()
    else:
        world.retain()
        assert rows_of(world.topic("b")) == rows


def test_intent_of_another_process_is_validated_again() -> None:
    world = BackupWorld()
    root = filled(world)
    found: Cloned = clone_topic(root, "a", "b")
    world.topic("b").delete()
    with pytest.raises(NotFound):
        root.topic("b").log.commit(DeleteIntent(found.topic_id))


class TestMutations:
    """The tests above must fail if one step of the protocol is omitted."""

    @pytest.mark.usefixtures("records_in_files")
    def test_fails_without_a_lease(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(cloning, "_lease", lambda *_: [])
        with pytest.raises(Corrupt):
            TestVacuums().test_clone_survives_rewrites_and_vacuums_of_the_source()

    def test_fails_if_the_lease_is_acquired_after_the_clone(self, monkeypatch: pytest.MonkeyPatch) -> None:
        hold, begin = cloning._lease, RootEngine.create
        late: list[Callable[[], object]] = []
        monkeypatch.setattr(cloning, "_lease", lambda *given: late.append(lambda: hold(*given)) or [])

        def begin_first(*given: object) -> object:
            found = begin(*given)  # type: ignore[arg-type]
            if late:
                late.pop()()
            return found

        monkeypatch.setattr(RootEngine, "create", begin_first)
        failed = 0
        for moment in range(40):
            try:
                test_vacuum_between_any_two_requests_does_not_affect_the_clone(moment)
            except (AssertionError, Corrupt):
                failed += 1
        assert failed

    @pytest.mark.usefixtures("records_in_files")
    def test_fails_if_leases_of_clones_expire(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(vacuum, "needed_by_clones", lambda *_: frozenset())
        with pytest.raises(Corrupt):
            TestVacuums().test_clone_survives_rewrites_and_vacuums_of_the_source()

    @pytest.mark.usefixtures("records_in_files")
    def test_fails_if_only_the_latest_version_of_the_clone_is_checked(self, monkeypatch: pytest.MonkeyPatch) -> None:
        still = vacuum_plan.references_files_of

        def newest(history: History, topic_id: str, owner: str, since: int, held: set[int], last: int) -> bool:
            return still(history, topic_id, owner, last, set(), last)

        monkeypatch.setattr(vacuum_plan, "references_files_of", newest)
        with pytest.raises(AssertionError):
            TestVacuums().test_plan_on_the_clone_remains_valid_for_the_delay()


class TestAProcessThatSleeps:
    """A process that is suspended between lease and creation, until the vacuum has deleted the lease and the files."""

    def asleep(self, world: BackupWorld) -> Root:
        """Return a root in which days and vacuums pass just before the first commit of the clone."""
        nights = [3]

        def sleep(call: Call) -> None:
            if call.verb == "create" and call.key.startswith("b/_log/0") and nights:
                for _ in range(nights.pop()):
                    world.now_ms += DAY_MS + HOUR_MS
                    world.topic("a").append(batch([b"x"], keys=[b"x"]))
                    world.compact("a")
                    world.retain()

        return world.root(FaultyStore(world.store, sleep))

    @pytest.mark.parametrize("was_a_topic", [False, True])
    def test_suspended_clone_is_not_created(self, was_a_topic: bool) -> None:
        world = BackupWorld()
        filled(world)
        if was_a_topic:
            world.root().create_topic("b").delete()
        with pytest.raises(Conflict, match=r"topic 'b' changed from version .* during the clone; retry"):
            clone_topic(self.asleep(world), "a", "b")
        assert world.root().topics() == ["a"]
        commits = [world.store.get(info.key) for info in world.store.list("b/_log/0")]
        assert not any(b'"files":[{' in commit for commit in commits)
        assert not any(name.startswith("clone:") for name in world.topic("a").log.state().leases)
        assert verify_root(world.store, env=world.env()).sound
        rows = rows_of(world.topic("a"))
        clone_topic(world.root(), "a", "b")
        TestVacuums().years(world, "a")
        assert rows_of(world.topic("b")) == rows

    def test_abandoned_name_can_be_used_again(self) -> None:
        world = BackupWorld()
        filled(world)
        with pytest.raises(Conflict):
            clone_topic(self.asleep(world), "a", "b")
        root = world.root()
        assert root.topics() == ["a"]
        with pytest.raises(NotFound):
            root.topic("b")
        assert list(contents(root)) == ["a"]
        root.create_topic("b").append(batch([b"1"], keys=[b"1"]))
        assert len(rows_of(world.topic("b"))) == 1
        world.retain()
        assert verify_root(world.store, env=world.env()).sound
