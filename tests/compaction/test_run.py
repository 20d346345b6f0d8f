"""A compaction run with planners of the test: commits, repeated plans and reports."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import pytest

from sparklog.compaction.clean_work import CleanResult
from sparklog.compaction.run import MAX_RETRIES, CompactOptions, Plans, compact_root
from sparklog.errors import Conflict, Corrupt, Fenced, NotFound, SparklogError, Unavailable
from sparklog.log.journal.names import commit_key, file_key, sealed_path
from sparklog.log.state.commit import COMPACT, MERGE, SEAL, Edit
from sparklog.log.state.rewrites import Input, Rewrite, RewriteIntent
from sparklog.log.state.slice_table import Snapshot
from sparklog.log.state.slices import FileSlices
from sparklog.log.topic.root import Root
from sparklog.log.topic.topic import Topic
from sparklog.maintenance.report import Size
from sparklog.maintenance.work_items import InProcess, Progress, Settings, Work, WorkReport, WorkResult, silent
from sparklog.storage.memory import MemoryStore
from sparklog.testing.world import START_MS, World
from tests.log.topics import append
from tests.support.compaction import compact_topic
from tests.support.maintaining import maintain

SETTINGS = Settings(START_MS)
Hook = Callable[["Fake"], None]


@dataclass(frozen=True)
class Fake:
    """A work item that joins all slices of some partitions in one edit each. `hook` is called during the run, and may
    raise.
    """

    op: str
    snapshot: Snapshot
    partitions: tuple[int, ...]
    hook: Hook
    ratio: float = 0.0
    first_dirty_offset: int | None = None
    more: bool = False

    @property
    def topic(self) -> str:
        return self.snapshot.topic

    @property
    def topic_id(self) -> str:
        return self.snapshot.state.topic_id

    @property
    def title(self) -> str:
        return f"{self.op} {self.topic}-{','.join(map(str, self.partitions))}"

    @property
    def nbytes(self) -> int:
        return 100 * len(self.partitions)

    def run(self, progress: Progress = silent) -> WorkResult:
        self.hook(self)
        rewrites, files, reports = [], [], []
        for partition in self.partitions:
            rewrite, file, report = self._joined(partition)
            rewrites.append(rewrite)
            files.append(file)
            reports.append(report)
        return CleanResult(tuple(rewrites), tuple(files), tuple(reports), self.more)

    def _joined(self, partition: int) -> tuple[Rewrite, FileSlices, WorkReport]:
        found = self.snapshot.slices.select(partition)
        inputs = tuple(
            Input(found.path(row), int(found.position[row]), int(found.base[row]), int(found.end[row]))
            for row in range(len(found))
        )
        start, end, records = int(found.base[0]), int(found.end[-1]), int(found.records.sum())
        path = sealed_path(partition, self.snapshot.version, f"{self.op}{self.snapshot.version}", start)
        file = FileSlices(
            *(path, 500, 0, (partition,), (500,), (end - start,), (records,), (1,), (2,), (9,), (0,)), base=(start,)
        )
        report = WorkReport(self.op, self.topic, partition, records, records, int(found.size.sum()), 500, seconds=1.0)
        if self.op == COMPACT:
            report = replace(report, dirty_ratio=0.5)
        return Rewrite(Edit(partition, start, end, self.first_dirty_offset), inputs), file, report


def nothing(*given: object) -> Sequence[Work]:
    return ()


@dataclass
class Merger:
    """A planner that plans one work item over all partitions with several slices, and records the partitions."""

    hook: Hook = field(default=lambda work: None)
    packed: bool = True
    planned: list[tuple[int, ...]] = field(default_factory=list)

    def __call__(self, snapshot: Snapshot, settings: Settings) -> list[Fake]:
        many = tuple(p for p in range(snapshot.state.partitions) if len(snapshot.slices.select(p)) > 1)
        if not many:
            return []
        self.planned.append(many)
        groups = [many] if self.packed else [(partition,) for partition in many]
        return [Fake(MERGE, snapshot, group, self.hook) for group in groups]

    def plans(self) -> Plans:
        return Plans(nothing, self, nothing)


def place(partitions: int = 3, name: str = "t") -> tuple[World, Root, Topic]:
    world = World()
    root = world.root()
    return world, root, filled(root, name, partitions)


def filled(root: Root, name: str, partitions: int = 3) -> Topic:
    topic = root.create_topic(name, partitions=partitions)
    for n in range(2):
        append(topic, *((partition, 5) for partition in range(partitions)), name=f"{name}{n}")
    return topic


def slices_of(topic: Topic) -> list[int]:
    snapshot = topic.log.snapshot()
    return [len(snapshot.slices.select(partition)) for partition in range(snapshot.state.partitions)]


def once(hook: Hook) -> Hook:
    """Return a hook that acts only the first time."""
    left = [hook]

    def act(work: Fake) -> None:
        if left:
            left.pop()(work)

    return act


def rewritten_by_another(work: Fake, *partitions: int) -> None:
    """Merge these partitions before the run commits."""
    snapshot = replace(work.snapshot)
    done = Fake(SEAL, snapshot, partitions or work.partitions, lambda work: None).run()
    other = World(seed=99).root(work.snapshot.store).topic(work.topic)
    outcome = other.log.commit(RewriteIntent(SEAL, work.topic_id, done.rewrites, done.files))
    assert outcome.commit is not None
    assert not outcome.dropped


def test_work_items_are_committed_in_the_order_seal_merge_clean() -> None:
    _, _, topic = place(2)
    before = topic.log.state().version
    shown: list[str] = []
    done: set[str] = set()

    def step(op: str) -> Callable[..., list[Fake]]:
        def plan(snapshot: Snapshot, *rest: object) -> list[Fake]:
            if op in done:
                return []
            done.add(op)
            return [
                Fake(op, snapshot, (p,), lambda work: None, first_dirty_offset=5 if op == COMPACT else None)
                for p in (0, 1)
            ]

        return plan

    plans = Plans(step(SEAL), step(MERGE), step(COMPACT))
    report = compact_topic(topic, SETTINGS, InProcess(), plans=plans, on_done=lambda work, _: shown.append(work.title))
    assert shown == ["seal t-0", "seal t-1", "merge t-0", "merge t-1", "compact t-0", "compact t-1"]
    state = topic.log.state()
    assert state.version == before + 6
    assert state.first_dirty_offset.tolist() == [5, 5]
    assert report.before == {0: Size(10, 200), 1: Size(10, 200)}
    first, second = report.totals()
    assert first.actions == second.actions == {"seal": 1, "merge": 1, "compact": 1}
    assert (first.records_after, first.bytes_after) == (10, 500)
    assert not report.failed


def test_seal_only_and_roll_are_passed_on() -> None:
    _, _, topic = place(1)
    rolled: list[bool] = []

    def seal(snapshot: Snapshot, settings: Settings, roll: bool) -> list[Work]:
        rolled.append(roll)
        return []

    merger = Merger()
    compact_topic(
        topic, SETTINGS, InProcess(), CompactOptions(seal_only=True, roll=True), plans=Plans(seal, merger, merger)
    )
    assert rolled == [True]
    assert merger.planned == []


def test_a_conflicting_edit_is_planned_again() -> None:
    _, _, topic = place()
    merger = Merger(once(lambda work: rewritten_by_another(work, 1)))
    shown: list[WorkResult | SparklogError] = []
    report = compact_topic(
        topic, SETTINGS, InProcess(), plans=merger.plans(), on_done=lambda work, result: shown.append(result)
    )
    assert slices_of(topic) == [1, 1, 1]
    assert merger.planned == [(0, 1, 2)], "planned again, partition 1 has nothing left to do"
    assert not report.failed
    assert [total.partition for total in report.totals()] == [0, 2]
    (done,) = shown
    assert isinstance(done, WorkResult)
    assert [piece.partition for piece in done.reports] == [0, 2]


def test_only_conflicting_partitions_are_planned_again() -> None:
    _, _, topic = place()

    def race(work: Fake) -> None:
        rewritten_by_another(work, 1)
        append(topic, (0, 1), (1, 1), name="later")

    merger = Merger(once(race))
    report = compact_topic(topic, SETTINGS, InProcess(), plans=merger.plans())
    assert merger.planned == [(0, 1, 2), (1,)]
    assert slices_of(topic) == [2, 1, 1]
    assert not report.failed


def test_repeated_conflicts_are_reported_after_max_retries() -> None:
    world, _, topic = place(2)
    count = [0]

    def race(work: Fake) -> None:
        if 1 in work.partitions:
            count[0] += 1
            rewritten_by_another(work, 1)
            append(topic, (1, 1), name=f"more{count[0]}")

    merger = Merger(race)
    shown: list[WorkResult | SparklogError] = []
    report = compact_topic(
        topic, SETTINGS, InProcess(), plans=merger.plans(), on_done=lambda work, result: shown.append(result)
    )
    assert count[0] == MAX_RETRIES + 1
    assert [isinstance(result, Conflict) for result in shown] == [False, *[True] * MAX_RETRIES], (
        "0 was done in the first"
    )
    assert len(world.slept) == MAX_RETRIES - 1, "not after the first loss, which is chance"
    (failure,) = report.failures
    assert (failure.partitions, failure.code) == ((1,), "SPARKLOG_CONFLICT")
    assert (
        failure.message
        == f"another run has already rewritten the same slices; gave up after {MAX_RETRIES + 1} attempts"
    )
    assert slices_of(topic) == [1, 2]


def test_a_partition_with_two_conflicts_is_reported_once() -> None:
    _, _, topic = place(1)

    def gone(work: Fake) -> None:
        raise NotFound("no such file")

    def merge(snapshot: Snapshot, settings: Settings) -> list[Fake]:
        return [Fake(MERGE, snapshot, (0,), gone), Fake(MERGE, snapshot, (0,), gone)]

    report = compact_topic(topic, SETTINGS, InProcess(), plans=Plans(nothing, merge, nothing))
    assert [failure.partitions for failure in report.failures] == [(0,)]


def test_each_step_has_its_own_retries() -> None:
    _, _, topic = place(1)
    left = {SEAL: MAX_RETRIES, MERGE: MAX_RETRIES}

    def step(op: str) -> Callable[..., list[Fake]]:
        def hook(work: Fake) -> None:
            if left[op]:
                left[op] -= 1
                raise NotFound("no such file")

        return lambda snapshot, *rest: [Fake(op, snapshot, (0,), hook)]

    report = compact_topic(topic, SETTINGS, InProcess(), plans=Plans(step(SEAL), step(MERGE), nothing))
    assert report.totals()[0].actions == {SEAL: 1, MERGE: 1}
    assert not report.failed


def test_deleted_inputs_are_planned_again() -> None:
    _, _, topic = place(1)

    def gone(work: Fake) -> None:
        raise NotFound("no such file")

    report = compact_topic(topic, SETTINGS, InProcess(), plans=Merger(once(gone)).plans())
    assert slices_of(topic) == [1]
    assert not report.failed
    append(topic, (0, 1), name="more")
    keys = [
        file_key("t", rows.path(row)) for rows in [topic.log.snapshot().slices.select(0)] for row in range(len(rows))
    ]
    for key in keys:
        topic.store.create(key, b"")
    report = compact_topic(topic, SETTINGS, InProcess(), plans=Merger(gone).plans())
    (failure,) = report.failures
    assert (failure.partitions, failure.code) == ((0,), "SPARKLOG_NOT_FOUND")
    assert failure.message.startswith("no such file; gave up")


def test_a_missing_file_is_damage_and_not_a_conflict() -> None:
    _, _, topic = place(1)
    rows = topic.log.snapshot().slices.select(0)
    topic.store.create(file_key("t", rows.path(0)), b"")

    def gone(work: Fake) -> None:
        raise Conflict("replaced meanwhile; plan again")

    report = compact_topic(topic, SETTINGS, InProcess(), plans=Merger(gone).plans())
    (failure,) = report.failures
    assert (failure.partitions, failure.code) == ((0,), "SPARKLOG_CORRUPT")
    assert file_key("t", rows.path(1)) in failure.message
    assert "offset 5" in failure.message


def corrupt_in(partition: int, *, named: bool) -> Hook:
    def hook(work: Fake) -> None:
        if partition in work.partitions:
            found = work.snapshot.slices.select(partition)
            place = {"file": f"{work.topic}/{found.path(1)}", "position": int(found.position[1]) + 7} if named else {}
            raise Corrupt("bad CRC", **place)  # type: ignore[arg-type]

    return hook


@pytest.mark.parametrize("named", [True, False])
def test_a_corrupt_partition_is_reported_and_others_are_processed(named: bool) -> None:
    _, _, topic = place(4)
    merger = Merger(corrupt_in(2, named=named))
    report = compact_topic(topic, SETTINGS, InProcess(), plans=merger.plans())
    assert slices_of(topic) == [1, 1, 2, 1]
    (failure,) = report.failures
    assert (failure.partitions, failure.code, failure.title) == ((2,), "SPARKLOG_CORRUPT", "merge t-2")
    # If the error contains the partition, the other partitions are still processed together.
    assert merger.planned == [(0, 1, 2, 3), *([(0, 1, 3), (2,)] if named else [(0,), (1,), (2,), (3,)])]
    assert [(total.partition, total.failed) for total in report.totals()] == [
        *((0, False), (1, False), (2, True), (3, False))
    ]


def test_an_error_with_a_wrong_partition_does_not_skip_intact_partitions() -> None:
    _, _, topic = place(3)
    wrong = corrupt_in(0, named=True)

    def hook(work: Fake) -> None:
        if 2 in work.partitions:
            if 0 in work.partitions:
                wrong(work)
            raise Corrupt("bad CRC", file="t/append/of-nobody")

    report = compact_topic(topic, SETTINGS, InProcess(), plans=Merger(hook).plans())
    assert slices_of(topic) == [1, 1, 2]
    assert [failure.partitions for failure in report.failures] == [(2,)]


def test_a_failed_partition_is_skipped_by_later_steps() -> None:
    _, _, topic = place(2)
    seal = Merger(corrupt_in(0, named=True))
    merge = Merger()
    compact_topic(topic, SETTINGS, InProcess(), plans=Plans(lambda s, t, roll: seal(s, t), merge, nothing))
    assert slices_of(topic) == [2, 1]
    assert merge.planned == []


def test_a_topic_deleted_during_a_run_is_skipped() -> None:
    _, root, topic = place()
    other = filled(root, "u")

    def delete(work: Fake) -> None:
        if work.topic == "t":
            World(seed=50).root(root.store).delete_topic("t")

    reports = compact_root(root, SETTINGS, InProcess(), plans=Merger(delete).plans())
    assert [(report.topic, report.failed, report.notes) for report in reports] == [
        ("t", False, ("deleted during the run; no work remains",)),
        ("u", False, ()),
    ]
    assert slices_of(other) == [1, 1, 1]
    assert not topic.root.engine.log("t").refresh().topic_state.exists


def test_a_topic_recreated_during_a_run_is_not_changed() -> None:
    _, root, _ = place()

    def again(work: Fake) -> None:
        elsewhere = World(seed=51).root(root.store)
        elsewhere.delete_topic("t")
        filled(elsewhere, "t", 1)

    (report,) = compact_root(root, SETTINGS, InProcess(), plans=Merger(again).plans())
    assert report.notes == ("deleted during the run; no work remains",)
    assert not report.failed
    assert slices_of(root.topic("t")) == [2]


def test_files_below_the_retention_floor_are_written_again() -> None:
    _, _, topic = place(1)

    def vacuum(work: Fake) -> None:
        append(topic, (0, 1), name="newer")
        maintain(topic, floor=topic.log.state().version)

    merger = Merger(once(vacuum))
    report = compact_topic(topic, SETTINGS, InProcess(), plans=merger.plans())
    assert merger.planned == [(0,), (0,)]
    assert slices_of(topic) == [1]
    assert not report.failed


@pytest.mark.parametrize(("error", "over"), [(Fenced, True), (Corrupt, True), (Unavailable, False)])
def test_a_failed_commit_is_reported_and_other_topics_continue(
    error: Callable[[str], SparklogError], over: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, root, topic = place(2)
    other = filled(root, "u", 2)
    commit = topic.log.commit
    tried = []

    def fails(intent: RewriteIntent) -> object:
        tried.append(intent)
        if len(tried) == 1:
            raise error("the commit failed")
        return commit(intent)

    monkeypatch.setattr(topic.log, "commit", fails)
    reports = compact_root(root, SETTINGS, InProcess(), plans=Merger(packed=False).plans())
    assert [(failure.partitions, failure.message) for failure in reports[0].failures] == [((0,), "the commit failed")]
    assert slices_of(topic) == [2, 2 if over else 1]
    assert slices_of(other) == [1, 1]


def test_an_unknown_commit_result_is_not_guessed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A commit with an unknown result may have succeeded, so the rest of the run skips that partition."""
    _, _, topic = place(2)
    commit = topic.log.commit

    def unknown(intent: RewriteIntent) -> object:
        outcome = commit(intent)
        if intent.rewrites[0].edit.partition == 0:
            raise Unavailable("the outcome is unknown")
        return outcome

    monkeypatch.setattr(topic.log, "commit", unknown)
    seal = Merger(packed=False)
    planned: list[list[int]] = []

    def merge(snapshot: Snapshot, settings: Settings) -> list[Work]:
        planned.append([p for p in range(2) if len(snapshot.slices.select(p))])
        return []

    report = compact_topic(topic, SETTINGS, InProcess(), plans=Plans(lambda s, t, roll: seal(s, t), merge, nothing))
    assert planned == [[1]]
    assert [failure.partitions for failure in report.failures] == [(0,)]


def passes(through: Sequence[int]) -> Plans:
    """A work item that cleans partition 0 once for each offset, and reports each time that the map was full."""
    left = list(through)

    def clean(snapshot: Snapshot, settings: Settings) -> list[Fake]:
        return (
            [Fake(COMPACT, snapshot, (0,), lambda work: None, first_dirty_offset=left.pop(0), more=True)]
            if left
            else []
        )

    return Plans(nothing, nothing, clean)


def test_a_full_map_is_followed_by_another_pass_while_passes_progress() -> None:
    _, _, topic = place(1)
    report = compact_topic(topic, SETTINGS, InProcess(), plans=passes((3, 6, 9)))
    assert topic.log.state().first_dirty_offset.tolist() == [9]
    assert report.totals()[0].actions == {"compact": 3}
    report = compact_topic(topic, SETTINGS, InProcess(), plans=passes((9, 10)))
    assert report.totals()[0].actions == {"compact": 1}, "it took in nothing: once more would be once more for ever"


def test_a_run_without_work_commits_nothing() -> None:
    _, _, topic = place(1)
    version = topic.log.state().version
    assert compact_topic(topic, SETTINGS, InProcess(), plans=Plans(nothing, nothing, nothing)).totals() == []

    @dataclass(frozen=True)
    class Idle(Fake):
        def run(self, progress: Progress = silent) -> WorkResult:
            return WorkResult((), (), ())

    def clean(snapshot: Snapshot, settings: Settings) -> list[Fake]:
        return [Idle(COMPACT, snapshot, (0,), lambda work: None)]

    report = compact_topic(topic, SETTINGS, InProcess(), plans=Plans(nothing, nothing, clean))
    assert report.totals() == []
    assert topic.log.state().version == version


class Recording(InProcess):
    """A runner that records the work items that are run together."""

    def __init__(self) -> None:
        super().__init__()
        self.batches: list[list[str]] = []

    def run(self, works: Sequence[Work]) -> Iterator[tuple[Work, WorkResult | SparklogError]]:
        self.batches.append([work.title for work in works])
        return super().run(works)


def test_work_items_of_all_topics_run_dirtiest_first() -> None:
    _, root, _ = place(2)
    filled(root, "u", 2)
    ratios = {("t", 0): 0.6, ("t", 1): 0.9, ("u", 0): 0.95, ("u", 1): 0.7}

    def clean(snapshot: Snapshot, settings: Settings) -> list[Fake]:
        if snapshot.state.first_dirty_offset.any():
            return []
        return [
            Fake(COMPACT, snapshot, (p,), lambda work: None, ratios[snapshot.topic, p], first_dirty_offset=1)
            for p in (0, 1)
        ]

    runner = Recording()
    compact_root(root, SETTINGS, runner, plans=Plans(nothing, nothing, clean))
    assert runner.batches == [["compact u-0", "compact t-1", "compact u-1", "compact t-0"]]


def test_topics_are_the_given_topics_or_all() -> None:
    _, root, topic = place(1)
    other = filled(root, "u", 1)
    filled(root, "gone").delete()
    (report,) = compact_root(root, SETTINGS, InProcess(), CompactOptions(topics=("u",)), plans=Merger().plans())
    assert report.topic == "u"
    assert (slices_of(topic), slices_of(other)) == ([2], [1])
    assert [report.topic for report in compact_root(root, SETTINGS, InProcess(), plans=Merger().plans())] == ["t", "u"]
    assert slices_of(topic) == [1]


def test_a_root_without_topics_has_no_reports() -> None:
    world = World()
    assert compact_root(world.root(), SETTINGS, InProcess(), plans=Merger().plans()) == []


def test_a_missing_topic_is_reported_and_others_are_processed() -> None:
    _, root, topic = place(1, "orders")
    reports = compact_root(
        root, SETTINGS, InProcess(), CompactOptions(topics=("order", "orders")), plans=Merger().plans()
    )
    assert [(report.topic, report.failed) for report in reports] == [("order", True), ("orders", False)]
    assert "did you mean 'orders'?" in reports[0].failures[0].message
    assert slices_of(topic) == [1]


def test_an_unreadable_topic_is_reported_and_others_are_processed() -> None:
    _, root, topic = place(1)
    filled(root, "broken", 1)
    store = root.store
    assert isinstance(store, MemoryStore)
    store.delete(commit_key("broken", 1))
    store.create(commit_key("broken", 1), b"{}")
    fresh = World(seed=60).root(store)
    reports = compact_root(fresh, SETTINGS, InProcess(), plans=Merger().plans())
    assert [(report.topic, report.failed) for report in reports] == [("broken", True), ("t", False)]
    assert reports[0].failures[0].code == "SPARKLOG_CORRUPT"
    assert slices_of(topic) == [1]


def test_a_failing_planner_stops_only_its_topic() -> None:
    _, root, topic = place(1)
    filled(root, "u", 1)
    merger = Merger()

    def merge(snapshot: Snapshot, settings: Settings) -> Sequence[Work]:
        if snapshot.topic == "u":
            raise Conflict("cannot be planned")
        return merger(snapshot, settings)

    reports = compact_root(root, SETTINGS, InProcess(), plans=Plans(nothing, merge, nothing))
    assert [(report.topic, report.failed) for report in reports] == [("t", False), ("u", True)]
    assert slices_of(topic) == [1]
