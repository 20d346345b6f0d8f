"""Single interleavings of rewrites, log starts, configs and transactions with everything else, each by name."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence

import pytest

from sparklog.errors import BadRequest, Conflict
from sparklog.log.journal import documents
from sparklog.log.journal.names import append_path
from sparklog.log.state import commit_intents
from sparklog.log.state.commit import COMPACT, MERGE, Edit, Txn, TxnDecision
from sparklog.log.state.commit_intents import MaintainIntent
from sparklog.log.state.commit_log import CommitResult
from sparklog.log.state.rewrites import Input, Rewrite, RewriteIntent
from sparklog.log.state.slice_table import ABORTED, COMMITTED, OPEN, Snapshot
from sparklog.log.state.slices import FileSlices
from sparklog.log.topic.root import topic_of
from tests.log.simulation.watched_world import HookedProcess, WatchedWorld
from tests.support.maintaining import maintain


def merge(
    snapshot: Snapshot, process: HookedProcess, spans: Mapping[int, tuple[int, int]], op: str = MERGE
) -> RewriteIntent:
    """A rewrite of offsets `[start, end)` of some partitions, one output slice each, planned on a snapshot."""
    rewrites = []
    rows = snapshot.slices.all()
    for partition, (start, end) in spans.items():
        chosen = range(*rows.overlapping(partition, start, end).indices(len(rows)))
        inputs = [Input(rows.path(r), int(rows.position[r]), int(rows.base[r]), int(rows.end[r])) for r in chosen]
        rewrites.append(Rewrite(Edit(partition, start, end), tuple(inputs)))
    n = len(spans)
    path = append_path(snapshot.version, process.env.new_id())
    process.world.store.create(f"t/{path}", b"merged")
    file = FileSlices(
        path=path,
        size=10 * n + 5,
        footer_length=5,
        partition=tuple(spans),
        nbytes=(10,) * n,
        offsets=tuple(end - start for start, end in spans.values()),
        records=tuple(end - start for start, end in spans.values()),
        min_ts=(1,) * n,
        max_ts=(2,) * n,
        crc=(3,) * n,
        flags=(0,) * n,
        base=tuple(start for start, _ in spans.values()),
    )
    return RewriteIntent(op, snapshot.state.topic_id, tuple(rewrites), (file,))


def layout(world: WatchedWorld, partition: int) -> list[tuple[int, int]]:
    """Slices of a partition as the model has them, compared with what a new reader sees."""
    snapshot = world.process().topic().log.snapshot()
    rows = snapshot.slices.select(partition)
    found = list(zip(rows.base.tolist(), rows.end.tolist(), strict=True))
    assert found == [(s.base, s.end) for s in world.log.state.slices if s.partition == partition]
    return found


class TestEdits:
    """Four appends, each one file with a slice of both partitions: every file is shared."""

    @pytest.fixture
    def world(self) -> WatchedWorld:
        world = WatchedWorld()
        writer = world.process()
        for _ in range(4):
            writer.append({0: 2, 1: 3})
        return world

    def run(self, process: HookedProcess, intent: RewriteIntent) -> CommitResult:
        return process.root.engine.log("t").commit(intent)

    def test_two_rewrites_of_a_shared_file_in_different_partitions_stand(self, world: WatchedWorld) -> None:
        first, second = world.process(), world.process()
        plans = (
            merge(first.topic().log.snapshot(), first, {0: (0, 8)}),
            merge(second.topic().log.snapshot(), second, {1: (0, 12)}),
        )
        second.at("create:commit", lambda: self.run(first, plans[0]))
        assert self.run(second, plans[1]).dropped == ()
        assert layout(world, 0) == [(0, 8)]
        assert layout(world, 1) == [(0, 12)]

    def test_of_two_rewrites_of_one_range_the_second_is_dropped_and_the_rest_stands(self, world: WatchedWorld) -> None:
        first, second = world.process(), world.process()
        one = merge(first.topic().log.snapshot(), first, {0: (2, 8)})
        two = merge(second.topic().log.snapshot(), second, {0: (0, 4), 1: (0, 12)})
        second.at("create:commit", lambda: self.run(first, one))
        outcome = self.run(second, two)
        assert [edit.partition for edit in outcome.dropped] == [0]
        assert layout(world, 0) == [(0, 2), (2, 8)]
        assert layout(world, 1) == [(0, 12)]

    def test_appends_commute_with_rewrites(self, world: WatchedWorld) -> None:
        sealer = world.process()
        plan = merge(sealer.topic().log.snapshot(), sealer, {0: (0, 8)})
        sealer.at("create:commit", lambda: world.commits(3))
        assert self.run(sealer, plan).dropped == ()
        assert layout(world, 0) == [(0, 8), (8, 9), (9, 10), (10, 11)]

    @pytest.mark.parametrize(("start", "left"), [(2, [(0, 8)]), (3, [(0, 8)]), (8, [])])
    def test_a_rewrite_stands_over_inputs_that_the_log_start_passed(
        self, world: WatchedWorld, start: int, left: list[tuple[int, int]]
    ) -> None:
        sealer, admin = world.process(), world.process()
        plan = merge(sealer.topic().log.snapshot(), sealer, {0: (0, 8)})
        sealer.at("create:commit", lambda: admin.topic().delete_records({0: start}))
        assert self.run(sealer, plan).dropped == ()
        assert layout(world, 0) == left
        assert world.log.state.log_end == (8, 12)

    def test_a_compaction_of_a_topic_that_was_created_again_is_refused(self, world: WatchedWorld) -> None:
        sealer, admin = world.process(), world.process()
        plan = merge(sealer.topic().log.snapshot(), sealer, {0: (0, 8)}, COMPACT)

        def again() -> None:
            admin.root.delete_topic("t")
            admin.root.create_topic("t", partitions=2)

        sealer.at("create:commit", again)
        with pytest.raises(Conflict, match="recreated"):
            self.run(sealer, plan)
        assert world.log.state.slices == ()

    def test_a_rewrite_planned_below_the_floor_is_refused(self, world: WatchedWorld) -> None:
        sealer = world.process()
        plan = merge(sealer.topic().log.snapshot(), sealer, {0: (0, 8)})
        world.commits(3)
        maintain(world.process().topic(), floor=6)
        with pytest.raises(Conflict, match="retention floor"):
            self.run(sealer, plan)
        assert len(layout(world, 0)) == 7

    def test_append_retain_and_seal_commute_in_all_orders(self) -> None:
        """The result does not depend on the order in which three commits, planned at once, get their numbers."""
        results = set()
        for order in itertools.permutations(range(3)):
            world = WatchedWorld()
            writer = world.process()
            for _ in range(4):
                writer.append({0: 2})
            appender, retainer, sealer = world.process(), world.process(), world.process()
            target = appender.target()
            topic = retainer.topic()
            plan = merge(sealer.topic().log.snapshot(), sealer, {0: (2, 8)})
            steps: Sequence[Callable[[], object]] = (
                lambda a=appender, t=target: a.append({0: 5}, t),  # type: ignore[misc]
                lambda t=topic: t.delete_records({0: 5}),  # type: ignore[misc]
                lambda s=sealer, p=plan: self.run(s, p),  # type: ignore[misc]
            )
            for step in order:
                steps[step]()
            state = world.log.state
            results.add((tuple(layout(world, 0)), state.log_start, state.log_end))
        assert results == {(((2, 8), (8, 13)), (5, 0), (13, 0))}


class TestAdmin:
    def test_log_starts_are_a_maximum(self) -> None:
        world = WatchedWorld()
        world.process().append({0: 10})
        low, high = world.process(), world.process()
        low.topic()
        topic = topic_of(low.root, "t")
        low.at("create:commit", lambda: high.topic().delete_records({0: 7}))
        assert topic.delete_records({0: 3}) == {0: 7}
        assert world.log.state.log_start == (7, 0)

    def test_the_same_config_is_a_conflict_and_another_is_not(self) -> None:
        world = WatchedWorld()
        one, two = world.process(), world.process()
        topic = two.topic()
        two.at("create:commit", lambda: one.topic().alter(configs={"retention.ms": "1000000"}))
        with pytest.raises(Conflict, match=r"another process changed config retention.ms"):
            topic.alter(configs={"retention.ms": "2000000"})
        two.at("create:commit", lambda: one.topic().alter(configs={"segment.bytes": "1000000"}))
        topic.alter(configs={"retention.ms": "3000000"})
        assert dict(world.log.state.configs) == {"retention.ms": "3000000", "segment.bytes": "1000000"}

    def test_the_partition_count_is_a_conflict_and_appends_go_on(self) -> None:
        world = WatchedWorld()
        one, two, writer = world.process(), world.process(), world.process()
        topic, target = two.topic(), writer.target()
        two.at("create:commit", lambda: one.topic().alter(partitions=3))
        with pytest.raises(Conflict, match=r"another process changed the partitions"):
            topic.alter(partitions=4)
        assert writer.append({1: 2}, target).base == {1: 0}
        assert world.log.state.log_end == (0, 2, 0)

    def test_an_append_during_a_log_start_change(self) -> None:
        world = WatchedWorld()
        writer, admin = world.process(), world.process()
        writer.append({0: 4})
        target = writer.target()
        writer.at("create:commit", lambda: admin.topic().delete_records({0: -1}))
        assert writer.append({0: 2}, target).base == {0: 4}
        assert world.log.state.log_start == (4, 0)
        assert layout(world, 0) == [(4, 6)]


class TestTransactions:
    """The state function: what a decision names is committed, everything else of that number is aborted."""

    def prepare(self, process: HookedProcess, n: int, records: Mapping[int, int]) -> int:
        target = process.target()
        file = process.upload(target, records)
        return process.topic().log.commit_append([file], target, txn=Txn("tx", n)).version

    def statuses(self, world: WatchedWorld) -> list[int]:
        rows = world.process().topic().log.snapshot().slices.all()
        return rows.status.tolist()

    def test_a_late_marker_does_not_decide_the_next_transaction(self) -> None:
        world = WatchedWorld()
        owner, helper = world.process(), world.process()
        first = self.prepare(owner, 1, {0: 2})
        marker = MaintainIntent(owner.topic().log.state().topic_id, resolved=(TxnDecision("tx", 1, (first,)),))
        late = helper.topic()

        def owner_goes_on() -> None:
            owner.topic().log.commit(marker)
            self.prepare(owner, 2, {0: 3})

        helper.at("create:commit", owner_goes_on)
        assert late.log.commit(marker).commit is None, "what it wanted to say has been said"
        assert self.statuses(world) == [COMMITTED, OPEN]
        state = world.process().topic().log.state()
        assert (state.log_end[0], state.last_stable()[0]) == (5, 2)

    def test_a_zombie_slice_does_not_join_a_committed_transaction(self) -> None:
        world = WatchedWorld()
        owner, zombie = world.process(), world.process()
        named = self.prepare(owner, 1, {0: 2})
        self.prepare(zombie, 1, {0: 2})
        maintain(world.process().topic(), resolved=(TxnDecision("tx", 1, (named,)),))
        assert self.statuses(world) == [COMMITTED, ABORTED]
        assert world.process().topic().log.state().last_stable().tolist() == [4, 0]

    def test_the_last_stable_offset_stops_at_the_first_open_slice(self) -> None:
        world = WatchedWorld()
        writer = world.process()
        writer.append({0: 1, 1: 1})
        version = self.prepare(writer, 1, {0: 2})
        writer.append({0: 1, 1: 1})
        assert world.process().topic().log.state().last_stable().tolist() == [1, 2]
        world.commits(6)
        assert world.process().topic().log.state().last_stable().tolist() == [1, 2], "a checkpoint keeps what is open"
        maintain(world.process().topic(), resolved=(TxnDecision("tx", 1, ()),))
        assert world.process().topic().log.state().last_stable().tolist() == [10, 2]
        rows = world.process().topic().log.snapshot().slices.all()
        assert rows.status[rows.prepare_version == version].tolist() == [ABORTED]

    def test_retention_past_an_open_slice_forgets_it(self) -> None:
        world = WatchedWorld()
        writer = world.process()
        self.prepare(writer, 1, {0: 2})
        writer.append({0: 1})
        writer.topic().delete_records({0: 2})
        state = world.process().topic().log.state()
        assert state.open == ()
        assert state.last_stable().tolist() == [3, 0]

    def test_nothing_above_the_last_stable_offset_is_rewritten(self) -> None:
        world = WatchedWorld()
        writer = world.process()
        writer.append({0: 1})
        self.prepare(writer, 1, {0: 2})
        writer.append({0: 1})
        plan = merge(writer.topic().log.snapshot(), writer, {0: (0, 4)})
        with pytest.raises(BadRequest, match="above the last stable offset"):
            writer.topic().log.commit(plan)
        assert world.log.state.version == 3


class TestFeatures:
    def test_who_does_not_know_a_write_feature_neither_commits_nor_checkpoints(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        world = WatchedWorld()
        newer = world.process()
        with monkeypatch.context() as patch:
            patch.setattr(commit_intents, "KNOWN_WRITE_FEATURES", documents.KNOWN_READ_FEATURES | {"novel"})
            real = commit_intents.Draft.commit

            def novel(self: commit_intents.Draft, *args: object) -> object:
                from dataclasses import replace

                return replace(real(self, *args), write_features=("novel",))  # type: ignore[arg-type]

            patch.setattr(commit_intents.Draft, "commit", novel)
            newer.append({0: 1})
        older = world.process()
        with pytest.raises(BadRequest, match=r"novel.*upgrade sparklog"):
            older.append({0: 1})
        assert older.topic().log.snapshot().state.log_end.tolist() == [1, 0], "reading goes on"
        before = len(list(world.store.list("t/_log/checkpoints/")))
        topic = older.topic()
        topic.log.refresh()
        with pytest.raises(BadRequest, match="novel"):
            topic.log.write_checkpoint()
        assert len(list(world.store.list("t/_log/checkpoints/"))) == before

    def test_who_does_not_know_a_read_feature_refuses(self, monkeypatch: pytest.MonkeyPatch) -> None:
        world = WatchedWorld()
        newer = world.process()
        real = commit_intents.Draft.commit

        def novel(self: commit_intents.Draft, *args: object) -> object:
            from dataclasses import replace

            return replace(real(self, *args), read_features=("novel",))  # type: ignore[arg-type]

        with monkeypatch.context() as patch:
            patch.setattr(commit_intents.Draft, "commit", novel)
            patch.setattr(documents, "KNOWN_READ_FEATURES", documents.KNOWN_READ_FEATURES | {"novel"})
            newer.append({0: 1})
        with pytest.raises(BadRequest, match=r"novel.*upgrade sparklog"):
            world.process().topic()
