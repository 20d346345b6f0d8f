"""Roots made from backups and from live roots: what they hold, what they take afterwards, what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from sparklog.errors import BadRequest, Corrupt, Fenced, NotFound
from sparklog.groups import Groups
from sparklog.log.journal.names import RESTORE_KEY, ROOT_KEY
from sparklog.log.state.registry import WriterKey
from sparklog.log.topic.cloning import clone_topic
from sparklog.log.topic.root import Root, open_root
from sparklog.storage import LocalStore
from sparklog.storage.faulty import Crash, FaultyStore
from sparklog.storage.memory import MemoryStore
from sparklog.tools.backup.backing_up import back_up, plan_backup
from sparklog.tools.backup.manifest import Manifest
from sparklog.tools.backup.repository import Place
from sparklog.tools.backup.restore_point import Wanted
from sparklog.tools.backup.restored import MovedOffset
from sparklog.tools.backup.restoring import Restored, plan_restore, restore
from sparklog.tools.verification.run import verify_root
from sparklog.transactions.producer import transactional
from tests.tools.backup.lab import DAY, HOUR, MINUTE, Dying, Lab, Rows, batch, contents, rows_of

CONFIGS = {
    "cleanup.policy": "compact,delete",
    "min.cleanable.dirty.ratio": "0.0",
    "segment.bytes": "300",
    "retention.ms": "-1",
}


class House:
    """A source, a place of backups, and roots restored from it."""

    def __init__(self) -> None:
        self.lab = Lab()
        self.place = self.lab.another("place")
        self.restored = 0

    @property
    def root(self) -> Root:
        return self.lab.root()

    def back_up(self, **more: object) -> Manifest:
        return back_up(self.root, self.place, at_once=1, **more)  # type: ignore[arg-type]

    def restore(self, source: MemoryStore | None = None, wanted: Wanted | None = None, **more: object) -> Root:
        self.restored += 1
        target = self.lab.another(f"restored-{self.restored}")
        self.said(source, target, wanted, **more)
        return self.lab.root(target)

    def said(
        self, source: MemoryStore | None, target: MemoryStore, wanted: Wanted | None = None, **more: object
    ) -> Restored:
        source = self.place if source is None else source
        return restore(source, target, wanted, at_once=1, env=self.lab.env(), **more)  # type: ignore[arg-type]

    def fill(self, name: str = "a", appends: int = 5, configs: dict[str, str] | None = None) -> None:
        topic = self.root.create_topic(name, partitions=2, configs=CONFIGS if configs is None else configs)
        for i in range(appends):
            keys = [b"k%d" % (i % 2), b"k2", b"own%d" % i]
            topic.append(batch([b"v%d-%d" % (i, j) for j in range(3)], keys=keys, partition=i % 2))
            self.lab.now_ms += MINUTE


class TestTheCut:
    def test_a_restored_root_holds_what_the_source_held(self) -> None:
        house = House()
        house.fill("a")
        house.fill("b", 3)
        house.lab.compact("a")
        before = contents(house.root)
        manifest = house.back_up()
        house.root.topic("a").append(batch([b"later"], keys=[b"k"]))
        root = house.restore()
        assert contents(root) == before
        assert manifest.number == 1
        for name in ("a", "b"):
            ours, theirs = root.topic(name).head(), house.root.topic(name).head()
            assert ours.topic_id == theirs.topic_id
            assert ours.configs.explicit == theirs.configs.explicit
            assert ours.cleaned_through.tolist() == theirs.cleaned_through.tolist()
            assert ours.leader_epoch == theirs.leader_epoch + 1
            assert not ours.holds
            assert not house.root.topic(name).head().holds
        assert root.id != house.root.id

    def test_it_goes_on_as_a_root(self) -> None:
        house = House()
        house.fill()
        key = WriterKey("query", 7, run="one")
        house.root.topic("a").append(batch([b"x"], keys=[b"x"]), writer=key)
        house.back_up()
        root = house.restore()
        topic = root.topic("a")
        assert topic.append(batch([b"x"], keys=[b"x"]), writer=key).skipped
        assert not topic.append(batch([b"y"], keys=[b"y"]), writer=WriterKey("query", 8, run="two")).skipped
        with pytest.raises(Fenced):
            topic.append(batch([b"y"], keys=[b"y"]), writer=WriterKey("query", 9, run="one"))
        values = {key: value for key, value, _ in rows_of(root.topic("a")).values()}
        for _ in range(4):
            house.lab.now_ms += 2 * DAY
            root.topic("a").append(batch([b"z"], keys=[b"z"]))
            house.lab.compact("a", root.store)
            house.lab.retain(root.store)
        house.lab.now_ms += 2 * DAY
        house.lab.retain(root.store)
        left = {key: value for key, value, _ in rows_of(house.lab.root(root.store).topic("a")).values()}
        assert left == {**values, b"z": b"z"}
        named = house.lab.root(root.store).topic("a").snapshot().slices.paths()
        data = {info.key for info in root.store.list("a/") if info.key.endswith((".log", ".slices"))}
        assert data == {f"a/{path}" for path in named}

    def test_a_restored_root_can_be_backed_up_and_restored(self) -> None:
        house = House()
        house.fill()
        house.back_up()
        root = house.restore()
        root.topic("a").append(batch([b"x"], keys=[b"x"]))
        with pytest.raises(BadRequest, match="holds backups of root"):
            back_up(house.lab.root(root.store), house.place)
        other = house.lab.another("other")
        back_up(house.lab.root(root.store), other, at_once=1)
        assert contents(house.restore(other)) == contents(house.lab.root(root.store))

    def test_only_new_objects_are_copied(self) -> None:
        house = House()
        house.fill()
        first = house.back_up()
        before = {info.key: info.modified_ms for info in house.place.list("")}
        house.lab.now_ms += HOUR
        house.root.topic("a").append(batch([b"x"], keys=[b"x"]))
        assert plan_backup(house.root, house.place).files == 1
        second = house.back_up()
        assert (first.number, second.number) == (1, 2)
        assert {key for key, time in before.items() if house.place.stat(key).modified_ms != time} == set()  # type: ignore[union-attr]
        new = {info.key for info in house.place.list("")} - before.keys()
        assert len([key for key in new if "/append/" in key]) == 1
        assert second.objects == len(new) - 1

    def test_clones_stand_alone_in_a_restored_root(self) -> None:
        house = House()
        house.fill()
        clone_topic(house.root, "a", "b")
        house.root.topic("b").append(batch([b"mine"], keys=[b"x"]))
        clone_topic(house.root, "b", "c")
        for _ in range(3):
            house.lab.now_ms += 2 * DAY
            house.lab.compact("a")
            house.lab.retain()
        before = contents(house.root)
        house.back_up()
        root = house.restore()
        assert contents(root) == before
        assert not [path for name in "abc" for path in root.topic(name).snapshot().slices.paths() if path[0] == "/"]
        only = house.restore(wanted=Wanted(topics=("c",)))
        assert contents(only) == {"c": before["c"]}
        for each in (root, only):
            for _ in range(3):
                house.lab.now_ms += 2 * DAY
                house.lab.retain(each.store)
            assert rows_of(house.lab.root(each.store).topic("c")) == before["c"]

    def test_a_clone_of_which_nothing_was_rewritten_yet(self) -> None:
        """Its one commit names the files of another topic, which are its own in the restored root."""
        house = House()
        house.fill()
        clone_topic(house.root, "a", "b")
        house.root.topic("a").append(batch([b"x"], keys=[b"x"]))
        clone_topic(house.root, "a", "c", version=1)
        restored = house.restore(house.lab.store)
        again = house.restore(house.lab.store, rename={"b": "other"})
        for root, name in ((restored, "b"), (again, "other")):
            report = verify_root(root.store, env=house.lab.env())
            assert not report.findings
            assert rows_of(root.topic(name)) == rows_of(house.root.topic("b"))
            assert rows_of(root.topic("c")) == rows_of(house.root.topic("c"))

    def test_topics_of_it_under_other_names(self) -> None:
        house = House()
        house.fill("a")
        house.fill("b")
        before = contents(house.root)
        house.back_up()
        root = house.restore(wanted=Wanted(topics=("a",)), rename={"a": "old-a"})
        assert contents(root) == {"old-a": before["a"]}
        root = house.restore(rename={"a": "b", "b": "a"})
        assert contents(root) == {"a": before["b"], "b": before["a"]}
        with pytest.raises(BadRequest, match="would both be called 'b'"):
            house.restore(rename={"a": "b"})
        with pytest.raises(NotFound, match="no topic 'x' to be renamed"):
            house.restore(rename={"x": "y"})
        with pytest.raises(NotFound, match="no topic 'c' in backup 1"):
            house.restore(wanted=Wanted(topics=("c",)))

    def test_deleted_topics_are_not_restored_and_come_back_as_of_before(self) -> None:
        house = House()
        house.fill("a")
        house.fill("b")
        rows, alive_ms = rows_of(house.root.topic("b")), house.lab.now_ms
        house.lab.now_ms += HOUR
        house.root.delete_topic("b")
        house.back_up()
        assert list(contents(house.restore())) == ["a"]
        assert contents(house.restore(wanted=Wanted(time_ms=alive_ms)))["b"] == rows


class TestTransactionsAndGroups:
    def test_transactions_are_whole_and_consumers_go_on(self) -> None:
        house = House()
        house.fill("a", configs={})
        house.fill("b", configs={})
        root = house.root
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
        before = contents(house.root)
        house.back_up()
        undecided.commit()
        restored = house.restore(rename={"b": "b2"})
        assert contents(restored) == {"a": before["a"], "b2": before["b"]}
        committed = Groups(restored).group("g").committed()
        assert {place: item.offset for place, item in committed.items()} == {("a", 0): 3, ("b2", 1): 2}
        house.lab.now_ms += DAY
        house.lab.retain(restored.store)
        restored = house.lab.root(restored.store)
        assert not restored.topic("a").head().open
        assert contents(restored) == {"a": before["a"], "b2": before["b"]}
        with transactional(restored, "open").begin() as again:
            again.append("a", batch([b"again"]))
        assert [value for _, value, _ in rows_of(restored.topic("a")).values()].count(b"again") == 1


class TestPointsInTime:
    def history(self, house: House) -> list[tuple[int, int, Rows]]:
        """Four days of appends, compaction and vacuum, backed up each day: time, version and rows after each append."""
        house.fill(appends=1)
        found = []
        for day in range(4):
            for i in range(6):
                house.lab.now_ms += HOUR
                topic = house.root.topic("a")
                topic.append(batch([b"%d.%d" % (day, i)] * 2, keys=[b"k%d" % (i % 3), b"d%d" % day], partition=i % 2))
                found.append((house.lab.now_ms, topic.head().version, rows_of(topic)))
                house.lab.now_ms += 1
                if i % 3 == 2:
                    house.lab.compact("a")
                    house.lab.retain()
            house.lab.now_ms += 18 * HOUR - 7
            house.back_up()
            house.lab.now_ms += 1
        return found

    def test_every_time_and_version_between_daily_backups(self) -> None:
        house = House()
        for time_ms, version, rows in self.history(house):
            assert contents(house.restore(wanted=Wanted(time_ms=time_ms)))["a"] == rows
            assert contents(house.restore(wanted=Wanted(topics=("a",), version=version)))["a"] == rows

    def test_each_backup_by_its_number_and_what_is_out_of_reach(self) -> None:
        house = House()
        found = self.history(house)
        for number in range(1, 5):
            rows = contents(house.restore(wanted=Wanted(number=number)))["a"]
            assert {key: value for key, value, _ in rows.values()} == {
                key: value for key, value, _ in found[6 * number - 1][2].values()
            }
        for wanted, says in (
            (Wanted(number=9), "there are 1, 2, 3, 4"),
            (Wanted(time_ms=house.lab.now_ms + 1), "take another one"),
            (Wanted(time_ms=5), "there was no topic at 1970"),
            (Wanted(topics=("a",), version=10_000), "there are versions 0 to"),
        ):
            with pytest.raises(NotFound, match=says):
                house.restore(wanted=wanted)
        for wanted in (Wanted(version=3), Wanted(number=1, time_ms=4)):
            with pytest.raises(BadRequest):
                house.restore(wanted=wanted)

    def test_what_was_gone_by_the_next_backup_is_said(self) -> None:
        house = House()
        house.fill()
        house.back_up()
        house.lab.now_ms += 1
        topic = house.root.topic("a")
        topic.append(batch([b"x"], keys=[b"k0"]))
        lost_ms, version = house.lab.now_ms, topic.head().version
        house.lab.now_ms += HOUR
        house.lab.compact("a")
        house.lab.now_ms += 3 * DAY
        topic.append(batch([b"y"], keys=[b"y"]))
        house.lab.retain()
        house.lab.now_ms += HOUR
        manifest = house.back_up()
        item = manifest.topic("a")
        assert item is not None
        assert item.since > version
        with pytest.raises(NotFound, match="can be restored as of"):
            house.restore(wanted=Wanted(time_ms=lost_ms))
        with pytest.raises(NotFound, match=f"there are versions 0 to 5, {item.since} to {item.version}"):
            house.restore(wanted=Wanted(topics=("a",), version=version))
        assert contents(house.restore(wanted=Wanted(topics=("a",), version=item.since)))["a"]

    def test_a_group_that_read_further_than_the_version_is_at_its_end(self) -> None:
        """By a clock that runs behind; what it had left to read stays so, and so does another topic."""
        house = House()
        house.fill("a", 2, {})
        house.fill("b", 2, {})
        version = house.root.topic("a").head().version
        ends = house.root.topic("a").head().log_end.tolist()
        house.lab.now_ms -= HOUR
        house.root.topic("a").append(batch([b"later"] * 4))
        read = {"a": {0: ends[0] + 3, 1: 1}, "b": {0: 2}}
        Groups(house.root).group("g").join("one").commit(read)
        wanted = Wanted(topics=("a",), version=version)
        house.back_up()
        for source in (house.place, house.lab.store):
            planned = plan_restore(source, wanted, env=house.lab.env())
            target = house.lab.another("target")
            said = house.said(source, target, wanted)
            assert said.moved == planned.moved == (MovedOffset("g", "a", 0, ends[0] + 3, ends[0]),)
            root = house.lab.root(target)
            committed = Groups(root).group("g").committed()
            assert {key: item.offset for key, item in committed.items()} == {("a", 0): ends[0], ("a", 1): 1}
            assert committed["a", 0].leader_epoch is None
            assert not verify_root(target, env=house.lab.env()).findings
            Groups(root).group("g").join("two").commit({"a": {0: ends[0]}})
        renamed = house.restore(wanted=wanted, rename={"a": "old"})
        assert Groups(renamed).group("g").committed()["old", 0].offset == ends[0]
        assert house.said(None, house.lab.another("all")).moved == ()

    def test_killed_at_any_request_it_says_the_same_of_groups(self) -> None:
        house = House()
        house.fill("a", 2, {})
        version = house.root.topic("a").head().version
        house.lab.now_ms -= HOUR
        house.root.topic("a").append(batch([b"later"] * 4))
        Groups(house.root).group("g").join("one").commit({"a": {0: 5}})
        house.back_up()
        wanted = Wanted(topics=("a",), version=version)
        counted = FaultyStore(house.lab.another("counted"), lambda call: None)
        right = house.said(None, counted, wanted).moved  # type: ignore[arg-type]
        assert right
        for number in range(5, sum(counted.calls.values()) - 1):
            target = house.lab.another("target")
            with pytest.raises(Crash):
                restore(
                    house.place,
                    FaultyStore(target, Dying(lambda call, at=number: call.number >= at)),
                    wanted,
                    at_once=1,
                    env=house.lab.env(),
                )
            if ROOT_KEY not in target.snapshot() or RESTORE_KEY in target.snapshot():
                assert house.said(None, target, wanted).moved == right
            assert Groups(house.lab.root(target)).group("g").committed()["a", 0].offset == right[0].now

    def test_from_the_root_itself(self) -> None:
        house = House()
        house.fill()
        rows, time_ms = rows_of(house.root.topic("a")), house.lab.now_ms
        version = house.root.topic("a").head().version
        house.lab.now_ms += HOUR
        house.root.topic("a").append(batch([b"x"], keys=[b"k0"]))
        house.lab.compact("a")
        now = rows_of(house.root.topic("a"))
        source = house.lab.store
        assert contents(house.restore(source))["a"] == now
        assert contents(house.restore(source, Wanted(time_ms=time_ms)))["a"] == rows
        assert contents(house.restore(source, Wanted(topics=("a",), version=version)))["a"] == rows
        assert not house.root.topic("a").head().holds
        house.lab.now_ms += 3 * DAY
        house.root.topic("a").append(batch([b"y"], keys=[b"y"]))
        house.lab.retain()
        with pytest.raises(NotFound, match="from this root it can be restored from version"):
            house.restore(source, Wanted(time_ms=time_ms))


class TestRefusals:
    def test_places_that_hold_something_else(self) -> None:
        house = House()
        house.fill()
        house.back_up()
        with pytest.raises(BadRequest, match="is not empty"):
            house.said(None, house.lab.store)
        with pytest.raises(BadRequest, match="is a root"):
            back_up(house.root, house.lab.store)
        other = house.lab.another("other")
        other.create("something", b"")
        with pytest.raises(BadRequest, match="is not empty"):
            back_up(house.root, other)
        with pytest.raises(NotFound, match="neither a place of backups"):
            house.restore(other)
        with pytest.raises(NotFound, match="no backups lie in"):
            Place.open(other)

    def test_another_restore_is_unfinished(self) -> None:
        house = House()
        house.fill()
        house.back_up()
        target = house.lab.another("target")
        house.said(None, target)
        kept = target.snapshot()
        assert RESTORE_KEY not in kept
        with pytest.raises(BadRequest, match="is not empty"):
            house.said(None, target)
        assert target.snapshot() == kept

    def test_half_a_restore_and_a_place_of_backups_become_no_root(self) -> None:
        house = House()
        house.fill()
        house.back_up()
        target = house.lab.another("target")
        dead = FaultyStore(target, Dying(lambda call: call.verb == "create" and call.key.startswith("a/_log/")))
        with pytest.raises(Crash):
            restore(house.place, dead, at_once=1, env=house.lab.env())
        with pytest.raises(BadRequest, match="is unfinished"):
            house.lab.root(target)
        with pytest.raises(BadRequest, match="backups lie in"):
            house.lab.root(house.place)
        target.create(ROOT_KEY, house.lab.store.get(ROOT_KEY))
        with pytest.raises(BadRequest, match="became another root"):
            house.said(None, target)
        target.delete(ROOT_KEY)
        house.said(None, target)
        assert contents(house.lab.root(target)) == contents(house.root)

    def test_a_run_killed_while_it_probed_is_run_again(self) -> None:
        house = House()
        house.fill()
        target = house.lab.another("target")
        for store in (house.place, target):
            store.create("_probe/1/race", b"")
        house.back_up()
        house.said(None, target)
        assert contents(house.lab.root(target)) == contents(house.root)

    def test_folders_inside_of_roots_and_places(self, tmp_path: Path) -> None:
        house = House()
        house.fill()
        root = open_root(LocalStore(tmp_path / "root", durable=False), create=True)
        place = LocalStore(tmp_path / "place", durable=False)
        back_up(house.root, place)
        for outer in ("root", "place"):
            inner = LocalStore(tmp_path / outer / "deep" / "inner", durable=False)
            with pytest.raises(BadRequest, match="choose a folder outside of it"):
                back_up(house.root, inner)
            with pytest.raises(BadRequest, match="choose a folder outside of it"):
                restore(place, inner)
            assert not list(inner.list(""))
        assert root.topics() == []

    def test_a_version_of_a_folder_that_is_no_topic(self) -> None:
        house = House()
        house.fill()
        house.lab.store.create("notes/readme", b"")
        with pytest.raises(NotFound, match="topic 'notes' does not exist"):
            house.restore(house.lab.store, Wanted(topics=("notes",), version=1))

    def test_dry_runs_change_nothing(self) -> None:
        house = House()
        house.fill()
        house.back_up()
        before = house.place.snapshot()
        found = plan_restore(house.place, env=house.lab.env())
        assert (found.backup, [item.topic for item in found.topics], found.files) == (1, ["a"], 5)
        assert house.place.snapshot() == before

    @pytest.mark.parametrize("suffix", [".slices", ".log", ".timeindex"])
    def test_damage_is_neither_backed_up_nor_restored(self, suffix: str) -> None:
        house = House()
        house.fill()
        if suffix != ".slices":
            house.lab.compact("a")
        named = sorted(house.root.topic("a").snapshot().slices.paths())
        key = f"a/{named[0].rsplit('.', 1)[0]}{suffix}"
        data = house.lab.store.get(key)
        for position in (0, len(data) // 2, len(data) - 1):
            damaged = bytearray(data)
            damaged[position] ^= 4
            house.lab.store.replace(key, bytes(damaged))
            with pytest.raises(Corrupt, match=key.rsplit("/", 1)[-1].split(".")[0]):
                house.back_up()
        assert Place.open(house.place).manifests() == []
        house.lab.store.replace(key, data)
        house.back_up()
        assert contents(house.restore()) == contents(house.root)
        house.place.replace(key, bytes(damaged))
        with pytest.raises(Corrupt):
            house.restore()

    def test_a_backup_of_the_wrong_log_is_refused(self) -> None:
        house = House()
        house.fill()
        before = house.lab.store.snapshot()
        house.root.topic("a").append(batch([b"x"], keys=[b"x"]))
        house.back_up()
        house.lab.store.restore(before)
        with pytest.raises(Corrupt, match="not the log that was backed up"):
            house.back_up()
        for _ in range(3):
            house.root.topic("a").append(batch([b"y"], keys=[b"y"]))
        with pytest.raises(Corrupt):
            house.back_up()

    def test_only_some_topics(self) -> None:
        house = House()
        house.fill("a")
        house.fill("b")
        with pytest.raises(NotFound, match="topic 'c' does not exist"):
            house.back_up(topics=["c"])
        assert [item.topic for item in house.back_up(topics=["a"]).topics] == ["a"]
        assert list(contents(house.restore())) == ["a"]
        with pytest.raises(NotFound, match="no topic 'b' in backup 1"):
            house.restore(wanted=Wanted(topics=("b",)))
