"""Parquet files with the rows of an interval of offsets.

A file contains rows of one topic partition, in offset order, with the same partition values of the table. Its name
consists of the topic id, the topic partition, the offset of its first row, the end of the interval, a random id of the
attempt and a number, so that two attempts never write to the same file.

Memory is bounded for any number of rows: if more than `BUFFER_BYTES` are buffered, the largest buffers are written to
their files as row groups, and a file that is large enough is closed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from sparklog.errors import SparklogError
from sparklog.tables.target import NewFile, NewOutput, TableState, TargetTable, rows_by_values

ROW_GROUP_BYTES = 64 << 20
"""Size of a row group in memory."""
BUFFER_BYTES = 96 << 20
"""Maximum size of all buffered rows."""
MIXED_BYTES = 32 << 20
"""Size of the batches with several topic partitions or partition values that are divided together."""
COLUMN_BYTES = 512
"""Size in memory of a column of a batch in addition to its values."""
FILE_BYTES = 256 << 20
"""Size at which a file is closed."""
MAX_OPEN_FILES = 16
COMPRESSION, COMPRESSION_LEVEL = "zstd", 1
PLAIN_COLUMNS = ("key", "value", "_headers")
"""Columns without a dictionary and statistics if they contain bytes, because the values of raw records are rarely
repeated.
"""


@dataclass
class _OpenFile:
    output: NewOutput
    writer: pq.ParquetWriter
    records: int = 0


@dataclass
class _Buffer:
    """The rows of a topic partition with the same partition values that have not been written."""

    batches: list[pa.RecordBatch] = field(default_factory=list)
    nbytes: int = 0
    first: int = 0
    file: _OpenFile | None = None

    def add(self, rows: pa.RecordBatch, offset: int) -> int:
        """Add rows, and return their size in memory."""
        if not self.batches:
            self.first = offset
        self.batches.append(rows)
        nbytes = _memory_of(rows)
        self.nbytes += nbytes
        return nbytes


class DataFileWriter:
    """Writes the rows of an interval. Use it as a context manager: if the block raises an error before `finish`, the
    files are deleted.

    Args:
        target: The table.
        state: The version whose schema and partitioning the files have.
        topic_id: The id of the topic.
        attempt: A random id for the names of the files.
        ends: The end of the interval in each topic partition.
    """

    def __init__(
        self, target: TargetTable, state: TableState, topic_id: str, attempt: str, ends: Mapping[int, int]
    ) -> None:
        self._target = target
        self._state = state
        self._topic_id = topic_id
        self._attempt = attempt
        self._ends = ends
        self._buffers: dict[tuple[Any, ...], _Buffer] = {}
        self._buffered_bytes = 0
        self._open: list[tuple[Any, ...]] = []
        self._mixed: list[tuple[pa.RecordBatch, pa.RecordBatch]] = []
        self._mixed_bytes = 0
        self._created = 0
        self._is_finished = False
        self.files: list[NewFile] = []

    def __enter__(self) -> DataFileWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None and issubclass(kind, Exception) and not self._is_finished:
            with suppress(SparklogError, OSError):
                self.discard()

    def write(self, rows: pa.RecordBatch, partition: pa.Array, offset: pa.Array) -> None:
        """Add rows with the schema of the table, and the positions of their records.

        The rows of a topic partition are written in offset order. The rows of several partitions may be interleaved.
        """
        if not rows.num_rows:
            return
        values = self._target.partition_values(self._state, rows)
        keys = [partition, *values.columns]
        if not self._mixed and all(map(_is_constant, keys)):
            self._add(tuple(key[0].as_py() for key in keys), rows, offset[0].as_py())
        else:
            # Many batches are divided together, because each division of a batch into many parts is slow.
            names = [str(number) for number in range(len(keys) + 1)]
            self._mixed.append((rows, pa.RecordBatch.from_arrays([*keys, offset], names)))
            self._mixed_bytes += _memory_of(rows)
            if self._mixed_bytes >= MIXED_BYTES:
                self._divide()

    def _divide(self) -> None:
        """Add the rows of batches with several topic partitions or partition values."""
        if not self._mixed:
            return
        [rows] = pa.Table.from_batches([rows for rows, _ in self._mixed]).combine_chunks().to_batches()
        [positions] = pa.Table.from_batches([keys for _, keys in self._mixed]).combine_chunks().to_batches()
        self._mixed, self._mixed_bytes = [], 0
        *keys, offset = positions.columns
        for key, index in rows_by_values(keys, rows.num_rows).items():
            self._add(key, rows.take(index), offset[index[0].as_py()].as_py())

    def _add(self, key: tuple[Any, ...], rows: pa.RecordBatch, first: int) -> None:
        buffer = self._buffers.setdefault(key, _Buffer())
        self._buffered_bytes += buffer.add(rows, first)
        if buffer.nbytes >= ROW_GROUP_BYTES:
            self._flush(key)
        if self._buffered_bytes > BUFFER_BYTES:
            for other in sorted(self._buffers, key=lambda key: self._buffers[key].nbytes, reverse=True):
                if self._buffered_bytes <= BUFFER_BYTES // 2:
                    break
                if other in self._buffers:
                    self._flush(other)

    def finish(self) -> Sequence[NewFile]:
        """Complete the files and return them. From now on, only `discard` deletes them."""
        self._divide()
        for key in list(self._buffers):
            if key in self._buffers:
                self._flush(key)
            if key in self._buffers:
                self._close(key)
        self._is_finished = True
        return self.files

    def discard(self) -> None:
        """Delete the files, which no commit contains."""
        paths = [file.path for file in self.files]
        for buffer in self._buffers.values():
            if buffer.file is not None:
                for opened in (buffer.file.writer, buffer.file.output.file):
                    with suppress(SparklogError, OSError):
                        opened.close()
                paths.append(buffer.file.output.path)
        self._buffers, self.files = {}, []
        if paths:
            self._target.delete_files(paths)

    def _flush(self, key: tuple[Any, ...]) -> None:
        """Write the buffered rows of a file as a row group."""
        buffer = self._buffers[key]
        if not buffer.batches:
            return
        file = buffer.file = buffer.file or self._create(key, buffer.first)
        rows = pa.Table.from_batches(buffer.batches)
        file.writer.write_table(rows, row_group_size=max(1, rows.num_rows))
        file.records += rows.num_rows
        self._buffered_bytes -= buffer.nbytes
        buffer.batches, buffer.nbytes = [], 0
        if file.output.file.tell() >= FILE_BYTES:
            self._close(key)

    def _create(self, key: tuple[Any, ...], first: int) -> _OpenFile:
        if len(self._open) >= MAX_OPEN_FILES:
            oldest = self._open[0]
            self._flush(oldest)
            if oldest in self._buffers:
                self._close(oldest)
        partition = key[0]
        name = (
            f"{self._topic_id}-{partition:05}-{first:020}-{self._ends[partition]:020}-{self._attempt}-{self._created}"
        )
        self._created += 1
        output = self._target.open_output(self._state, f"{name}.parquet")
        self._open.append(key)
        return _OpenFile(output, parquet_writer(output, self._state.schema))

    def _close(self, key: tuple[Any, ...]) -> None:
        file = self._buffers[key].file
        if file is not None:
            file.writer.close()
            nbytes = file.output.file.tell()
            file.output.file.close()
            self.files.append(NewFile(file.output.path, file.records, nbytes, key[1:], file.writer.writer.metadata))
            self._open.remove(key)
        # If a step before raises an error, the buffer remains, so that `discard` deletes its file.
        del self._buffers[key]


def parquet_writer(output: NewOutput, schema: pa.Schema, keys: Sequence[str] = ()) -> pq.ParquetWriter:
    """Return a writer of data files with this schema. The files have statistics of the columns `keys`."""
    described = [item.name for item in schema if item.name in keys or not _is_plain(item)]
    # Keys and the offsets of a file are not repeated.
    repeated = [name for name in described if name != "_offset" and name not in keys]
    return pq.ParquetWriter(
        output.file,
        schema,
        compression=COMPRESSION,
        compression_level=COMPRESSION_LEVEL,
        use_dictionary=repeated,
        write_statistics=described,
        store_schema=False,
    )


def _is_plain(item: pa.Field) -> bool:
    return item.name in PLAIN_COLUMNS and (pa.types.is_binary(item.type) or pa.types.is_list(item.type))


def _memory_of(rows: pa.RecordBatch) -> int:
    nbytes: int = rows.nbytes + COLUMN_BYTES * rows.num_columns
    return nbytes


def _is_constant(column: pa.Array) -> bool:
    if column.null_count:
        return bool(column.null_count == len(column))
    bounds = pc.min_max(column)
    return bool(bounds["min"] == bounds["max"])
