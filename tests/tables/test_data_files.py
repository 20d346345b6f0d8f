"""Parquet files with the rows of an interval."""

from __future__ import annotations

import datetime

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from sparklog.tables import data_files
from sparklog.tables.data_files import DataFileWriter
from sparklog.tables.rows import POSITION
from sparklog.tables.target import PartitionBy, TableLayout, TableState
from sparklog.tables.watermark import Watermark
from tests.tables.memory_table import MemoryCatalog, MemoryTable

SCHEMA = pa.schema([pa.field("value", pa.binary()), pa.field("name", pa.string()), *POSITION])


def new_table() -> tuple[MemoryTable, TableState]:
    table = MemoryTable(MemoryCatalog())
    layout = TableLayout(SCHEMA, "append", PartitionBy("day", ("_timestamp",)))
    return table, table.create(layout, Watermark("r", "t", "id", {}, "", "append"))


def rows(partition: list[int], first: int, days: list[int] | None = None) -> pa.RecordBatch:
    count = len(partition)
    columns = {
        "value": [b"v" * 100] * count,
        "name": ["n"] * count,
        "_topic": ["t"] * count,
        "_partition_id": partition,
        "_offset": list(range(first, first + count)),
        "_timestamp": [day * 86_400_000_000 for day in days or [0] * count],
    }
    return pa.RecordBatch.from_arrays([pa.array(columns[item.name], item.type) for item in SCHEMA], schema=SCHEMA)


def write(writer: DataFileWriter, batch: pa.RecordBatch) -> None:
    writer.write(batch, batch["_partition_id"], batch["_offset"])


def test_rows_of_interleaved_partitions_and_days() -> None:
    table, state = new_table()
    writer = DataFileWriter(table, state, "id", "attempt", {0: 30, 1: 30})
    write(writer, rows([0, 1, 0, 1], 0, [0, 0, 1, 0]))
    write(writer, rows([0, 0], 4, [1, 0]))
    files = {file.path: file for file in writer.finish()}
    contents = {
        path: pq.read_table(pa.BufferReader(data))["_offset"].to_pylist() for path, data in table.catalog.files.items()
    }
    assert sorted(contents.values()) == [[0, 5], [1, 3], [2, 4]]
    for path, file in files.items():
        assert (file.records, file.nbytes) == (len(contents[path]), len(table.catalog.files[path]))
        assert file.metadata.num_rows == file.records
        day = datetime.date(1970, 1, 2) if contents[path] == [2, 4] else datetime.date(1970, 1, 1)
        assert file.partition_values == (day,)


def test_memory_is_bounded_by_row_groups_and_open_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_files, "ROW_GROUP_BYTES", 3000)
    monkeypatch.setattr(data_files, "BUFFER_BYTES", 10_000)
    monkeypatch.setattr(data_files, "FILE_BYTES", 2500)
    monkeypatch.setattr(data_files, "MAX_OPEN_FILES", 2)
    monkeypatch.setattr(data_files, "MIXED_BYTES", 1000)
    monkeypatch.setattr(data_files, "COLUMN_BYTES", 0)
    table, state = new_table()
    writer = DataFileWriter(table, state, "id", "attempt", dict.fromkeys(range(5), 1000))
    for number in range(0, 400, 20):
        write(writer, rows([0] * 20, number))
    for number in range(0, 200, 10):
        write(writer, rows([1, 2, 3, 4, 1, 2, 3, 4, 1, 2], number))
        assert sum(buffer.nbytes for buffer in writer._buffers.values()) <= 10_000
        assert sum(buffer.file is not None for buffer in writer._buffers.values()) <= 2
    files = writer.finish()
    assert len({file.path for file in files}) == len(files) > 8
    assert sum(file.records for file in files) == 600
    assert any(file.metadata.num_row_groups > 1 for file in files)
    offsets: dict[int, list[int]] = {}
    for file in sorted(files, key=lambda file: file.path):
        read = pq.read_table(pa.BufferReader(table.catalog.files[file.path]))
        offsets.setdefault(read["_partition_id"][0].as_py(), []).extend(read["_offset"].to_pylist())
    assert {partition: sorted(found) == found for partition, found in offsets.items()} == dict.fromkeys(range(5), True)


def test_an_error_deletes_the_files_unless_they_are_complete(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_files, "ROW_GROUP_BYTES", 0)
    table, state = new_table()
    for finish in (False, True):
        try:
            with DataFileWriter(table, state, "id", f"attempt-{finish}", {0: 9}) as writer:
                write(writer, rows([0], 0))
                assert table.catalog.files
                if finish:
                    writer.finish()
                raise ZeroDivisionError
        except ZeroDivisionError:
            assert bool(table.catalog.files) is finish
    writer.discard()
    assert not table.catalog.files


def test_file_that_cannot_be_completed_is_deleted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The footer of a file is written when the file is closed, which fails if a disk is full."""

    class FullDisk(pq.ParquetWriter):
        def close(self) -> None:
            super().close()
            raise OSError("No space left on device")

    monkeypatch.setattr(pq, "ParquetWriter", FullDisk)
    table, state = new_table()
    writer = DataFileWriter(table, state, "id", "attempt", {0: 9})
    write(writer, rows([0], 0))
    with pytest.raises(OSError, match="No space left on device"), writer:
        writer.finish()
    assert not table.catalog.files


def test_raw_values_have_no_dictionary_and_no_statistics() -> None:
    table, state = new_table()
    writer = DataFileWriter(table, state, "id", "attempt", {0: 9})
    write(writer, rows([0, 0], 0))
    (file,) = writer.finish()
    columns = {file.metadata.row_group(0).column(index).path_in_schema: index for index in range(len(SCHEMA))}
    value, name = (file.metadata.row_group(0).column(columns[item]) for item in ("value", "name"))
    assert (value.has_dictionary_page, value.is_stats_set) == (False, False)
    assert (name.has_dictionary_page, name.is_stats_set) == (True, True)
    assert value.compression == "ZSTD"
    assert b"ARROW:schema" not in (file.metadata.metadata or {})


def test_rows_of_many_days(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_files, "BUFFER_BYTES", 200_000)
    monkeypatch.setattr(data_files, "MIXED_BYTES", 50_000)
    monkeypatch.setattr(data_files, "MAX_OPEN_FILES", 3)
    table, state = new_table()
    writer = DataFileWriter(table, state, "id", "attempt", {0: 3000})
    for first in range(0, 3000, 50):
        days = [offset % 2 * (offset % 40) for offset in range(first, first + 50)] if first != 100 else [1] * 50
        write(writer, rows([0] * 50, first, days))
        assert writer._mixed_bytes < 50_000
        assert writer._buffered_bytes <= 200_000
    files = writer.finish()
    assert writer._buffered_bytes == 0
    assert {file.partition_values[0].toordinal() - 719163 for file in files} == {0, *range(1, 40, 2)}
    found: dict[int, list[int]] = {}
    for file in files:
        read = pq.read_table(pa.BufferReader(table.catalog.files[file.path]))
        day = file.partition_values[0].toordinal() - 719163
        assert pc.unique(read["_timestamp"]).cast(pa.int64()).to_pylist() == [day * 86_400_000_000]
        found.setdefault(day, []).extend(read["_offset"].to_pylist())
    assert all(sorted(offsets) == offsets for offsets in found.values())
    assert sorted(offset for offsets in found.values() for offset in offsets) == list(range(3000))


def test_memory_of_small_batches_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_files, "MIXED_BYTES", 50_000)
    table, state = new_table()
    writer = DataFileWriter(table, state, "id", "attempt", {0: 400})
    for first in range(0, 400, 2):
        write(writer, rows([0, 0], first, [0, 1]))
        assert len(writer._mixed) * len(SCHEMA) * data_files.COLUMN_BYTES < 50_000
    assert sum(file.records for file in writer.finish()) == 400


def test_file_that_was_closed_for_another_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_files, "ROW_GROUP_BYTES", 5000)
    monkeypatch.setattr(data_files, "MAX_OPEN_FILES", 1)
    table, state = new_table()
    writer = DataFileWriter(table, state, "id", "attempt", {0: 9, 1: 90})
    write(writer, rows([0], 0))
    write(writer, rows([1] * 50, 0))
    assert sorted(file.records for file in writer.finish()) == [1, 50]


def test_null_partition_values() -> None:
    schema = pa.schema([field.with_nullable(True) if field.name == "_timestamp" else field for field in SCHEMA])
    table = MemoryTable(MemoryCatalog())
    layout = TableLayout(schema, "append", PartitionBy("day", ("_timestamp",)))
    state = table.create(layout, Watermark("r", "t", "id", {}, "", "append"))
    writer = DataFileWriter(table, state, "id", "attempt", {0: 9})
    batch = rows([0, 0, 0], 5).to_pylist()
    for number in (0, 2):
        batch[number]["_timestamp"] = None
    write(writer, pa.RecordBatch.from_pylist(batch, schema))
    write(writer, pa.RecordBatch.from_pylist(batch[:1], schema))
    write(writer, pa.RecordBatch.from_pylist([], schema))
    files = {file.partition_values: file.records for file in writer.finish()}
    assert files == {(None,): 3, (datetime.date(1970, 1, 1),): 1}
