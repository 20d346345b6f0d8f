"""Commits of an interval: conflicts, lost responses, and the deletion of files that no commit contains."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pyarrow as pa
import pytest

from sparklog.errors import BadRequest, Conflict, NotFound, Unavailable
from sparklog.tables.commits import RETRY_MS, commit_interval, load_again
from sparklog.tables.target import TableLayout, TableState
from sparklog.tables.watermark import Watermark
from sparklog.testing.world import World
from tests.tables.memory_table import MemoryCatalog, MemoryTable

BEFORE = Watermark("r", "t", "id", {0: 0}, "", "append")
AFTER = replace(BEFORE, next_offsets={0: 5}, commit_id="mine")
OTHER = replace(BEFORE, next_offsets={0: 3}, commit_id="other")
LOST = Unavailable("the response was lost", is_unknown=True)


class Commit:
    """One interval with the file `f`, and a list of what happens at each attempt to commit it."""

    def __init__(self, *attempts: Callable[[], None]) -> None:
        self.world = World()
        self.table = MemoryTable(MemoryCatalog(), "t")
        layout = TableLayout(pa.schema([("a", pa.int32())]), "append")
        self.base = self.table.create(layout, BEFORE)
        self.attempts = list(attempts)
        self.discarded = 0
        self.made = 0

    def run(self) -> bool:
        return commit_interval(self.table, self.base, AFTER, self.attempt, self.discard, self.world.env())

    def attempt(self, state: TableState) -> None:
        self.made += 1
        step = self.attempts.pop(0) if self.attempts else None
        if step is self.commit_and_lose:
            self.commit(state)
            raise LOST
        if step is not None:
            step()
        self.commit(state)

    def commit(self, state: TableState) -> None:
        self.table.catalog.commit(state.handle, watermark=AFTER, paths=(*state.handle.paths, "f"))

    def discard(self) -> None:
        self.discarded += 1

    def commit_and_lose(self) -> None:
        """Commit, and lose the response."""

    def lose(self) -> None:
        raise LOST

    def change(self) -> None:
        """Another program commits."""
        current = self.table.catalog.current
        assert current is not None
        self.table.catalog.commit(current)

    def copy(self) -> None:
        """Another run commits an interval."""
        current = self.table.catalog.current
        assert current is not None
        self.table.catalog.commit(current, watermark=OTHER)

    def alter(self) -> None:
        """Another program adds a column."""
        self.change()
        self.table.catalog.change(schema=pa.schema([("a", pa.int32()), ("b", pa.int32())]))

    @property
    def occurrences(self) -> int:
        assert self.table.catalog.current is not None
        return self.table.catalog.current.paths.count("f")


def run(*names: str) -> Commit:
    commit = Commit()
    commit.attempts = [getattr(commit, name) for name in names]
    return commit


@pytest.mark.parametrize(
    ("names", "committed", "attempts", "discarded"),
    [
        ((), True, 1, 0),
        (("change",), True, 2, 0),
        (("change", "change", "lose"), True, 4, 0),
        (("lose",), True, 2, 0),
        (("commit_and_lose",), True, 1, 0),
        (("lose", "commit_and_lose"), True, 2, 0),
        (("copy",), False, 1, 1),
        (("change", "copy"), False, 2, 1),
        (("lose", "copy"), False, 2, 0),
        (("alter",), False, 1, 1),
        (("lose", "alter"), False, 2, 0),
    ],
)
def test_outcomes(names: tuple[str, ...], committed: bool, attempts: int, discarded: int) -> None:
    commit = run(*names)
    assert commit.run() is committed
    assert (commit.made, commit.discarded, commit.occurrences) == (attempts, discarded, int(committed))


def test_commit_that_arrives_late_excludes_the_repeated_commit() -> None:
    commit = Commit()

    def land() -> None:
        commit.commit(commit.base)

    commit.attempts = [commit.lose, land]
    assert commit.run()
    assert (commit.made, commit.occurrences, commit.discarded) == (2, 1, 0)


@pytest.mark.parametrize(("error", "discarded"), [(BadRequest("no right"), 1), (ValueError("unexpected"), 0)])
def test_files_are_deleted_if_a_commit_certainly_failed(error: Exception, discarded: int) -> None:
    commit = Commit()

    def fail() -> None:
        raise error

    commit.attempts = [fail]
    with pytest.raises(type(error)):
        commit.run()
    assert commit.discarded == discarded


def test_files_are_not_deleted_after_an_unknown_outcome_and_an_error() -> None:
    commit = Commit()

    def fail() -> None:
        raise BadRequest("no right")

    commit.attempts = [commit.lose, fail]
    with pytest.raises(BadRequest):
        commit.run()
    assert commit.discarded == 0


def test_missing_permission_ends_the_commit() -> None:
    commit = Commit()

    def fail() -> None:
        raise Unavailable("denied", is_denied=True)

    commit.attempts = [fail]
    with pytest.raises(Unavailable, match="denied"):
        commit.run()
    assert (commit.made, commit.discarded) == (1, 1)


def test_conflicts_end_after_ten_minutes() -> None:
    commit = run(*["change"] * 1000)
    started = commit.world.now_ms
    text = r"attempts to commit to table t failed: expected snapshot \d+, found \d+; run the copy again"
    with pytest.raises(Conflict, match=text):
        commit.run()
    assert commit.discarded == 1
    assert commit.world.now_ms - started <= RETRY_MS + 10_000


def test_failures_end_after_ten_minutes_with_the_last_error() -> None:
    commit = Commit()

    def fail() -> None:
        raise Unavailable("the disk of the catalog is full", is_unknown=True)

    commit.attempts = [fail] * 1000
    with pytest.raises(Unavailable, match="the disk of the catalog is full"):
        commit.run()
    # A delayed request may still commit the files.
    assert commit.discarded == 0


def test_table_is_loaded_again_until_the_catalog_responds() -> None:
    commit, failures = Commit(), [Unavailable("busy")] * 3

    def step(what: str) -> None:
        if failures:
            raise failures.pop()

    commit.table.step = step
    assert load_again(commit.table, commit.world.env()) == commit.base
    commit.table.catalog.versions.clear()
    with pytest.raises(NotFound, match="table t was deleted while"):
        load_again(commit.table, commit.world.env())
    commit.table.step = lambda what: commit.lose()
    with pytest.raises(Unavailable):
        load_again(commit.table, commit.world.env())
