"""The slice table contains the slices of a topic at a version. Every read plan is based on this table.

The table has one row for each slice that was added by a commit, has not been removed, and is not entirely below the log
start. Slices are not Python objects. The columns are numpy arrays, in a few parts that are sorted by (partition, base).
Commits are appended as small parts, and parts of similar size are joined, similar to carries in a binary counter.
Therefore, the cost of a commit does not depend on the size of the table.

`sparklog.format.slice_columns` defines the columns and their types, and docs/reference/format-checkpoints.md describes
them. In memory, `file` and `txn` are codes of strings. A slice without a transaction has the `txn` code -1.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import add
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from sparklog.errors import Conflict
from sparklog.format.slice_columns import COLUMN_TYPES
from sparklog.log.journal.names import is_sealed, path_read_version
from sparklog.storage.fork_safety import ForkLock

if TYPE_CHECKING:
    # Spark read tasks need this module but do not read commits, so workers should not load the modules of commits.
    import pyarrow as pa

    from sparklog.log.state.commit import Commit, RemovedSlices, TxnDecision
    from sparklog.log.state.slices import FileSlices
    from sparklog.log.state.topic_state import Offsets, TopicState
    from sparklog.storage.store import Store


PLAIN, OPEN, COMMITTED, ABORTED = 0, 1, 2, 3
NO_TIMESTAMP = -1
PENDING_COMMITS = 256
SPARE_TEXTS = 4096
Columns = dict[str, npt.NDArray[Any]]


class Texts:
    """Maps codes to strings. The first codes belong to the strings of a checkpoint.

    Strings are only added, so tables can share an instance.
    """

    __slots__ = ("_added", "_codes", "_loaded")
    _lock = ForkLock()
    """One lock for all instances, because a root may have thousands of topics and the lock is only held briefly."""

    def __init__(self, loaded: pa.Array | None = None) -> None:
        self._loaded = loaded
        self._added: list[str] = []
        self._codes: dict[str, int] = {}

    @classmethod
    def of(cls, texts: Sequence[str]) -> Texts:
        coded = cls()
        for text in texts:
            coded.code(text)
        return coded

    def __len__(self) -> int:
        return (0 if self._loaded is None else len(self._loaded)) + len(self._added)

    def __getitem__(self, code: int) -> str:
        start = 0 if self._loaded is None else len(self._loaded)
        if code < 0:
            return ""
        return self._added[code - start] if code >= start else str(self._loaded[code].as_py())  # type: ignore[index]

    def code(self, text: str) -> int:
        """Return the code of a string. A string from the checkpoint may get a second code."""
        with self._lock:
            code = self._codes.get(text)
            if code is None:
                code = len(self)
                self._added.append(text)
                self._codes[text] = code
            return code

    def at(self, codes: npt.NDArray[Any]) -> list[str]:
        """Return the strings of non-negative codes."""
        texts = [*([] if self._loaded is None else self._loaded.to_pylist()), *self._added]
        return [texts[code] for code in codes.tolist()]


class ColumnsByName:
    """Columns of slices, one array each, as attributes."""

    columns: Mapping[str, npt.NDArray[Any]]

    def __len__(self) -> int:
        return len(self.columns["base"])

    def __getattr__(self, name: str) -> npt.NDArray[Any]:
        try:
            return self.__dict__["columns"][name]  # type: ignore[no-any-return]
        except KeyError:
            raise AttributeError(name) from None


@dataclass(frozen=True, eq=False)
class Slices(ColumnsByName):
    """Some rows of a table, sorted by (partition, base). Columns are attributes."""

    columns: Columns
    paths: Texts
    txn_ids: Texts

    def __getitem__(self, rows: slice | npt.NDArray[Any]) -> Slices:
        return Slices({name: column[rows] for name, column in self.columns.items()}, self.paths, self.txn_ids)

    @property
    def record_max_ts(self) -> npt.NDArray[np.int64]:
        """The maximum record timestamp of each slice (ms), or -1 if its records have no timestamps.

        If the records of a slice have no timestamps, its `max_ts` is the append time and its `min_ts` is -1.
        """
        return np.where(self.min_ts >= 0, self.max_ts, NO_TIMESTAMP)

    def path(self, row: int) -> str:
        return self.paths[int(self.columns["file"][row])]

    def txn_id(self, row: int) -> str:
        return self.txn_ids[int(self.columns["txn"][row])]

    def partition_rows(self, partition: int) -> slice:
        column = self.columns["partition"]
        return slice(int(column.searchsorted(partition)), int(column.searchsorted(partition, "right")))

    def overlapping(self, partition: int, start: int, end: int) -> slice:
        """Return the rows of one partition that overlap offsets `[start, end)`."""
        rows = self.partition_rows(partition)
        first = int(self.columns["end"][rows].searchsorted(start, "right"))
        last = int(self.columns["base"][rows].searchsorted(end, "left"))
        return slice(rows.start + first, rows.start + max(first, last))

    def overlapping_each(self, partition: Offsets, start: Offsets, end: Offsets) -> tuple[Offsets, Offsets]:
        """Return the first and the last row (exclusive) of `overlapping` for many ranges: int64[n] each."""
        low = np.searchsorted(self.columns["partition"], partition)
        high = np.searchsorted(self.columns["partition"], partition, "right")
        first = _bisect(self.columns["end"], start, low, high, np.less_equal)
        return first, np.maximum(first, _bisect(self.columns["base"], end, low, high, np.less))

    def sealed(self) -> npt.NDArray[np.bool_]:
        """Return bool[n], which is True for each slice in a sealed segment. Only sealed segments have no footer."""
        return np.equal(self.columns["footer_length"], 0)


class SliceTable:
    """All slices at a version. Immutable: `apply` returns the table after the next commit."""

    __slots__ = ("_rows", "texts", "version")

    def __init__(
        self,
        version: int = -1,
        parts: tuple[Slices, ...] = (),
        paths: Texts | None = None,
        txn_ids: Texts | None = None,
        pending: tuple[Commit, ...] = (),
    ) -> None:
        self.version = version
        # The parts and the pending commits are stored in a single attribute, so that a thread that moves
        # commits into the parts can replace both atomically.
        self._rows = (parts, pending)
        self.texts = (Texts() if paths is None else paths, Texts() if txn_ids is None else txn_ids)
        """Paths and transactional ids, by code."""

    def __len__(self) -> int:
        parts, pending = self._rows
        return sum(map(len, parts)) + sum([len(file) for commit in pending for file in commit.files])

    def parts_and_pending(self) -> tuple[tuple[Slices, ...], tuple[Commit, ...]]:
        """Return the parts, and the pending commits, whose slices are not in a part yet."""
        return self._rows

    def parts(self) -> tuple[Slices, ...]:
        """Return the rows in parts, each sorted by (partition, base). Later parts have later offsets of a partition."""
        parts, pending = self._rows
        if pending:
            parts = (*parts, in_order(columns_of(pending, *self.texts), *self.texts))
            while len(parts) > 1 and len(parts[-2]) < 2 * len(parts[-1]):
                parts = (*parts[:-2], _joined(parts[-2:], *self.texts))
            self._rows = (parts, ())
        return parts

    def all(self) -> Slices:
        """Return all rows, sorted by (partition, base)."""
        all_rows = _joined(self.parts(), *self.texts)
        self._rows = ((all_rows,) if len(all_rows) else (), ())
        return all_rows

    def select(self, partition: int, start: int = 0, end: int = 2**63 - 1) -> Slices:
        """Return the slices of one partition that overlap offsets `[start, end)`, in offset order."""
        spans = ((part, part.overlapping(partition, start, end)) for part in self.parts())
        return _joined([part[rows] for part, rows in spans if rows.stop > rows.start], *self.texts)

    def select_each(self, partition: Offsets, start: Offsets, end: Offsets) -> tuple[Slices, Offsets]:
        """Select the slices of many ranges, int64[n] each.

        Returns the slices, range by range, and the position of each range's first slice, int64[n + 1].
        """
        parts, owners = [], []
        for part in self.parts():
            low, high = part.overlapping_each(partition, start, end)
            counts = high - low
            owners.append(np.repeat(np.arange(len(counts)), counts))
            parts.append(part[np.arange(len(owners[-1])) + np.repeat(low - np.cumsum(counts) + counts, counts)])
        owner = np.concatenate([np.zeros(0, np.int64), *owners])
        order = np.argsort(owner, kind="stable")
        columns = {
            name: np.concatenate([np.zeros(0, dtype), *(part.columns[name] for part in parts)])[order]
            for name, dtype in COLUMN_TYPES.items()
        }
        return Slices(columns, *self.texts), np.searchsorted(owner[order], np.arange(len(partition) + 1))

    def paths(self) -> set[str]:
        codes = np.unique(np.concatenate([part.columns["file"] for part in self.parts()] or [np.zeros(0, np.int32)]))
        return set(self.texts[0].at(codes))

    def apply(self, commit: Commit, state: TopicState) -> SliceTable:
        """Return the table after the next commit.

        `state` is the state after the commit. Raises `Conflict` if an input of an edit is missing.
        """
        if commit.op in ("create", "delete"):
            return SliceTable(commit.version, pending=(commit,) if commit.files else ())
        parts, pending = self._rows
        if commit.edits:
            table = SliceTable(commit.version, (self._edited(commit),), *self.texts)
        else:
            added_now = (commit,) if commit.files else ()
            table = SliceTable(commit.version, parts, *self.texts, (*pending, *added_now))
            if added_now and len(pending) >= PENDING_COMMITS:
                table.parts()
        if commit.resolved:
            table = table.with_decisions(commit.resolved)
        if commit.log_starts or commit.edits:
            # A rebased edit may have outputs that a concurrent retention commit has already expired.
            parts = tuple(_above(part, state.log_start) for part in table.parts())
            table = _swept(commit.version, tuple(part for part in parts if len(part)), *self.texts)
        return table

    def with_decisions(self, outcomes: Sequence[TxnDecision]) -> SliceTable:
        """Return the table of the same version with these decisions on open transactions applied."""
        parts = tuple(_resolved(part, outcomes) for part in self.parts())
        return SliceTable(self.version, parts, *self.texts)

    def _edited(self, commit: Commit) -> Slices:
        all_rows = self.all()
        rows = self.find(*commit.remove)
        if (rows < 0).any():
            raise Conflict(
                f"commit {commit.version} replaces slices that version {self.version} does not have; "
                "plan the rewrite again"
            )
        keep = np.ones(len(all_rows), np.bool_)
        keep[rows] = False
        if not commit.files:
            return all_rows[keep]
        outputs = in_order(columns_of((commit,), *self.texts), *self.texts)
        return _joined((all_rows[keep], outputs), *self.texts)

    def has_flag(self, flag: int) -> bool:
        parts, pending = self._rows
        if any(flags & flag for commit in pending for file in commit.files for flags in file.flags):
            return True
        return any(bool((part.flags & flag).any()) for part in parts)

    def find(self, *items: RemovedSlices) -> npt.NDArray[np.int64]:
        """Return the row in `all()` of each slice in `items`, in order, or -1 if there is no such slice."""
        all_rows = self.all()
        base = np.array([value for item in items for value in item.base], np.int64)
        position = np.array([value for item in items for value in item.position], np.int64)
        partition = np.array([value for item in items for value in item.partition], np.int64)
        item_of = np.repeat(np.arange(len(items)), np.array([len(item.base) for item in items], np.int64))
        rows = np.full(len(base), -1, np.int64)
        for number in np.unique(partition).tolist():
            where = np.flatnonzero(partition == number)
            span = all_rows.partition_rows(number)
            if span.start == span.stop:
                continue
            nearest = np.minimum(span.start + np.searchsorted(all_rows.base[span], base[where]), span.stop - 1)
            same = (all_rows.base[nearest] == base[where]) & (all_rows.position[nearest] == position[where])
            rows[where[same]] = nearest[same]
        # Compare paths only once per item and file, because an item has a single path.
        present = np.flatnonzero(rows >= 0)
        pairs, pair_of = np.unique(item_of[present] << 32 | all_rows.file[rows[present]], return_inverse=True)
        right = [self.texts[0][pair & 0xFFFFFFFF] == items[pair >> 32].path for pair in pairs.tolist()]
        rows[present[~np.array(right, np.bool_)[pair_of]]] = -1
        return rows


def _bisect(column: Offsets, values: Offsets, low: Offsets, high: Offsets, before: np.ufunc) -> Offsets:
    """Return, for each value, the first row in its sorted range `[low, high)` that is not before the value."""
    while (is_open := low < high).any():
        middle = (low + high) // 2
        is_before = is_open & before(column[np.where(is_open, middle, 0)], values)
        low, high = np.where(is_before, middle + 1, low), np.where(is_open & ~is_before, middle, high)
    return low


def _swept(version: int, parts: tuple[Slices, ...], paths: Texts, txn_ids: Texts) -> SliceTable:
    """Return a slice table that consists of `parts`. If most strings are no longer used, the table is rebuilt with new
    codes.
    """
    rows = sum(len(part) for part in parts)
    if not parts or len(paths) + len(txn_ids) <= SPARE_TEXTS + 2 * rows:
        return SliceTable(version, parts, paths, txn_ids)
    all_rows = _joined(parts, paths, txn_ids)
    columns = dict(all_rows.columns)
    texts = []
    for name, old in (("file", paths), ("txn", txn_ids)):
        used, inverse = np.unique(columns[name], return_inverse=True)
        absent = int(np.searchsorted(used, 0))
        columns[name] = (inverse - absent).astype(np.int32)
        texts.append(Texts.of(old.at(used[absent:])))
    part = Slices(columns, *texts)
    return SliceTable(version, (part,), part.paths, part.txn_ids)


def added_slices(commit: Commit) -> Slices:
    """Return the slices that a commit adds, as a separate table."""
    texts = Texts(), Texts()
    return in_order(columns_of((commit,), *texts), *texts)


def _joined(parts: Sequence[Slices], paths: Texts, txn_ids: Texts) -> Slices:
    if len(parts) == 1:
        return parts[0]
    columns = {
        name: np.concatenate([part.columns[name] for part in parts] or [np.zeros(0, dtype)])
        for name, dtype in COLUMN_TYPES.items()
    }
    return in_order(columns, paths, txn_ids)


def in_order(columns: Columns, paths: Texts, txn_ids: Texts) -> Slices:
    """Return these columns sorted by (partition, base)."""
    if len(columns["base"]) < 2:
        return Slices(columns, paths, txn_ids)
    order = np.lexsort((columns["base"], columns["partition"]))
    if not np.array_equal(order, np.arange(len(order))):
        columns = {name: column[order] for name, column in columns.items()}
    return Slices(columns, paths, txn_ids)


def _above(part: Slices, log_start: Offsets) -> Slices:
    keep = part.end > log_start[part.partition]
    return part if keep.all() else part[keep]


def _resolved(part: Slices, resolved: Sequence[TxnDecision]) -> Slices:
    if not (part.status == OPEN).any():
        return part
    status = part.status.copy()
    for item in resolved:
        for row in np.flatnonzero((status == OPEN) & (part.txn_n == item.n)).tolist():
            if part.txn_id(row) == item.id:
                status[row] = COMMITTED if int(part.prepare_version[row]) in item.committed else ABORTED
    return Slices({**part.columns, "status": status}, part.paths, part.txn_ids)


def columns_of(commits: Sequence[Commit], paths: Texts, txn_ids: Texts) -> Columns:
    """Return the slices that commits add, in commit order, and add their paths and transactional ids to the strings."""
    values: dict[str, list[int]] = {name: [] for name in COLUMN_TYPES}
    for commit in commits:
        for file in commit.files:
            _add_file(values, commit, file, paths.code(file.path))
        if commit.txn is None:
            constants = {"status": PLAIN, "txn": -1, "txn_n": -1, "prepare_version": -1}
        else:
            txn = txn_ids.code(commit.txn.id)
            constants = {"status": OPEN, "txn": txn, "txn_n": commit.txn.n, "prepare_version": commit.version}
        count = len(values["base"]) - len(values["txn"])
        for name, value in constants.items():
            values[name] += [value] * count
    # A single array for all columns is fastest, because most commits have few slices.
    rows = zip(COLUMN_TYPES.items(), np.array([values[name] for name in COLUMN_TYPES], np.int64), strict=True)
    return {name: row.astype(dtype, copy=False) for (name, dtype), row in rows}


def _add_file(values: dict[str, list[int]], commit: Commit, file: FileSlices, code: int) -> None:
    n = len(file)
    values["file"] += (code,) * n
    values["file_size"] += (file.size,) * n
    values["footer_length"] += (file.footer_length,) * n
    values["read_version"] += (path_read_version(file.path) or 0,) * n
    values["position"] += file.starts
    values["size"] += file.nbytes
    values["partition"] += file.partition
    values["base"] += file.base
    values["end"] += map(add, file.base, file.offsets)
    values["shift"] += file.shift or ((0,) * n if is_sealed(file.path) else file.base)
    values["records"] += file.records
    values["crc"] += file.crc
    values["flags"] += file.flags
    values["leader_epoch"] += file.leader_epoch or (commit.leader_epoch,) * n
    values["index_crc"] += file.index_crc or (0,) * n
    times = file.append_times(commit.created_ms)
    values["append_time"] += times
    for name, stamps in (("min_ts", file.min_ts), ("max_ts", file.max_ts)):
        if max(times, default=-1) < 0:
            values[name] += stamps
        else:
            values[name] += [stamp if time < 0 else time for stamp, time in zip(stamps, times, strict=True)]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A topic at one version: its state and all its slices."""

    topic: str
    store: Store
    state: TopicState
    slices: SliceTable

    @property
    def version(self) -> int:
        return self.state.version


ReadLatest: TypeAlias = Callable[[], Snapshot]
"""A function that returns the topic's latest snapshot for readers. It is called if a file of a snapshot no longer
exists.
"""
