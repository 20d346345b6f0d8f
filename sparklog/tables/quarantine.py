"""The quarantine table, which contains the bad records of a copy.

The bad records of an interval are committed before its rows, with a watermark of the quarantine table. If a run is
killed between the two commits, the next run reads the interval again, and skips the bad records below this watermark.
If the next run has other options, other records may be bad. In this case it does not skip any records, so a record may
be in the quarantine table twice, or in both tables, but is never lost. The id of each commit therefore ends with a hash
of the options. The same applies to a Delta table if other programs changed the table or deleted entries of its log
between the two runs, because the id is stored in an entry of the log.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from sparklog.errors import BadRequest
from sparklog.format.arrow_numpy import fixed_values
from sparklog.log.journal.clocks import Env
from sparklog.tables.commits import commit_interval, load_again
from sparklog.tables.data_files import DataFileWriter
from sparklog.tables.rows import BAD_RECORD_SCHEMA
from sparklog.tables.target import TableLayout, TableState, TargetTable
from sparklog.tables.watermark import Watermark


class Quarantine:
    """Writes the bad records of one interval. Use it as a context manager.

    Args:
        table: The quarantine table, which is created for the first bad record.
        base: The watermark of the copied table before the interval.
        after: The watermark of the copied table after the interval.
        fingerprint: A hash of the options that determine which records are bad.
        env: The environment.
    """

    def __init__(self, table: TargetTable, base: Watermark, after: Watermark, fingerprint: str, env: Env) -> None:
        self._table = table
        self._base = base
        self._after = after
        self._fingerprint = fingerprint
        self._env = env
        self._state: TableState | None = None
        self._written: Mapping[int, int] = {}
        self._writer: DataFileWriter | None = None

    def __enter__(self) -> Quarantine:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._writer is not None:
            self._writer.__exit__(kind)

    def add(self, bad: pa.RecordBatch) -> None:
        """Add bad records, unless the quarantine table contains them."""
        if self._writer is None:
            self._state, self._written = self._loaded()
            after = self._after
            self._writer = DataFileWriter(self._table, self._state, after.topic_id, after.commit_id, after.next_offsets)
        assert self._state is not None
        new = bad.filter(pa.array(_is_new(bad, self._written)))
        if new.num_rows:
            rows = pa.RecordBatch.from_arrays(new.columns, schema=self._state.schema)
            self._writer.write(rows, new["partition"], new["offset"])

    def commit(self) -> bool:
        """Commit the bad records. Return False if another run has committed, so the interval must be copied again."""
        writer, state = self._writer, self._state
        if writer is None or state is None or not (files := writer.finish()):
            return True
        after = self._after
        ends = {partition: max(end, self._written.get(partition, 0)) for partition, end in after.next_offsets.items()}
        watermark = replace(
            after, next_offsets=ends, commit_id=f"{after.commit_id}-{self._fingerprint}", mode="quarantine"
        )

        def commit(current: TableState) -> None:
            self._table.append(current, files, watermark)

        return commit_interval(self._table, state, watermark, commit, writer.discard, self._env)

    def _loaded(self) -> tuple[TableState, Mapping[int, int]]:
        """Return the version of the table and its `_written_offsets`. Create the table if it does not exist."""
        state = self._table.load() or self._create()
        while (watermark := self._checked_watermark(state)).source != self._after.source:
            # The topic was created again. A commit with a new source cannot contain rows: see `TargetTable.append`.
            base = replace(self._base, commit_id=self._env.new_id(), mode="quarantine")

            def commit(current: TableState, base: Watermark = base) -> None:
                self._table.append(current, (), base)

            commit_interval(self._table, state, base, commit, lambda: None, self._env)
            state = load_again(self._table, self._env)
        return state, self._written_offsets(watermark)

    def _written_offsets(self, watermark: Watermark) -> Mapping[int, int]:
        """Return, for each partition, the offset below which the table contains the bad records of this copy."""
        return watermark.next_offsets if watermark.commit_id.endswith(f"-{self._fingerprint}") else {}

    def _create(self) -> TableState:
        watermark = replace(self._base, commit_id="", mode="quarantine")
        return self._table.create(TableLayout(BAD_RECORD_SCHEMA, "quarantine"), watermark)

    def _checked_watermark(self, state: TableState) -> Watermark:
        """Return the watermark of the table. Raises `BadRequest` if it is not the quarantine table of this topic."""
        watermark, after = state.watermark, self._after
        if watermark is None or watermark.mode != "quarantine" or state.schema.names != BAD_RECORD_SCHEMA.names:
            raise BadRequest(f"table {self._table.name} is not a quarantine table: rename or delete the table")
        if (watermark.root_id, watermark.topic) != (after.root_id, after.topic):
            raise BadRequest(
                f"table {self._table.name} contains bad records of topic '{watermark.topic}' of the root with id "
                f"{watermark.root_id}, not of topic '{after.topic}' of the root with id {after.root_id}"
            )
        return watermark


def _is_new(bad: pa.RecordBatch, written: Mapping[int, int]) -> npt.NDArray[np.bool_]:
    partition, offset = fixed_values(bad["partition"], np.int32), fixed_values(bad["offset"], np.int64)
    new = np.ones(len(offset), np.bool_)
    for number in np.unique(partition).tolist():
        new &= (partition != number) | (offset >= written.get(number, 0))
    return new
