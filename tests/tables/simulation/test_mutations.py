"""Break each rule of the copy. At least one seed must fail."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from sparklog.errors import Conflict, SparklogError, Unavailable
from sparklog.log.journal.clocks import Env
from sparklog.tables import commits, copy, quarantine, root_watermark
from sparklog.tables.commits import load_again
from sparklog.tables.copy import OffsetInterval, TableCopy
from sparklog.tables.data_files import DataFileWriter
from sparklog.tables.latest import LatestRows
from sparklog.tables.quarantine import Quarantine
from sparklog.tables.root_watermark import RootWatermarkTable
from sparklog.tables.slices import SliceRows
from sparklog.tables.target import NewFile, TableState, TargetTable
from sparklog.tables.watermark import TopicSnapshot, Watermark
from tests.support.simulation.sweeps import BrokenRule, Patch, broken_rules
from tests.tables.memory_table import MemoryTable
from tests.tables.simulation.model import CONTENDED, REJECTED, ROOT_CONTENDED, FaultyTable, SimulatedTasks
from tests.tables.simulation.test_simulation import COPIES

pytestmark = pytest.mark.sweep
SEEDS = range(200)


def the_library_retries_a_commit(patch: Patch) -> None:
    """A commit that conflicts is repeated on the current version, without a comparison of watermarks."""
    real = FaultyTable.append

    def append(self: FaultyTable, state: TableState, files: Sequence[NewFile], watermark: Watermark) -> None:
        while True:
            try:
                real(self, state, files, watermark)
                return
            except Conflict:
                assert self.catalog.current is not None
                state = MemoryTable._state(self.catalog.current)

    patch.setattr(FaultyTable, "append", append)


def the_watermark_is_not_compared(patch: Patch) -> None:
    """After a conflict or a lost response, the same rows are committed on the current version."""

    def load(target: TargetTable, env: Env) -> TableState:
        state = load_again(target, env)
        return replace(state, watermark=BASES[-1])

    real = commits.commit_interval

    def commit_interval(target: TargetTable, base: TableState, *rest: Any) -> bool:
        BASES.append(base.watermark)
        return real(target, base, *rest)

    patch.setattr(commits, "load_again", load)
    patch.setattr(copy, "commit_interval", commit_interval)
    patch.setattr(quarantine, "commit_interval", commit_interval)


BASES: list[Watermark | None] = []


def a_lost_response_is_a_failure(patch: Patch) -> None:
    """If the response of a commit is lost, its files are deleted."""
    real = commits.commit_interval

    def commit_interval(
        target: TargetTable,
        base: TableState,
        watermark: Watermark,
        commit: Callable[[TableState], None],
        discard: Callable[[], None],
        env: Env,
    ) -> bool:
        def commit_or_discard(state: TableState) -> None:
            try:
                commit(state)
            except Unavailable:
                discard()
                raise

        return real(target, base, watermark, commit_or_discard, discard, env)

    patch.setattr(copy, "commit_interval", commit_interval)


def files_are_deleted_after_any_error(patch: Patch) -> None:
    """A writer deletes its files if a commit fails, even if its outcome is unknown."""
    real = commits.commit_interval

    def commit_interval(*arguments: Any) -> bool:
        is_committed = False
        try:
            is_committed = real(*arguments)
        finally:
            if not is_committed:
                arguments[4]()
        return is_committed

    patch.setattr(copy, "commit_interval", commit_interval)


def the_watermark_is_committed_after_the_rows(patch: Patch) -> None:
    """The rows and the watermark are two commits."""
    real = MemoryTable.append

    def append(self: FaultyTable, state: TableState, files: Sequence[NewFile], watermark: Watermark) -> None:
        call = functools.partial(real, self, state, files)
        before = state.watermark
        assert before is not None
        self.faulty.request(self.actor, "append rows", lambda: call(before), is_commit=True)
        assert self.catalog.current is not None
        current = MemoryTable._state(self.catalog.current)
        self.faulty.request(self.actor, "set watermark", lambda: real(self, current, (), watermark), is_commit=True)

    patch.setattr(FaultyTable, "append", append)


def the_table_is_created_before_a_record_is_decoded(patch: Patch) -> None:
    """A copy that rejects its first records leaves an empty table with its columns."""
    patch.setattr(TableCopy, "_check_first_interval", lambda self, source, ends: None)


def the_watermark_is_that_of_the_topic(patch: Patch) -> None:
    """The watermark after an interval is the end of the topic, not of the interval."""
    real = TableCopy._next_interval

    def next_interval(
        self: TableCopy, state: TableState, source: TopicSnapshot, ends: Mapping[int, int] | None
    ) -> OffsetInterval | None:
        interval = real(self, state, source, ends)
        if interval is None:
            return None
        ends_of_topic = {partition: bounds.last_stable for partition, bounds in source.bounds.items()}
        return replace(interval, after=interval.after.advanced(ends_of_topic, interval.after.commit_id))

    patch.setattr(TableCopy, "_next_interval", next_interval)


def bad_records_are_committed_again(patch: Patch) -> None:
    """An interval that is repeated quarantines its bad records again."""
    patch.setattr(Quarantine, "_written_offsets", lambda self, watermark: {})


def bad_records_are_not_committed(patch: Patch) -> None:
    """The copy continues without its quarantine if another run has committed to the quarantine table."""
    real = Quarantine.commit

    def commit(self: Quarantine) -> bool:
        real(self)
        return True

    patch.setattr(Quarantine, "commit", commit)


def files_of_a_conflict_are_committed_by_name(patch: Patch) -> None:
    """Two runs use the same names for their files."""
    real = DataFileWriter.__init__

    def init(self: DataFileWriter, target: Any, state: Any, topic_id: str, attempt: str, ends: Any) -> None:
        real(self, target, state, topic_id, "attempt", ends)

    patch.setattr(DataFileWriter, "__init__", init)


def all_attempts_are_committed(patch: Patch) -> None:
    """The results of a repeated attempt are committed in addition to those of the first attempt."""

    def run(self: SimulatedTasks, works: Sequence[Any]) -> Iterator[tuple[Any, Any]]:
        for work in works:
            yield work, self.attempt(work)
            if self.actor.random.random() < self.failures:
                yield work, self.attempt(work)

    patch.setattr(SimulatedTasks, "run", run)


def a_slice_is_skipped(patch: Patch) -> None:
    """The watermark passes the records of a slice whose task has failed."""
    real = SimulatedTasks.attempt
    patch.setattr(
        SimulatedTasks,
        "attempt",
        lambda self, work: SliceRows() if isinstance(result := real(self, work), Unavailable) else result,
    )


def deleted_keys_are_forgotten(patch: Patch) -> None:
    """A tombstone does not delete the row of an earlier interval."""
    real = LatestRows.changes

    def changes(self: LatestRows) -> Any:
        return [replace(found, deleted=found.deleted.slice(0, 0)) for found in real(self)]

    patch.setattr(LatestRows, "changes", changes)


def the_first_record_of_a_key_wins(patch: Patch) -> None:
    """The oldest record of each key is retained."""
    real = LatestRows.add

    def add(self: LatestRows, rows: Any, deleted: Any, partition: Any, offset: pa.Array) -> None:
        real(self, rows, deleted, partition, pa.array([-number for number in offset.to_pylist()], pa.int64()))

    patch.setattr(LatestRows, "add", add)


def a_pending_watermark_is_written_after_the_commit(patch: Patch) -> None:
    """The entry of a commit is written when the table contains the commit."""

    def append(self: RootWatermarkTable, state: TableState, files: Sequence[NewFile], watermark: Watermark) -> None:
        self._table.append(state.handle.state, files, watermark)
        self._begin(state, watermark)
        root_watermark._complete(state.handle.log, watermark)

    patch.setattr(RootWatermarkTable, "append", append)


def an_unresolved_commit_is_repeated(patch: Patch) -> None:
    """If the history has expired, the commit is assumed to have failed."""
    patch.setattr(RootWatermarkTable, "_resumed", lambda self, watermark, pending: watermark)


def an_unresolved_commit_is_skipped(patch: Patch) -> None:
    """If the history has expired, the commit is assumed to have succeeded."""
    patch.setattr(RootWatermarkTable, "_resumed", lambda self, watermark, pending: pending)


def a_successful_commit_replaces_any_pending_one(patch: Patch) -> None:
    """The entry after a commit is written even if another run has begun to commit."""

    def complete(log: Any, watermark: Watermark) -> None:
        properties = watermark.to_properties()
        with suppress(SparklogError):
            log.write(lambda entry: replace(entry, watermark=properties, pending={}, based_on=""))

    patch.setattr(root_watermark, "_complete", complete)


def a_failed_commit_removes_its_pending_watermark(patch: Patch) -> None:
    """The entry of a commit is removed if another commit came first."""
    real = RootWatermarkTable.append

    def append(self: RootWatermarkTable, state: TableState, files: Sequence[NewFile], watermark: Watermark) -> None:
        try:
            real(self, state, files, watermark)
        except Conflict:
            with suppress(SparklogError):
                state.handle.log.write(lambda entry: replace(entry, pending={}, based_on=""))
            raise

    patch.setattr(RootWatermarkTable, "append", append)


@broken_rules(
    BrokenRule(the_library_retries_a_commit, "append", SEEDS),
    BrokenRule(the_watermark_is_not_compared, "append", SEEDS),
    BrokenRule(a_lost_response_is_a_failure, "append", SEEDS),
    BrokenRule(files_are_deleted_after_any_error, "append", SEEDS),
    BrokenRule(the_watermark_is_committed_after_the_rows, "append", SEEDS),
    BrokenRule(the_table_is_created_before_a_record_is_decoded, REJECTED, SEEDS),
    BrokenRule(the_watermark_is_that_of_the_topic, "append", SEEDS),
    BrokenRule(bad_records_are_committed_again, "append", SEEDS),
    BrokenRule(bad_records_are_not_committed, CONTENDED, SEEDS),
    BrokenRule(files_of_a_conflict_are_committed_by_name, "append", SEEDS),
    BrokenRule(all_attempts_are_committed, "append", SEEDS),
    BrokenRule(a_slice_is_skipped, "append", SEEDS),
    BrokenRule(deleted_keys_are_forgotten, "upsert", SEEDS),
    BrokenRule(the_first_record_of_a_key_wins, "upsert", SEEDS),
    BrokenRule(a_pending_watermark_is_written_after_the_commit, ROOT_CONTENDED, SEEDS),
    BrokenRule(an_unresolved_commit_is_repeated, ROOT_CONTENDED, SEEDS),
    BrokenRule(an_unresolved_commit_is_skipped, ROOT_CONTENDED, SEEDS),
    BrokenRule(a_successful_commit_replaces_any_pending_one, ROOT_CONTENDED, SEEDS),
    BrokenRule(a_failed_commit_removes_its_pending_watermark, ROOT_CONTENDED, SEEDS),
)
def test_broken_rule_is_detected(rule: BrokenRule, monkeypatch: Patch) -> None:
    COPIES.assert_fails(rule, monkeypatch)
