"""`RootWatermarkTable`, a table whose watermark is stored in the root of the topic, as in an outbox.

Some catalogs do not allow the properties of a table to be changed, or ignore them. The watermark of a commit is then
only in the commit itself, for example in the summary of an Iceberg snapshot, and is lost when the snapshot expires.
Therefore, the root has a journal for each table (`sparklog.log.state.table_watermarks`). A run commits as follows:

1. The run loads the table. The version V of the table has the watermark W.
2. It writes an entry with the pending watermark P of its commit, the version V, and W.
3. It commits the rows and P to the table, based on V.
4. It writes an entry with the watermark P and without a pending watermark, unless another run has written an entry
   since step 2.

The watermark of a version is that of the latest commit in its history that has one. If there is none, because snapshots
have expired, it is determined from the latest entry of the journal:

* Without a pending watermark, it is the watermark of the entry, because each later commit would have written an entry.
  The run reads the entry before and after it loads the version.
* If the known history of the table begins at V or earlier, it is W. No commit of a copy follows V in this history. If
  the pending commit is still in flight, it requires that V is the current version, and so does the next commit of the
  copy. At most one of them succeeds.
* Otherwise, the history has expired since V, and the table may or may not contain the pending commit. In upsert mode,
  the run continues at W, because to apply the changes again has no effect. In append mode, the run ends with an error.
  It never guesses.

Runs do not lock the journal. If the run A writes an entry and the run B replaces it, both may be based on the same
version, and one of their commits fails. If A is based on an earlier version than B, its commit fails. If it is based on
a later version, its own watermark is in the history that B does not know, and the history of the table either contains
this watermark or has expired since the version of B. A failed commit does not remove its pending watermark, because the
commit of the run whose entry it has replaced may be the one that succeeded.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Protocol

import pyarrow as pa

from sparklog.errors import BadRequest, NotFound, SparklogError, Unavailable
from sparklog.log.journal.entry_log import EntryLog
from sparklog.log.journal.names import WATERMARKS_FOLDER
from sparklog.log.state.table_watermarks import TABLE_WATERMARKS, TableWatermark
from sparklog.log.topic.root import Root
from sparklog.tables.option_names import option_name, option_value
from sparklog.tables.target import ChangeSet, NewFile, NewOutput, TableLayout, TableState, TargetTable
from sparklog.tables.watermark import COMMIT_ID, Watermark

FIRST_VERSION = ""
"""The version of a table to which nothing has been committed."""


@dataclass(frozen=True)
class TableHistory:
    """The known history of a version of a table.

    Attributes:
        table_id: The id of the table. It changes if the table is dropped and created again.
        versions: The version and those before it, latest first, up to the first one that has expired.
        other_commits: The ids of commits in other versions, for example in those that were rolled back.
    """

    table_id: str
    versions: Sequence[str]
    other_commits: Collection[str] = ()

    @property
    def is_complete(self) -> bool:
        """Return True if no version has expired."""
        return self.versions[-1] == FIRST_VERSION

    @property
    def is_new(self) -> bool:
        """Return True if nothing has been committed to the table."""
        return self.versions[0] == FIRST_VERSION


class HistoryTable(TargetTable, Protocol):
    """A table whose versions have a watermark only if their history contains it."""

    def history(self, state: TableState) -> TableHistory:
        """Return the history of a version."""


@dataclass(frozen=True)
class _LoadedVersion:
    """A version as the wrapped table has loaded it."""

    state: TableState
    log: EntryLog[TableWatermark]
    version: str


class RootWatermarkTable:
    """A table whose watermark is stored in the root. See `sparklog.tables.target.TargetTable`.

    Args:
        table: The table.
        root: The root of the topic.
        resume_offsets: The offsets at which to continue if it is unknown whether the table contains a commit.
        resume_option: The name of the option with these offsets.
    """

    def __init__(
        self,
        table: HistoryTable,
        root: Root,
        resume_offsets: Mapping[int, int] | None = None,
        resume_option: str = "resume_offsets",
    ) -> None:
        self._table = table
        self._root = root
        self._resume_offsets = resume_offsets or {}
        self._resume_option = resume_option

    @property
    def name(self) -> str:
        return self._table.name

    def load(self) -> TableState | None:
        state = self._table.load()
        if state is None:
            return None
        history, log = self._opened(state)
        entry = log.refresh()
        # The entry must not change while the version is loaded. Otherwise, a run might commit and its snapshot might
        # expire after the entry was read.
        is_stable = state.watermark is not None
        while not is_stable:
            state = self._table.load()
            if state is None:
                return None
            history, reopened = self._opened(state)
            latest = reopened.refresh()
            is_stable = reopened is log and latest.number == entry.number
            log, entry = reopened, latest
        if state.watermark is None and entry.number < 0 and history.is_new:
            # A run was killed after it had created the table. `create` continues.
            return None
        watermark = state.watermark
        if watermark is None:
            watermark = self._stored(entry, history)
        elif entry.number < 0:
            # Earlier runs have stored the watermark in the properties.
            _begin_journal(log, watermark)
        elif entry.pending.get(COMMIT_ID) == watermark.commit_id:
            # The run that committed was killed, or the response was lost.
            _complete(log, watermark)
        return replace(state, watermark=watermark, handle=_LoadedVersion(state, log, history.versions[0]))

    def create(self, layout: TableLayout, watermark: Watermark) -> TableState:
        history, log = self._opened(self._table.create(layout, watermark))
        if history.is_new:
            _begin_journal(log, watermark)
        return self._loaded()

    def add_columns(self, state: TableState, columns: Sequence[pa.Field]) -> TableState:
        self._table.add_columns(_loaded(state).state, columns)
        return self._loaded()

    def _loaded(self) -> TableState:
        state = self.load()
        if state is None:
            raise NotFound(f"table {self.name} was dropped during the run: run the copy again to create it")
        return state

    def for_tasks(self, state: TableState) -> tuple[TargetTable, TableState]:
        return self._table.for_tasks(_loaded(state).state)

    def partition_columns(self, state: TableState) -> Sequence[str]:
        return self._table.partition_columns(_loaded(state).state)

    def partition_values(self, state: TableState, rows: pa.RecordBatch) -> pa.RecordBatch:
        return self._table.partition_values(_loaded(state).state, rows)

    def open_output(self, state: TableState, name: str) -> NewOutput:
        return self._table.open_output(_loaded(state).state, name)

    def append(self, state: TableState, files: Sequence[NewFile], watermark: Watermark) -> None:
        loaded = self._begin(state, watermark)
        self._table.append(loaded.state, files, watermark)
        _complete(loaded.log, watermark)

    def upsert(self, state: TableState, changes: ChangeSet, watermark: Watermark) -> None:
        loaded = self._begin(state, watermark)
        self._table.upsert(loaded.state, changes, watermark)
        _complete(loaded.log, watermark)

    def clear(self, state: TableState, watermark: Watermark) -> None:
        loaded = self._begin(state, watermark)
        self._table.clear(loaded.state, watermark)
        _complete(loaded.log, watermark)

    def delete_files(self, paths: Sequence[str]) -> None:
        self._table.delete_files(paths)

    def _opened(self, state: TableState) -> tuple[TableHistory, EntryLog[TableWatermark]]:
        history = self._table.history(state)
        return history, self._root.engine.entries(TABLE_WATERMARKS, history.table_id)

    def _begin(self, state: TableState, watermark: Watermark) -> _LoadedVersion:
        """Write the pending watermark of a commit that is based on `state`."""
        loaded = _loaded(state)
        before = {} if state.watermark is None else state.watermark.to_properties()
        pending = watermark.to_properties()
        try:
            loaded.log.write(lambda entry: replace(entry, watermark=before, pending=pending, based_on=loaded.version))
        except Unavailable as error:
            # The commit was not sent to the table.
            raise Unavailable(
                f"cannot write the watermark of table {self.name}: {error}", is_denied=error.is_denied
            ) from error
        return loaded

    def _stored(self, entry: TableWatermark, history: TableHistory) -> Watermark | None:
        """Return the watermark of a version whose known history does not contain one."""
        watermark = Watermark.from_properties(entry.watermark, self.name)
        commit_id = "" if watermark is None else watermark.commit_id
        if commit_id and (history.is_complete or commit_id in history.other_commits):
            raise BadRequest(
                f"table {self.name} was replaced, or rolled back to a snapshot before the first copied record: copy "
                "the topic to a new table"
            )
        pending = Watermark.from_properties(entry.pending, self.name)
        if pending is None or entry.based_on in history.versions:
            return watermark
        if watermark is None or watermark.source != pending.source or watermark.mode == "upsert":
            # The pending commit adds no rows, or can be repeated.
            return watermark
        return self._resumed(watermark, pending)

    def _resumed(self, watermark: Watermark, pending: Watermark) -> Watermark:
        offsets = self._resume_offsets
        if offsets:
            for partition, offset in watermark.next_offsets.items():
                if offsets.get(partition, offset) < offset:
                    raise BadRequest(
                        f"{option_name(self._resume_option)} of partition {partition} must be at least {offset}, "
                        f"because table {self.name} contains the records before it, found {offsets[partition]}"
                    )
            # The quarantine table finds in the id of the commit which options determined its records.
            is_committed = any(offsets.get(number, start) > start for number, start in watermark.next_offsets.items())
            commit_id = pending.commit_id if is_committed else watermark.commit_id
            return replace(watermark, next_offsets={**watermark.next_offsets, **offsets}, commit_id=commit_id)
        ranges = [
            f"{start} to {pending.next_offsets[partition] - 1} of {watermark.topic}-{partition}"
            for partition, start in sorted(watermark.next_offsets.items())
            if pending.next_offsets.get(partition, start) > start
        ]
        names = ("offset", "partition") if pending.mode == "quarantine" else ("_offset", "_partition_id")
        raise BadRequest(
            f"a run was killed while it committed to table {self.name}, and the snapshots since then have expired: it "
            f"is unknown whether the table contains the offsets {', '.join(ranges)}. Run the copy once with "
            f"{option_name(self._resume_option)}, with max({names[0]}) + 1 of the rows of each {names[1]}"
        )


def check_not_in_root(table: HistoryTable, root: Root) -> None:
    """Raise `BadRequest` if the root contains the watermark of a table.

    The properties of such a table may contain an earlier watermark.
    """
    if next(iter(root.store.list_folders(f"{WATERMARKS_FOLDER}/")), None) is None:
        return
    state = table.load()
    if state is None:
        return
    if root.engine.entries(TABLE_WATERMARKS, table.history(state).table_id).refresh().number >= 0:
        raise BadRequest(
            f"the watermark of table {table.name} is stored in the root: use {option_value('watermark', 'root')}"
        )


def _begin_journal(log: EntryLog[TableWatermark], watermark: Watermark) -> None:
    properties = watermark.to_properties()
    log.write(lambda entry: replace(entry, watermark=properties) if entry.number < 0 else None)


def _complete(log: EntryLog[TableWatermark], watermark: Watermark) -> None:
    """Write the watermark of a commit that the table contains.

    If the root is not available, the next run finds the watermark in the history of the table.
    """
    properties = watermark.to_properties()

    def step(entry: TableWatermark) -> TableWatermark | None:
        if entry.pending.get(COMMIT_ID) != watermark.commit_id:
            return None
        return replace(entry, watermark=properties, pending={}, based_on="")

    with suppress(SparklogError):
        log.write(step)


def _loaded(state: TableState) -> _LoadedVersion:
    loaded = state.handle
    assert isinstance(loaded, _LoadedVersion)
    return loaded
