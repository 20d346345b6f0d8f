"""Roots restored from backups and from live roots: their contents, later use, and rejected arguments."""

from __future__ import annotations

from pathlib import Path

import pytest

from sparklog.api import compact
from sparklog.errors import BadRequest, Corrupt, Fenced, NotFound
from sparklog.groups.lag import Groups
from sparklog.log.journal.names import RESTORE_KEY, ROOT_KEY
from sparklog.log.state.writer_runs import WriterKey
from sparklog.log.topic.cloning import clone_topic
from sparklog.log.topic.root import open_root
from sparklog.storage import LocalStore
from sparklog.testing.faulty_store import Crash, FaultyStore
from sparklog.testing.world import DAY_MS, HOUR_MS
from sparklog.tools.backup.backing_up import back_up, plan_backup
from sparklog.tools.backup.repository import Repository, needed_keys
from sparklog.tools.backup.restore_point import MovedOffset, RestorePoint
from sparklog.tools.backup.restoring import plan_restore, restore
from sparklog.tools.verification.run import verify_root
from sparklog.transactions.producer import transactional
from tests.support.records import random_rows
from tests.tools.backup.backup_world import Dying, RestoringWorld, Rows, batch, contents, rows_of


class TestTheCut:
    def test_restored_root_has_the_records_of_the_source(self) -> None:
        world = RestoringWorld()
        world.fill("a")
        world.fill("b", 3)
        world.compact("a")
        before = contents(world.root())
        manifest = world.back_up()
        world.topic("a").append(batch([b"later"], keys=[b"k"]))
        root = world.restore()
        assert contents(root) == before
        assert manifest.number == 1
        for name in ("a", "b"):
            ours, theirs = root.topic(name).log.state(), world.topic(name).log.state()
            assert ours.topic_id == theirs.topic_id
            assert ours.configs.explicit == theirs.configs.explicit
            assert ours.first_dirty_offset.tolist() == theirs.first_dirty_offset.tolist()
            assert ours.leader_epoch == theirs.leader_epoch + 1
            assert not ours.leases
            assert not world.topic(name).log.state().leases
        assert root.id != world.root().id

    def test_valid_key_filters_are_copied(self) -> None:
        world = RestoringWorld()
        for name in ("merged", "sealed", "damaged"):
            topic = world.root().create_topic(name)
            for seed in range(2):
                topic.append(random_rows(1000, value_bytes=600, seed=seed))
            compact(world.root(), topics=[name], roll=name != "merged")
        (damaged,) = (info.key for info in world.store.list("damaged/") if info.key.endswith(".bloom"))
        world.store.replace(damaged, b"?")
        manifest = world.back_up()
        kept = {info.key for info in world.repository.list("") if info.key.endswith(".bloom")}
        assert kept <= needed_keys(world.repository, manifest)
        copied = [each.store for each in (world.restore(), world.restore(world.store))]
        for store in (world.repository, *copied):
            filters = [info.key.split("/")[0] for info in store.list("") if info.key.endswith(".bloom")]
            assert filters == ["merged", "sealed"]
        for store in copied:
            assert [finding.kind for finding in verify_root(store, env=world.env()).findings] == ["missing"]
            assert world.root(store).topic("merged").get(b"k7") is not None

    def test_restored_root_can_be_used(self) -> None:
        world = RestoringWorld()
        world.fill()
        key = WriterKey("query", 7, run="one")
        world.topic("a").append(batch([b"x"], keys=[b"x"]), writer=key)
        world.back_up()
        root = world.restore()
        topic = root.topic("a")
        assert topic.append(batch([b"x"], keys=[b"x"]), writer=key).skipped
        assert not topic.append(batch([b"y"], keys=[b"y"]), writer=WriterKey("query", 8, run="two")).skipped
        with pytest.raises(Fenced):
            topic.append(batch([b"y"], keys=[b"y"]), writer=WriterKey("query", 9, run="one"))
        values = {key: value for key, value, _ in rows_of(root.topic("a")).values()}
        for _ in range(4):
            world.now_ms += 2 * DAY_MS
            root.topic("a").append(batch([b"z"], keys=[b"z"]))
            world.compact("a", root.store)
            world.retain(root.store)
        world.now_ms += 2 * DAY_MS
        world.retain(root.store)
        left = {key: value for key, value, _ in rows_of(world.root(root.store).topic("a")).values()}
        assert left == {**values, b"z": b"z"}
        named = world.root(root.store).topic("a").log.snapshot().slices.paths()
        data = {info.key for info in root.store.list("a/") if info.key.endswith((".log", ".slices"))}
        assert data == {f"a/{path}" for path in named}

    def test_restored_root_can_be_backed_up_and_restored(self) -> None:
        world = RestoringWorld()
        world.fill()
        world.back_up()
        root = world.restore()
        root.topic("a").append(batch([b"x"], keys=[b"x"]))
        with pytest.raises(BadRequest, match="has backups of root"):
            back_up(world.root(root.store), world.repository)
        other = world.another("other")
        back_up(world.root(root.store), other, at_once=1)
        assert contents(world.restore(other)) == contents(world.root(root.store))

    @pytest.mark.usefixtures("records_in_files")
    def test_backup_only_copies_new_objects(self) -> None:
        world = RestoringWorld()
        world.fill()
        first = world.back_up()
        before = {info.key: info.modified_ms for info in world.repository.list("")}
        world.now_ms += HOUR_MS
        world.topic("a").append(batch([b"x"], keys=[b"x"]))
        assert plan_backup(world.root(), world.repository).files == 1
        second = world.back_up()
        assert (first.number, second.number) == (1, 2)
        assert {key for key, time in before.items() if world.repository.stat(key).modified_ms != time} == set()  # type: ignore[union-attr]
        new = {info.key for info in world.repository.list("")} - before.keys()
        assert len([key for key in new if "/append/" in key]) == 1
        assert second.objects == len(new) - 1

    def test_restored_clones_are_independent_of_their_source(self) -> None:
        world = RestoringWorld()
        world.fill()
        clone_topic(world.root(), "a", "b")
        world.topic("b").append(batch([b"mine"], keys=[b"x"]))
        clone_topic(world.root(), "b", "c")
        for _ in range(3):
            world.now_ms += 2 * DAY_MS
            world.compact("a")
            world.retain()
        before = contents(world.root())
        world.back_up()
        root = world.restore()
        assert contents(root) == before
        assert not [path for name in "abc" for path in root.topic(name).log.snapshot().slices.paths() if path[0] == "/"]
        only = world.restore(wanted=RestorePoint(topics=("c",)))
        assert contents(only) == {"c": before["c"]}
        for each in (root, only):
            for _ in range(3):
                world.now_ms += 2 * DAY_MS
                world.retain(each.store)
            assert rows_of(world.root(each.store).topic("c")) == before["c"]

    def test_restored_clone_without_rewrites(self) -> None:
        """The only commit of the clone references files of another topic. They belong to the clone after a restore."""
        world = RestoringWorld()
        world.fill()
        clone_topic(world.root(), "a", "b")
        world.topic("a").append(batch([b"x"], keys=[b"x"]))
        clone_topic(world.root(), "a", "c", version=1)
        restored = world.restore(world.store)
        again = world.restore(world.store, rename={"b": "other"})
        for root, name in ((restored, "b"), (again, "other")):
            report = verify_root(root.store, env=world.env())
            assert not report.findings
            assert rows_of(root.topic(name)) == rows_of(world.topic("b"))
            assert rows_of(root.topic("c")) == rows_of(world.topic("c"))

    def test_restore_renames_topics(self) -> None:
        world = RestoringWorld()
        world.fill("a")
        world.fill("b")
        before = contents(world.root())
        world.back_up()
        root = world.restore(wanted=RestorePoint(topics=("a",)), rename={"a": "old-a"})
        assert contents(root) == {"old-a": before["a"]}
        root = world.restore(rename={"a": "b", "b": "a"})
        assert contents(root) == {"a": before["b"], "b": before["a"]}
        with pytest.raises(BadRequest, match="would both be named 'b'"):
            world.restore(rename={"a": "b"})
        with pytest.raises(NotFound, match="cannot rename topic 'x', because it does not exist"):
            world.restore(rename={"x": "y"})
        with pytest.raises(NotFound, match="topic 'c' does not exist in backup 1"):
            world.restore(wanted=RestorePoint(topics=("c",)))

    def test_deleted_topics_are_only_restored_as_of_an_earlier_time(self) -> None:
        world = RestoringWorld()
        world.fill("a")
        world.fill("b")
        rows, alive_ms = rows_of(world.topic("b")), world.now_ms
        world.now_ms += HOUR_MS
        world.root().delete_topic("b")
        world.back_up()
        assert list(contents(world.restore())) == ["a"]
        assert contents(world.restore(wanted=RestorePoint(time_ms=alive_ms)))["b"] == rows


class TestTransactionsAndGroups:
    def test_restored_transactions_are_atomic_and_consumers_resume(self) -> None:
        world = RestoringWorld()
        world.fill("a", configs={})
        world.fill("b", configs={})
        root = world.root()
        member = Groups(root).group("g").join("one")
        member.commit({"a": {0: 3}})
        writing = transactional(root, "tx").begin()
        writing.append("a", batch([b"both"]))
        writing.append("b", batch([b"both"]))
        writing.send_offsets("g", {"b": {1: 2}})
        writing.commit()
        undecided = transactional(root, "open").begin()
        undecided.append("a", batch([b"never"]))
        undecided.prepare()
        before = contents(world.root())
        world.back_up()
        undecided.commit()
        restored = world.restore(rename={"b": "b2"})
        assert contents(restored) == {"a": before["a"], "b2": before["b"]}
        committed = Groups(restored).group("g").committed()
        assert {repository: item.offset for repository, item in committed.items()} == {("a", 0): 3, ("b2", 1): 2}
        world.now_ms += DAY_MS
        world.retain(restored.store)
        restored = world.root(restored.store)
        assert not restored.topic("a").log.state().open
        assert contents(restored) == {"a": before["a"], "b2": before["b"]}
        with transactional(restored, "open").begin() as again:
            again.append("a", batch([b"again"]))
        assert [value for _, value, _ in rows_of(restored.topic("a")).values()].count(b"again") == 1


class TestPointsInTime:
    def history(self, world: RestoringWorld) -> list[tuple[int, int, Rows]]:
        """Back up a topic on four days with compaction and vacuums; return time, version and rows after each append."""
        world.fill(appends=1)
        found = []
        for day in range(4):
            for i in range(6):
                world.now_ms += HOUR_MS
                topic = world.topic("a")
                topic.append(batch([b"%d.%d" % (day, i)] * 2, keys=[b"k%d" % (i % 3), b"d%d" % day], partition=i % 2))
                found.append((world.now_ms, topic.log.state().version, rows_of(topic)))
                world.now_ms += 1
                if i % 3 == 2:
                    world.compact("a")
                    world.retain()
            world.now_ms += 18 * HOUR_MS - 7
            world.back_up()
            world.now_ms += 1
        return found

    def test_restore_of_any_time_and_version_between_backups(self) -> None:
        world = RestoringWorld()
        for time_ms, version, rows in self.history(world):
            assert contents(world.restore(wanted=RestorePoint(time_ms=time_ms)))["a"] == rows
            assert contents(world.restore(wanted=RestorePoint(topics=("a",), version=version)))["a"] == rows

    def test_restore_by_number_and_unavailable_states(self) -> None:
        world = RestoringWorld()
        found = self.history(world)
        for number in range(1, 5):
            rows = contents(world.restore(wanted=RestorePoint(number=number)))["a"]
            assert {key: value for key, value, _ in rows.values()} == {
                key: value for key, value, _ in found[6 * number - 1][2].values()
            }
        for wanted, says in (
            (RestorePoint(number=9), "existing backups: 1, 2, 3, 4"),
            (RestorePoint(time_ms=world.now_ms + 1), "make another backup first"),
            (RestorePoint(time_ms=5), "no topic existed at 1970"),
            (RestorePoint(topics=("a",), version=10_000), "available versions: 0 to"),
        ):
            with pytest.raises(NotFound, match=says):
                world.restore(wanted=wanted)
        for wanted in (RestorePoint(version=3), RestorePoint(number=1, time_ms=4)):
            with pytest.raises(BadRequest):
                world.restore(wanted=wanted)

    def test_unavailable_versions_are_reported(self) -> None:
        world = RestoringWorld()
        world.fill()
        world.back_up()
        world.now_ms += 1
        topic = world.topic("a")
        topic.append(batch([b"x"], keys=[b"k0"]))
        lost_ms, version = world.now_ms, topic.log.state().version
        world.now_ms += HOUR_MS
        world.compact("a")
        world.now_ms += 3 * DAY_MS
        topic.append(batch([b"y"], keys=[b"y"]))
        world.retain()
        world.now_ms += HOUR_MS
        manifest = world.back_up()
        item = manifest.topic("a")
        assert item is not None
        assert item.since > version
        with pytest.raises(NotFound, match="cannot be restored as of"):
            world.restore(wanted=RestorePoint(time_ms=lost_ms))
        with pytest.raises(NotFound, match=f"available versions: 0 to 5, {item.since} to {item.version}"):
            world.restore(wanted=RestorePoint(topics=("a",), version=version))
        assert contents(world.restore(wanted=RestorePoint(topics=("a",), version=item.since)))["a"]

    def test_group_offset_beyond_the_version_is_set_to_the_log_end(self) -> None:
        """The clock is behind; unread records remain unread, and the other topic is not affected."""
        world = RestoringWorld()
        world.fill("a", 2, {})
        world.fill("b", 2, {})
        version = world.topic("a").log.state().version
        ends = world.topic("a").log.state().log_end.tolist()
        world.now_ms -= HOUR_MS
        world.topic("a").append(batch([b"later"] * 4))
        read = {"a": {0: ends[0] + 3, 1: 1}, "b": {0: 2}}
        Groups(world.root()).group("g").join("one").commit(read)
        wanted = RestorePoint(topics=("a",), version=version)
        world.back_up()
        for source in (world.repository, world.store):
            planned = plan_restore(source, wanted, env=world.env())
            target = world.another("target")
            said = world.restore_into(source, target, wanted)
            assert said.moved == planned.moved == (MovedOffset("g", "a", 0, ends[0] + 3, ends[0]),)
            root = world.root(target)
            committed = Groups(root).group("g").committed()
            assert {key: item.offset for key, item in committed.items()} == {("a", 0): ends[0], ("a", 1): 1}
            assert committed["a", 0].leader_epoch is None
            assert not verify_root(target, env=world.env()).findings
            Groups(root).group("g").join("two").commit({"a": {0: ends[0]}})
        renamed = world.restore(wanted=wanted, rename={"a": "old"})
        assert Groups(renamed).group("g").committed()["old", 0].offset == ends[0]
        assert world.restore_into(None, world.another("all")).moved == ()

    def test_restore_killed_at_any_request_reports_the_same_groups(self) -> None:
        world = RestoringWorld()
        world.fill("a", 2, {})
        version = world.topic("a").log.state().version
        world.now_ms -= HOUR_MS
        world.topic("a").append(batch([b"later"] * 4))
        Groups(world.root()).group("g").join("one").commit({"a": {0: 5}})
        world.back_up()
        wanted = RestorePoint(topics=("a",), version=version)
        counted = FaultyStore(world.another("counted"), lambda call: None)
        right = world.restore_into(None, counted, wanted).moved  # type: ignore[arg-type]
        assert right
        for number in range(5, sum(counted.calls.values()) - 1):
            target = world.another("target")
            with pytest.raises(Crash):
                restore(
                    world.repository,
                    FaultyStore(target, Dying(lambda call, at=number: call.number >= at)),
                    wanted,
                    at_once=1,
                    env=world.env(),
                )
            if ROOT_KEY not in target.snapshot() or RESTORE_KEY in target.snapshot():
                assert world.restore_into(None, target, wanted).moved == right
            assert Groups(world.root(target)).group("g").committed()["a", 0].offset == right[0].now

    def test_restore_from_a_live_root(self) -> None:
        world = RestoringWorld()
        world.fill()
        rows, time_ms = rows_of(world.topic("a")), world.now_ms
        version = world.topic("a").log.state().version
        world.now_ms += HOUR_MS
        world.topic("a").append(batch([b"x"], keys=[b"k0"]))
        world.compact("a")
        now = rows_of(world.topic("a"))
        source = world.store
        assert contents(world.restore(source))["a"] == now
        assert contents(world.restore(source, RestorePoint(time_ms=time_ms)))["a"] == rows
        assert contents(world.restore(source, RestorePoint(topics=("a",), version=version)))["a"] == rows
        assert not world.topic("a").log.state().leases
        world.now_ms += 3 * DAY_MS
        world.topic("a").append(batch([b"y"], keys=[b"y"]))
        world.retain()
        with pytest.raises(NotFound, match="the vacuum has deleted files of version"):
            world.restore(source, RestorePoint(time_ms=time_ms))


class TestRefusals:
    def test_restore_rejects_nonempty_targets(self) -> None:
        world = RestoringWorld()
        world.fill()
        world.back_up()
        with pytest.raises(BadRequest, match="is not empty"):
            world.restore_into(None, world.store)
        with pytest.raises(BadRequest, match="is a root"):
            back_up(world.root(), world.store)
        other = world.another("other")
        other.create("something", b"")
        with pytest.raises(BadRequest, match="is not empty"):
            back_up(world.root(), other)
        with pytest.raises(NotFound, match="neither a backup repository"):
            world.restore(other)
        with pytest.raises(NotFound, match="is not a backup repository"):
            Repository.open(other)

    def test_unfinished_restore_with_other_options_is_rejected(self) -> None:
        world = RestoringWorld()
        world.fill()
        world.back_up()
        target = world.another("target")
        world.restore_into(None, target)
        kept = target.snapshot()
        assert RESTORE_KEY not in kept
        with pytest.raises(BadRequest, match="is not empty"):
            world.restore_into(None, target)
        assert target.snapshot() == kept

    def test_unfinished_restore_and_repository_cannot_be_opened_as_a_root(self) -> None:
        world = RestoringWorld()
        world.fill()
        world.back_up()
        target = world.another("target")
        dead = FaultyStore(target, Dying(lambda call: call.verb == "create" and call.key.startswith("a/_log/")))
        with pytest.raises(Crash):
            restore(world.repository, dead, at_once=1, env=world.env())
        with pytest.raises(BadRequest, match="is incomplete"):
            world.root(target)
        with pytest.raises(BadRequest, match="contains backups"):
            world.root(world.repository)
        target.create(ROOT_KEY, world.store.get(ROOT_KEY))
        with pytest.raises(BadRequest, match="another root was created in"):
            world.restore_into(None, target)
        target.delete(ROOT_KEY)
        world.restore_into(None, target)
        assert contents(world.root(target)) == contents(world.root())

    def test_restore_killed_during_the_probe_can_be_repeated(self) -> None:
        world = RestoringWorld()
        world.fill()
        target = world.another("target")
        for store in (world.repository, target):
            store.create("_probe/1/race", b"")
        world.back_up()
        world.restore_into(None, target)
        assert contents(world.root(target)) == contents(world.root())

    def test_directories_inside_roots_and_repositories_are_rejected(self, tmp_path: Path) -> None:
        world = RestoringWorld()
        world.fill()
        root = open_root(LocalStore(tmp_path / "root", durable=False), create=True)
        repository = LocalStore(tmp_path / "place", durable=False)
        back_up(world.root(), repository)
        for outer in ("root", "place"):
            inner = LocalStore(tmp_path / outer / "deep" / "inner", durable=False)
            with pytest.raises(BadRequest, match="choose another directory"):
                back_up(world.root(), inner)
            with pytest.raises(BadRequest, match="choose another directory"):
                restore(repository, inner)
            assert not list(inner.list(""))
        assert root.topics() == []

    def test_restore_of_a_version_of_an_unknown_topic(self) -> None:
        world = RestoringWorld()
        world.fill()
        world.store.create("notes/readme", b"")
        with pytest.raises(NotFound, match="topic 'notes' does not exist"):
            world.restore(world.store, RestorePoint(topics=("notes",), version=1))

    def test_plans_change_nothing(self) -> None:
        world = RestoringWorld()
        world.fill()
        world.back_up()
        before = world.repository.snapshot()
        found = plan_restore(world.repository, env=world.env())
        assert (found.backup, [item.topic for item in found.topics], found.files) == (1, ["a"], 5)
        assert world.repository.snapshot() == before

    @pytest.mark.usefixtures("records_in_files")
    @pytest.mark.parametrize("suffix", [".slices", ".log", ".timeindex"])
    def test_corrupt_files_are_neither_backed_up_nor_restored(self, suffix: str) -> None:
        world = RestoringWorld()
        world.fill()
        if suffix != ".slices":
            world.compact("a")
        named = sorted(world.topic("a").log.snapshot().slices.paths())
        key = f"a/{named[0].rsplit('.', 1)[0]}{suffix}"
        data = world.store.get(key)
        for position in (0, len(data) // 2, len(data) - 1):
            damaged = bytearray(data)
            damaged[position] ^= 4
            world.store.replace(key, bytes(damaged))
            with pytest.raises(Corrupt, match=key.rsplit("/", 1)[-1].split(".")[0]):
                world.back_up()
        assert Repository.open(world.repository).manifests() == []
        world.store.replace(key, data)
        world.back_up()
        assert contents(world.restore()) == contents(world.root())
        world.repository.replace(key, bytes(damaged))
        with pytest.raises(Corrupt):
            world.restore()

    def test_backup_of_a_different_log_is_rejected(self) -> None:
        world = RestoringWorld()
        world.fill()
        before = world.store.snapshot()
        world.topic("a").append(batch([b"x"], keys=[b"x"]))
        world.back_up()
        world.store.restore(before)
        with pytest.raises(Corrupt, match="not the root that was backed up"):
            world.back_up()
        for _ in range(3):
            world.topic("a").append(batch([b"y"], keys=[b"y"]))
        with pytest.raises(Corrupt):
            world.back_up()

    def test_backup_and_restore_of_selected_topics(self) -> None:
        world = RestoringWorld()
        world.fill("a")
        world.fill("b")
        with pytest.raises(NotFound, match="topic 'c' does not exist"):
            world.back_up(topics=["c"])
        assert [item.topic for item in world.back_up(topics=["a"]).topics] == ["a"]
        assert list(contents(world.restore())) == ["a"]
        with pytest.raises(NotFound, match="topic 'b' does not exist in backup 1"):
            world.restore(wanted=RestorePoint(topics=("b",)))
