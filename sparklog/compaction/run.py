"""A compaction run over one topic or all topics of a root, which first seals, then merges, and then cleans.

Each step is planned from a fresh snapshot. The work items of a step run for all topics together, and each work item is
committed as soon as it is finished:

| event                                                  | reaction                                                    |
|--------------------------------------------------------|-------------------------------------------------------------|
| another run was faster: edits dropped, inputs deleted  | plan these partitions again, at most `MAX_RETRIES` times    |
| the same each time, and a file is missing              | report the partition as corrupt and leave it unchanged      |
| a work item fails (for example with `Corrupt`)         | report its partition, leave it unchanged, do the others     |
| the same, and the work item had several partitions     | find out which one fails, and do the others without it      |
| keyless records, and only a default asks to compact    | report the partition without cleaning it: see `clean_plan`  |
| the key map was full                                   | run another pass over the partition, while one is due       |
| the topic was deleted                                  | skip it                                                     |
| the topic's log cannot be read or committed to         | report the topic and continue with the others               |

Written files that no commit references are left to the vacuum.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

import numpy as np

from sparklog.compaction.backlog import compaction_backlog, explain, with_slices
from sparklog.compaction.clean_plan import plan_cleaning
from sparklog.compaction.clean_range import keyless_by_default
from sparklog.compaction.clean_work import CleanResult
from sparklog.compaction.merge_plan import plan_merges
from sparklog.compaction.seal_plan import plan_sealing
from sparklog.errors import BadRequest, Conflict, Corrupt, Fenced, NotFound, SparklogError
from sparklog.log.journal.names import file_key, topic_names
from sparklog.log.state.commit import COMPACT, MERGE, SEAL
from sparklog.log.state.rewrites import RewriteIntent
from sparklog.log.state.slice_table import Snapshot
from sparklog.log.topic.root import Root
from sparklog.log.topic.topic import Topic
from sparklog.maintenance.report import Backlog, Failure, Size, TopicReport
from sparklog.maintenance.throttle import throttled
from sparklog.maintenance.work_items import Runner, Settings, Work, WorkResult
from sparklog.storage.store import Store
from sparklog.transactions.completion import resolve_topic, visible_snapshot

MAX_RETRIES = 5
"""The maximum number of times that a partition is planned again because another run was faster."""

OnDone = Callable[[Work, "WorkResult | SparklogError"], None]
"""A function that is called for each work item after its commit, or with its error."""


@dataclass(frozen=True, slots=True)
class Plans:
    """The planners of the three steps, which tests replace."""

    seal: Callable[[Snapshot, Settings, bool], Sequence[Work]]
    merge: Callable[[Snapshot, Settings], Sequence[Work]]
    clean: Callable[[Snapshot, Settings], Sequence[Work]]


def _store(snapshot: Snapshot, settings: Settings) -> Store:
    return throttled(snapshot.store, settings.io_bytes_per_second)


PLANS = Plans(
    seal=lambda snapshot, settings, roll: plan_sealing(_store(snapshot, settings), snapshot, settings, roll=roll),
    merge=lambda snapshot, settings: plan_merges(_store(snapshot, settings), snapshot, settings),
    clean=lambda snapshot, settings: plan_cleaning(_store(snapshot, settings), snapshot, settings),
)


@dataclass(frozen=True, slots=True)
class CompactOptions:
    """Options of a compaction run."""

    topics: Sequence[str] = ()  # if empty, all topics
    seal_only: bool = False  # do not merge or clean
    roll: bool = False  # also seal the active segments
    dry_run: bool = False  # do not change anything, but report the plan with its reasons


def compact_root(
    root: Root,
    settings: Settings,
    runner: Runner,
    options: CompactOptions = CompactOptions(),
    on_done: OnDone | None = None,
    plans: Plans = PLANS,
) -> list[TopicReport]:
    """Seal, merge and clean topics. Each step is run for all topics together. Return one report per topic."""
    settings = settings.of_root(root)
    runs: list[_TopicRun] = []
    missing: list[TopicReport] = []
    # List all directories that may be topics, so that a topic that cannot be opened does not stop the other topics.
    for name in options.topics or sorted(topic_names(root.store)):
        try:
            if options.topics or root.engine.log(name).refresh().topic_state.exists:
                runs.append(_TopicRun(root.topic(name), settings, options.roll, plans))
        except SparklogError as error:
            missing.append(TopicReport(name, failures=(Failure.of(name, (), f"open {name}", error),)))
    _run_all(runs, runner, options, on_done)
    return sorted([*missing, *(run.report for run in runs)], key=lambda report: report.topic)


def _run_all(runs: Sequence[_TopicRun], runner: Runner, options: CompactOptions, on_done: OnDone | None) -> None:
    for run in runs:
        run.begin(options.dry_run)
    if options.dry_run:
        for run in runs:
            run.explain(options.seal_only)
        return
    by_topic = {run.name: run for run in runs}
    for step in (SEAL,) if options.seal_only else (SEAL, MERGE, COMPACT):
        for run in runs:
            run.expect_all()
        while works := _ordered(work for run in runs for work in run.plan(step)):
            for work, result in runner.run(works):
                shown = by_topic[work.topic].commit(work, result)
                if on_done is not None:
                    on_done(work, shown)
    for run in runs:
        run.end()


def _ordered(works: Iterable[Work]) -> list[Work]:
    """Sort work items by dirty ratio. Then come merges of inline records, and then the largest items, so that no large
    item runs last.
    """

    def key(work: Work) -> tuple[float, bool, int]:
        return -getattr(work, "ratio", 0.0), not getattr(work, "of_commits", False), -work.nbytes

    return sorted(works, key=key)


class _TopicRun:
    """A topic in a run: its partitions to plan, and the report of its work and failures."""

    def __init__(self, topic: Topic, settings: Settings, roll: bool, plans: Plans) -> None:
        self.name = topic.name
        self._topic = topic
        self._settings = settings
        self._roll = roll
        self._plans = plans
        self._started_ms = topic.root.env.boot_ms()
        self._topic_id = ""
        self._planned_on: Snapshot | None = None
        self._is_finished = False
        self._to_plan: set[int] | None = None
        """The partitions to plan in the next round of the step, or None for all partitions."""
        self._separate: set[int] = set()
        """The partitions to plan one by one, because a work item with several partitions failed."""
        self._excluded: set[int] = set()
        self._retries: dict[int, int] = {}
        self.report = TopicReport(topic.name)

    def begin(self, dry_run: bool) -> None:
        """Record decided transactions, because an open transaction blocks the work above it. Then read the topic."""
        try:
            if not dry_run:
                resolve_topic(self._topic)
            snapshot = self._topic.log.snapshot()
        except SparklogError as error:
            self._fail_topic(error)
            return
        self._topic_id = snapshot.state.topic_id
        self.report = replace(self.report, before=_sizes(snapshot))

    def expect_all(self) -> None:
        self._to_plan = None
        self._retries.clear()

    def plan(self, step: str) -> list[Work]:
        """Plan the next round of a step. The plan is empty if no work remains, or if the topic was deleted."""
        if self._is_finished or self._to_plan == set():
            return []
        lost = max((self._retries.get(partition, 0) for partition in self._to_plan or ()), default=0)
        if lost > 1:
            # Without random pauses, two synchronized runs could repeatedly replace each other's inputs.
            self._topic.root.env.pause(lost)
        try:
            snapshot = self._snapshot()
            if snapshot is None:
                return []
            self._planned_on = snapshot
            partitions = set(range(snapshot.state.partitions)) if self._to_plan is None else self._to_plan
            partitions -= self._excluded
            if step == COMPACT:
                partitions -= self._reject_keyless(snapshot, partitions)
            groups = [partitions - self._separate, *({partition} for partition in sorted(partitions & self._separate))]
            works = [work for group in groups if group for work in self._plan(step, _restricted(snapshot, group))]
        except SparklogError as error:
            self._fail_topic(error)
            return []
        self._to_plan = set()
        return works

    def commit(self, work: Work, result: WorkResult | SparklogError) -> WorkResult | SparklogError:
        """Commit the result of a work item, or handle its error. Return the result to report."""
        if self._is_finished:
            return NotFound(f"topic '{self.name}' is skipped, and the output of '{work.title}' is discarded")
        if isinstance(result, SparklogError):
            return self._handle_failure(work, result)
        if not result.rewrites:
            return result
        try:
            intent = RewriteIntent(work.op, work.topic_id, result.rewrites, result.files)
            dropped_edits = self._topic.log.commit(intent).dropped
        except (Conflict, NotFound) as error:
            return self._handle_failure(work, error)
        except SparklogError as error:
            self._record(work.partitions, f"commit of {work.title}", error)
            self._excluded.update(work.partitions)
            self._is_finished = self._is_finished or isinstance(error, (Corrupt, Fenced))
            return error
        partitions = {rewrite.edit.partition for rewrite in result.rewrites if rewrite.edit not in dropped_edits}
        reports = tuple(report for report in result.reports if report.partition in partitions)
        self.report = replace(self.report, work=(*self.report.work, *reports))
        if isinstance(result, CleanResult) and result.more:
            self._plan_again(self._advanced_partitions(result))
        if dropped_edits:
            lost = Conflict("another run has already rewritten the same slices")
            self._retry({edit.partition for edit in dropped_edits}, work.title, lost)
            if not reports:
                return lost
        return replace(result, reports=reports)

    def explain(self, seal_only: bool) -> None:
        if self._is_finished:
            return
        try:
            snapshot = visible_snapshot(self._topic)
            planned = explain(snapshot, self._settings, seal_only=seal_only, roll=self._roll)
        except SparklogError as error:
            self._fail_topic(error)
        else:
            self.report = replace(self.report, planned=tuple(planned))

    def end(self) -> None:
        backlog = Backlog()
        with suppress(SparklogError):
            backlog = compaction_backlog(self._topic.log.snapshot(refresh=False), self._settings)
        self.report = replace(
            self.report, seconds=(self._topic.root.env.boot_ms() - self._started_ms) / 1000, backlog=backlog
        )

    def _plan(self, step: str, snapshot: Snapshot) -> Sequence[Work]:
        if step == SEAL:
            return self._plans.seal(snapshot, self._settings, self._roll)
        return (self._plans.merge if step == MERGE else self._plans.clean)(snapshot, self._settings)

    def _reject_keyless(self, snapshot: Snapshot, partitions: set[int]) -> set[int]:
        reasons = keyless_by_default(snapshot, self._settings)
        rejected = partitions & reasons.keys()
        if rejected:
            self._excluded |= rejected
            self._record(rejected, f"{COMPACT} {self.name}", BadRequest(reasons[min(rejected)]))
        return rejected

    def _snapshot(self) -> Snapshot | None:
        """Return the latest state. If the topic was deleted, finish its run and return None."""
        try:
            snapshot = visible_snapshot(self._topic)
        except NotFound:
            snapshot = None
        if snapshot is None or snapshot.state.topic_id != self._topic_id:
            self._is_finished = True
            self.report = replace(self.report, notes=(*self.report.notes, "deleted during the run; no work remains"))
            return None
        return snapshot

    def _handle_failure(self, work: Work, error: SparklogError) -> SparklogError:
        if isinstance(error, (Conflict, NotFound)):
            try:
                snapshot = self._snapshot()
                if snapshot is not None:
                    self._retry(work.partitions, work.title, error, snapshot)
            except SparklogError as other:
                self._fail_topic(other)
            return error
        partitions = set(work.partitions)
        if len(partitions) == 1:
            self._record(partitions, work.title, error)
            self._excluded |= partitions
        else:
            self._separate |= self._damaged_partitions(error, partitions) or partitions
            self._plan_again(partitions)
        return error

    def _damaged_partitions(self, error: SparklogError, partitions: set[int]) -> set[int]:
        """Return the partitions with slices at the position of a `Corrupt` error, which are planned separately."""
        if not isinstance(error, Corrupt) or error.file is None or self._planned_on is None:
            return set()
        damaged = set()
        for part in self._planned_on.slices.parts():
            here = np.isin(part.partition, sorted(partitions))
            if error.position is not None:
                here &= (part.position <= error.position) & (error.position < part.position + part.size)
            for row in np.flatnonzero(here).tolist():
                if file_key(self.name, part.path(row)) == error.file:
                    damaged.add(int(part.partition[row]))
        return damaged

    def _retry(
        self, partitions: Iterable[int], title: str, error: Conflict | NotFound, latest: Snapshot | None = None
    ) -> None:
        """Plan partitions again, up to MAX_RETRIES times. Then report the error, or a missing file of `latest`."""
        for partition in partitions:
            self._retries[partition] = self._retries.get(partition, 0) + 1
            if self._retries[partition] <= MAX_RETRIES:
                self._plan_again((partition,))
            elif partition not in self._excluded:
                self._excluded.add(partition)
                given_up = type(error)(f"{error}; gave up after {MAX_RETRIES + 1} attempts")
                missing = None if latest is None else _missing(latest, partition)
                self._record((partition,), title, missing or given_up)

    def _plan_again(self, partitions: Iterable[int]) -> None:
        self._to_plan = {*(self._to_plan or ()), *partitions}

    def _advanced_partitions(self, result: WorkResult) -> set[int]:
        """Return the partitions whose pass made progress. Repeating the other partitions would never end."""
        before = self._planned_on.state.first_dirty_offset if self._planned_on is not None else ()
        edits = [rewrite.edit for rewrite in result.rewrites]
        return {edit.partition for edit in edits if (edit.first_dirty_offset or 0) > before[edit.partition]}

    def _record(self, partitions: Iterable[int], title: str, error: SparklogError) -> None:
        failure = Failure.of(self.name, sorted(partitions), title, error)
        self.report = replace(self.report, failures=(*self.report.failures, failure))

    def _fail_topic(self, error: SparklogError) -> None:
        self._is_finished = True
        self._record((), f"read {self.name}", error)


def _missing(snapshot: Snapshot, partition: int) -> Corrupt | None:
    """Return an error for the first missing file of a partition that is referenced by the latest state."""
    slices = snapshot.slices.select(partition)
    for row in range(len(slices)):
        key = file_key(snapshot.topic, slices.path(row))
        if snapshot.store.stat(key) is None:
            return Corrupt(
                f"version {snapshot.version} of topic '{snapshot.topic}' refers to a missing file: restore the file "
                "from a backup, or move the log start beyond the file (delete-records)",
                file=key,
                offset=int(slices.base[row]),
            )
    return None


def _sizes(snapshot: Snapshot) -> Mapping[int, Size]:
    rows, partitions = snapshot.slices.all(), snapshot.state.partitions
    records = np.bincount(rows.partition, rows.records, partitions).astype(np.int64).tolist()
    nbytes = np.bincount(rows.partition, rows.size, partitions).astype(np.int64).tolist()
    return {partition: Size(*counts) for partition, counts in enumerate(zip(records, nbytes, strict=True))}


def _restricted(snapshot: Snapshot, partitions: set[int]) -> Snapshot:
    if len(partitions) == snapshot.state.partitions:
        return snapshot
    selected = np.array(sorted(partitions))
    parts = (part[np.isin(part.partition, selected)] for part in snapshot.slices.parts())
    return with_slices(snapshot, [part for part in parts if len(part)])
