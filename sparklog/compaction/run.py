"""A run of compaction: seal, then merge, then clean, over one topic or all of a root.

Each step is planned from a fresh snapshot, its pieces run over all topics, each is committed as it is finished:

| what happens                                        | what the run does                                              |
|-----------------------------------------------------|----------------------------------------------------------------|
| another run was faster: edits dropped, inputs gone  | plans these partitions again, at most `TRIES` times            |
| ... each time, and a file is missing                | reports the partition as corrupt, leaves it as it was          |
| a piece fails (`Corrupt` and the like)              | reports its partition, leaves it as it was, does the others    |
| ... and it held several partitions                  | finds out which one, does the others without it                |
| records without a key, compacted by a default only  | reports the partition, does not clean it: see `clean_plan`     |
| the map of keys was full                            | another pass over the partition, as long as one is due         |
| the topic was deleted                               | leaves it                                                      |
| the topic's log cannot be read or committed to      | reports the topic, goes on with the others                     |

Written files that no commit names are orphans; the vacuum removes them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

import numpy as np

from sparklog.compaction.backlog import compaction_backlog, explain, with_slices
from sparklog.compaction.clean_plan import keyless_by_default, plan_cleaning
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

TRIES = 5
"""How often a partition is planned again because another run was faster."""

OnDone = Callable[[Work, "WorkResult | SparklogError"], None]
"""Called for each piece of work after its commit, or with the error that it ended with."""


@dataclass(frozen=True, slots=True)
class Plans:
    """The planners of a run's steps."""

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

    topics: Sequence[str] = ()  # none given: all
    seal_only: bool = False  # neither merge nor clean
    roll: bool = False  # seal the active segments, too
    dry_run: bool = False  # change nothing; the report's `planned` has the plan with reasons


def compact_root(
    root: Root,
    settings: Settings,
    runner: Runner,
    options: CompactOptions = CompactOptions(),
    on_done: OnDone | None = None,
    plans: Plans = PLANS,
) -> list[TopicReport]:
    """Seal, merge and clean topics, each step over all topics at once; return one report each."""
    settings = settings.of_root(root)
    runs: list[_TopicRun] = []
    missing: list[TopicReport] = []
    # All folders that may be topics: one that cannot be opened must not stop the others.
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
                shown = by_topic[work.topic].settle(work, result)
                if on_done is not None:
                    on_done(work, shown)
    for run in runs:
        run.end()


def _ordered(works: Iterable[Work]) -> list[Work]:
    """Sort by dirty ratio, then largest first, so that none is left for the end; merges of commits before others."""

    def key(work: Work) -> tuple[float, bool, int]:
        return -getattr(work, "ratio", 0.0), not getattr(work, "of_commits", False), -work.nbytes

    return sorted(works, key=key)


class _TopicRun:
    """One topic in a run: partitions still to be planned, work done, failures."""

    def __init__(self, topic: Topic, settings: Settings, roll: bool, plans: Plans) -> None:
        self.name = topic.name
        self._topic = topic
        self._settings = settings
        self._roll = roll
        self._plans = plans
        self._begun = topic.root.env.boot_ms()
        self._topic_id = ""
        self._planned_on: Snapshot | None = None
        self._over = False
        self._left: set[int] | None = None
        """Partitions to plan in the next round; None: all."""
        self._alone: set[int] = set()
        """Partitions to plan each by itself: a piece that held them and others failed."""
        self._excluded: set[int] = set()
        self._tries: dict[int, int] = {}
        self.report = TopicReport(topic.name)

    def begin(self, dry_run: bool) -> None:
        """Read the topic, after recording decided transactions: nothing is done above an open one."""
        try:
            if not dry_run:
                resolve_topic(self._topic)
            snapshot = self._topic.log.snapshot()
        except SparklogError as error:
            self._stop(error)
            return
        self._topic_id = snapshot.state.topic_id
        self.report = replace(self.report, before=_sizes(snapshot))

    def expect_all(self) -> None:
        self._left = None
        self._tries.clear()

    def plan(self, step: str) -> list[Work]:
        """Plan the next round of a step; empty if nothing is left to do, or the topic is gone."""
        if self._over or self._left == set():
            return []
        lost = max((self._tries.get(partition, 0) for partition in self._left or ()), default=0)
        if lost > 1:
            # Two runs in step would keep replacing each other's inputs.
            env = self._topic.root.env
            env.pause(lost)
        try:
            snapshot = self._snapshot()
            if snapshot is None:
                return []
            self._planned_on = snapshot
            wanted = set(range(snapshot.state.partitions)) if self._left is None else self._left
            wanted -= self._excluded
            if step == COMPACT:
                wanted -= self._keyless(snapshot, wanted)
            groups = [wanted - self._alone, *({partition} for partition in sorted(wanted & self._alone))]
            works = [work for group in groups if group for work in self._plan(step, _restricted(snapshot, group))]
        except SparklogError as error:
            self._stop(error)
            return []
        self._left = set()
        return works

    def settle(self, work: Work, result: WorkResult | SparklogError) -> WorkResult | SparklogError:
        """Commit the result of a work item, or handle its error; return what to show for it."""
        if self._over:
            return NotFound(f"topic '{self.name}' is done with; what '{work.title}' wrote is not used")
        if isinstance(result, SparklogError):
            return self._failed(work, result)
        if not result.rewrites:
            return result
        try:
            outcome = self._topic.log.commit(RewriteIntent(work.op, work.topic_id, result.rewrites, result.files))
        except (Conflict, NotFound) as error:
            return self._failed(work, error)
        except SparklogError as error:
            self._record(work.partitions, f"commit of {work.title}", error)
            self._excluded.update(work.partitions)
            self._over = self._over or isinstance(error, (Corrupt, Fenced))
            return error
        dropped = {edit.partition for edit in outcome.dropped}
        stood = {rewrite.edit.partition for rewrite in result.rewrites if rewrite.edit not in outcome.dropped}
        kept = tuple(report for report in result.reports if report.partition in stood)
        self.report = replace(self.report, work=(*self.report.work, *kept))
        if isinstance(result, CleanResult) and result.more:
            self._plan_again(self._got_further(result))
        if dropped:
            lost = Conflict("another run rewrote the same slices first")
            self._retry(dropped, work.title, lost)
            if not kept:
                return lost
        return replace(result, reports=kept)

    def explain(self, seal_only: bool) -> None:
        if self._over:
            return
        try:
            snapshot = visible_snapshot(self._topic)
            planned = explain(snapshot, self._settings, seal_only=seal_only, roll=self._roll)
        except SparklogError as error:
            self._stop(error)
        else:
            self.report = replace(self.report, planned=tuple(planned))

    def end(self) -> None:
        backlog = Backlog()
        with suppress(SparklogError):
            backlog = compaction_backlog(self._topic.log.snapshot(refresh=False), self._settings)
        self.report = replace(
            self.report, seconds=(self._topic.root.env.boot_ms() - self._begun) / 1000, backlog=backlog
        )

    def _plan(self, step: str, snapshot: Snapshot) -> Sequence[Work]:
        if step == SEAL:
            return self._plans.seal(snapshot, self._settings, self._roll)
        return (self._plans.merge if step == MERGE else self._plans.clean)(snapshot, self._settings)

    def _keyless(self, snapshot: Snapshot, partitions: set[int]) -> set[int]:
        left = keyless_by_default(snapshot, self._settings)
        kept = partitions & left.keys()
        if kept:
            self._excluded |= kept
            self._record(kept, f"{COMPACT} {self.name}", BadRequest(left[min(kept)]))
        return kept

    def _snapshot(self) -> Snapshot | None:
        """Return the newest state; None, and end this topic's run, if it is gone."""
        try:
            snapshot = visible_snapshot(self._topic)
        except NotFound:
            snapshot = None
        if snapshot is None or snapshot.state.topic_id != self._topic_id:
            self._over = True
            self.report = replace(self.report, notes=(*self.report.notes, "deleted meanwhile, nothing left to do"))
            return None
        return snapshot

    def _failed(self, work: Work, error: SparklogError) -> SparklogError:
        if isinstance(error, (Conflict, NotFound)):
            try:
                snapshot = self._snapshot()
                if snapshot is not None:
                    self._retry(work.partitions, work.title, error, snapshot)
            except SparklogError as other:
                self._stop(other)
            return error
        partitions = set(work.partitions)
        if len(partitions) == 1:
            self._record(partitions, work.title, error)
            self._excluded |= partitions
        else:
            self._alone |= self._partitions_at(error, partitions) or partitions
            self._plan_again(partitions)
        return error

    def _partitions_at(self, error: SparklogError, partitions: set[int]) -> set[int]:
        """Return the partitions with slices at the damage that an error names, to be tried alone."""
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
        self, partitions: Iterable[int], title: str, error: Conflict | NotFound, newest: Snapshot | None = None
    ) -> None:
        """Plan partitions again, TRIES times; then report the error, or a file that `newest` names and lacks."""
        for partition in partitions:
            self._tries[partition] = self._tries.get(partition, 0) + 1
            if self._tries[partition] <= TRIES:
                self._plan_again((partition,))
            elif partition not in self._excluded:
                self._excluded.add(partition)
                given_up = type(error)(f"{error}; given up for now, after {TRIES + 1} tries")
                missing = None if newest is None else _missing(newest, partition)
                self._record((partition,), title, missing or given_up)

    def _plan_again(self, partitions: Iterable[int]) -> None:
        self._left = {*(self._left or ()), *partitions}

    def _got_further(self, done: WorkResult) -> set[int]:
        """Return the partitions whose pass made progress: any other would be repeated for ever."""
        before = self._planned_on.state.first_dirty_offset if self._planned_on is not None else ()
        edits = [rewrite.edit for rewrite in done.rewrites]
        return {edit.partition for edit in edits if (edit.first_dirty_offset or 0) > before[edit.partition]}

    def _record(self, partitions: Iterable[int], title: str, error: SparklogError) -> None:
        failure = Failure.of(self.name, sorted(partitions), title, error)
        self.report = replace(self.report, failures=(*self.report.failures, failure))

    def _stop(self, error: SparklogError) -> None:
        self._over = True
        self._record((), f"read {self.name}", error)


def _missing(snapshot: Snapshot, partition: int) -> Corrupt | None:
    """Return an error for the first missing file of a partition: then it was not replaced, but lost."""
    slices = snapshot.slices.select(partition)
    for row in range(len(slices)):
        key = file_key(snapshot.topic, slices.path(row))
        if snapshot.store.stat(key) is None:
            return Corrupt(
                f"version {snapshot.version} of topic '{snapshot.topic}' names a file that is missing: restore it from "
                "a backup, or move the log start beyond it (delete-records)",
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
    numbers = np.array(sorted(partitions))
    parts = (part[np.isin(part.partition, numbers)] for part in snapshot.slices.parts())
    return with_slices(snapshot, [part for part in parts if len(part)])
