"""`DeltaLakeTable`, the target of a copy in a Delta table, with the library deltalake and without Spark.

A commit creates the next entry of the table's log, which is a single request. It contains the files, and the watermark
in this form:

| part of the watermark                  | stored as                                                                   |
|----------------------------------------|-----------------------------------------------------------------------------|
| root id, topic, topic id, mode         | table properties `sparklog.*`                                               |
| offsets of the first commit            | table property `sparklog.next-offsets`                                      |
| next offset of a topic partition       | version of the application transaction `sparklog/<topic id>/<partition>`    |
| commit id                              | `sparklog.commit-id` in the information about the commit; a hash of the id  |
|                                        | is the version of the application transaction `sparklog/commit`             |

Application transactions are Delta's mechanism for exactly-once writes. They are part of checkpoints and do not expire,
unless the table has the property `delta.setTransactionRetentionDuration`.

Table properties and rows cannot change in the same commit. Therefore, a commit whose watermark has another source must
not contain rows.

**Outcomes.** A commit that is based on version v of the table creates entry v + 1, and the library must not try a later
entry. If the library reports a failure, entry v + 1 decides: the object store may have received the request twice, in
which case the second one was rejected because of the first.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import datetime
from typing import IO, Any, cast
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pafs
import pyarrow.parquet as pq
from deltalake import CommitProperties, DeltaTable, Field, Schema, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError, DeltaProtocolError, TableNotFoundError
from deltalake.fs import DeltaStorageHandler
from deltalake.transaction import AddAction, RemoveAction

from sparklog.errors import BadRequest, Conflict, NotFound, SparklogError, Unavailable
from sparklog.format.key_hash import bucket_for_value
from sparklog.log.journal.clocks import Env
from sparklog.tables.delta_files import partition_text, statistics
from sparklog.tables.merge import ExistingFile, commit_upsert, read_batches
from sparklog.tables.option_names import option_name, option_value
from sparklog.tables.target import ChangeSet, NewFile, NewOutput, PartitionBy, TableLayout, TableState
from sparklog.tables.watermark import COMMIT_ID, KEYS, Watermark

PARTITION_BY = "sparklog.partition-by"
"""Table property with the transform of an additional partition column, such as `day(_timestamp)`."""
TRANSFORM = re.compile(r"(day|bucket)\((?:(\d+),)?(.+)\)", re.DOTALL)
COLUMN_OF = {"day": "_date", "bucket": "_bucket"}
"""The additional partition columns. Delta has no transforms, so partition values are columns."""
TYPE_OF = {"day": pa.date32(), "bucket": pa.int32()}
COMMIT_TRANSACTION = "sparklog/commit"
RETENTION = "delta.setTransactionRetentionDuration"
MAX_ENTRIES = 5
"""The maximum number of entries of the log that are read to find the latest commit of a copy."""
LOG_DIRECTORY = "_delta_log"
TABLE_PROPERTIES = {
    # Each load reads all entries since the last checkpoint. The default of deltalake is 100, and that of Spark is 10.
    "delta.checkpointInterval": "10",
}
"""Properties of a new table."""
PLAIN_PATH = re.compile(r"[A-Za-z0-9_.=/+-]*(?:%20[A-Za-z0-9_.=/+-]*)*")
"""Paths whose encoding in the log does not depend on the writer."""
ARROW = re.compile(r"\s*(?:\x1b\[[0-9;]*m)*\N{DOWNWARDS ARROW WITH TIP RIGHTWARDS}(?:\x1b\[[0-9;]*m)*")


class DeltaLakeTable:
    """A Delta table in a directory. See `sparklog.tables.target.TargetTable`.

    Args:
        location: The directory or URL of the table.
        storage_options: Settings of the object store, as in deltalake.
        env: The clock, and random ids for the names of files.
    """

    def __init__(self, location: str, storage_options: Mapping[str, str], env: Env) -> None:
        self._location = location
        self._options = dict(storage_options)
        self._env = env
        self._commit_ids: dict[int, str] = {}

    @property
    def name(self) -> str:
        return self._location

    def load(self) -> TableState | None:
        with self._errors("load"):
            try:
                table = DeltaTable(self._location, storage_options=self._options)
            except TableNotFoundError:
                return None
        return self._state(table)

    def create(self, layout: TableLayout, watermark: Watermark) -> TableState:
        self._check_directory()
        by = layout.partition_by
        columns, properties = list(layout.schema), TABLE_PROPERTIES | watermark.to_properties()
        partition_columns = []
        if by is not None:
            partition_columns = [COLUMN_OF[by.transform]]
            self._check_columns(columns, partition_columns)
            columns.append(pa.field(COLUMN_OF[by.transform], TYPE_OF[by.transform]))
            properties[PARTITION_BY] = _transform_text(by)
        with self._errors("create"):
            try:
                table = DeltaTable.create(
                    self._location,
                    self._schema(columns),
                    partition_by=partition_columns,
                    configuration=properties,
                    raise_if_key_not_exists=False,
                    storage_options=self._options,
                    commit_properties=self._commit_properties(watermark),
                )
            except DeltaError:
                # Another process may have created the table.
                state = self.load()
                if state is None:
                    raise
                return state
        return self._state(table)

    def add_columns(self, state: TableState, columns: Sequence[pa.Field]) -> TableState:
        table: DeltaTable = state.handle
        if widened := [column.name for column in columns if column.name in state.schema.names]:
            raise BadRequest(
                f"cannot change the type of column '{widened[0]}' of table {self.name}, because Delta tables without "
                "type widening do not support this: change --schema, or copy the topic to a new table"
            )
        self._check_columns(columns, table.metadata().partition_columns)
        fields: list[Field] = list(self._schema([column.with_nullable(True) for column in columns]).fields)
        with self._commit_errors(table.version(), None):
            table.alter.add_columns(fields, commit_properties=CommitProperties(max_commit_retries=0))
        return self._loaded()

    def for_tasks(self, state: TableState) -> tuple[DeltaLakeTable, TableState]:
        return self, replace(state, handle=None)

    def partition_values(self, state: TableState, rows: pa.RecordBatch) -> pa.RecordBatch:
        by, names = state.partitioning
        if by is None:
            return rows.select(names) if names else pa.RecordBatch.from_arrays([], schema=pa.schema([]))
        column = rows.column(by.columns[0])
        if by.transform == "day":
            values = column.cast(pa.date32(), safe=False)
        else:
            values = _buckets(column, by.buckets)
        return pa.RecordBatch.from_pydict({COLUMN_OF[by.transform]: values})

    def open_output(self, state: TableState, name: str) -> NewOutput:
        with self._errors("create a file of"):
            return NewOutput(name, cast(IO[bytes], _Output(self._files(), name)))

    def append(self, state: TableState, files: Sequence[NewFile], watermark: Watermark) -> None:
        self.commit(state, files, (), watermark)

    def upsert(self, state: TableState, changes: ChangeSet, watermark: Watermark) -> None:
        commit_upsert(self, state, changes, watermark, self._env.new_id())

    def clear(self, state: TableState, watermark: Watermark) -> None:
        existing = self.existing_files(state)
        if existing and state.watermark is not None:
            emptied = replace(state.watermark, commit_id=self._env.new_id())
            self.commit(state, (), existing, emptied)
            state = self._loaded()
            if state.watermark != emptied:
                raise Conflict(f"another commit to table {self.name} came first")
        self.commit(state, (), (), watermark)

    def replace_files(self, state: TableState, added: Sequence[NewFile], removed: Sequence[ExistingFile]) -> None:
        """Replace files with files that contain the same rows, based on exactly `state`."""
        self.commit(state, added, removed, None)

    def commit(
        self, state: TableState, added: Sequence[NewFile], removed: Sequence[ExistingFile], watermark: Watermark | None
    ) -> None:
        """Commit new files, the removal of existing files and the watermark, based on exactly `state`.

        Without a watermark, the new files contain the same rows as the removed files.
        """
        table: DeltaTable = state.handle
        if watermark is not None and (state.watermark is None or state.watermark.source != watermark.source):
            assert not added, "a commit with a new source must not contain rows"
            self._commit_source(table, watermark)
            return
        names = table.metadata().partition_columns
        now_ms, changes_rows = self._env.wall_ms(), watermark is not None
        actions: list[AddAction | RemoveAction] = [
            AddAction(
                file.path,
                file.nbytes,
                dict(zip(names, map(partition_text, file.partition_values), strict=True)),
                now_ms,
                changes_rows,
                statistics(file.metadata, state.schema),
            )
            for file in added
        ]
        actions += [
            RemoveAction(
                path=unquote(file.path),
                data_change=changes_rows,
                deletion_timestamp=now_ms,
                partition_values=dict(zip(names, map(partition_text, file.partition_values or ()), strict=True)),
                size=file.nbytes,
            )
            for file in removed
        ]
        commit_id = self._env.new_id() if watermark is None else watermark.commit_id
        with self._commit_errors(table.version(), commit_id):
            table.create_write_transaction(
                actions,
                "append",
                table.schema(),
                names,
                commit_properties=self._commit_properties(watermark, commit_id),
            )

    def key_columns(self, state: TableState) -> Sequence[str]:
        """Return the columns of the partitioning in upsert mode, because Delta tables do not have key columns."""
        is_upsert = state.watermark is not None and state.watermark.mode == "upsert"
        return self.partition_columns(state) if is_upsert else ()

    def file_prefix(self, state: TableState) -> str:
        return state.watermark.topic_id if state.watermark is not None else "sparklog"

    def delete_files(self, paths: Sequence[str]) -> None:
        files = self._files()
        with self._errors("delete files of"):
            for path in paths:
                with suppress(FileNotFoundError):
                    files.delete_file(path)

    # -- the merge of an upsert: see `sparklog.tables.merge.MergeTable`

    def partition_columns(self, state: TableState) -> Sequence[str]:
        by, names = state.partitioning
        columns: Sequence[str] = names if by is None else by.columns
        return columns

    def existing_files(self, state: TableState) -> Sequence[ExistingFile]:
        table: DeltaTable = state.handle
        names = table.metadata().partition_columns
        with self._errors("read the log of"):
            actions = pa.table(table.get_add_actions(flatten=True)).to_pylist()
        files = []
        for action in actions:
            self._check_file(action)
            bounds = {
                name: (action[f"min.{name}"], _upper_bound(action[f"max.{name}"]))
                for name in state.schema.names
                if action.get(f"min.{name}") is not None and action.get(f"max.{name}") is not None
            }
            values = tuple(action[f"partition.{name}"] for name in names)
            files.append(
                ExistingFile(action["path"], action["num_records"] or 0, action["size_bytes"], values, bounds, action)
            )
        return files

    def read_file(self, state: TableState, file: ExistingFile, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        names = state.handle.metadata().partition_columns
        constants = dict(zip(names, file.partition_values or (), strict=True))
        schema = pa.schema([state.schema.field(name) for name in columns])
        with self._errors("read a file of"):
            stream = DeltaStorageHandler(self._location, self._options).open_input_file(unquote(file.path))
            with stream, pq.ParquetFile(stream) as parquet:
                stored = set(parquet.schema_arrow.names)
                present = [name for name in columns if name in stored]
                for rows in read_batches(parquet, present):
                    yield pa.RecordBatch.from_arrays(
                        [
                            rows.column(field.name).cast(field.type)
                            if field.name in stored
                            else pa.repeat(pa.scalar(constants.get(field.name), field.type), rows.num_rows)
                            for field in schema
                        ],
                        schema=schema,
                    )

    def _check_file(self, action: Mapping[str, Any]) -> None:
        if any(name.startswith("deletion_vector") and value is not None for name, value in action.items()):
            raise BadRequest(
                f"table {self.name} has deletion vectors, which upserts without Spark do not support: use "
                "`REORG TABLE ... APPLY (PURGE)` and the table property delta.enableDeletionVectors=false, or the "
                "Spark job with --checkpoint"
            )
        if not PLAIN_PATH.fullmatch(action["path"]):
            raise BadRequest(
                f"cannot replace the file {action['path']} of table {self.name}, because its name contains special "
                "characters: use the Spark job with --checkpoint"
            )

    # -- the watermark

    def _state(self, table: DeltaTable) -> TableState:
        metadata = table.metadata()
        properties = metadata.configuration
        by = _transform(properties.get(PARTITION_BY))
        added = COLUMN_OF[by.transform] if by is not None and metadata.partition_columns else None
        if by is not None and list(metadata.partition_columns) != [added]:
            by, added = None, None
        columns = [field for field in pa.schema(table.schema().to_arrow()) if field.name != added]
        partitioning = (by, tuple(metadata.partition_columns))
        return TableState(pa.schema(columns), self._watermark(table, properties), partitioning, table)

    def _watermark(self, table: DeltaTable, properties: Mapping[str, str]) -> Watermark | None:
        watermark = Watermark.from_properties(
            {key: value for key, value in properties.items() if key in KEYS}, self.name
        )
        if watermark is None:
            return None
        if properties.get(RETENTION):
            raise BadRequest(
                f"table {self.name} has the property {RETENTION}, with which the watermark expires: remove the "
                f"property (ALTER TABLE ... UNSET TBLPROPERTIES ('{RETENTION}'))"
            )
        # For each transaction, the library reads all entries since the last checkpoint.
        transactions = self._latest_transactions(table.version())
        find = transactions.get if transactions else table.transaction_version
        offsets, partition = dict(watermark.next_offsets), 0
        while True:
            offset = find(_transaction_id(watermark.topic_id, partition))
            if offset is not None:
                offsets[partition] = offset
            elif partition not in offsets:
                break
            partition += 1
        number = find(COMMIT_TRANSACTION)
        # If the commit of another process is not in the latest entries, its id is unknown. Offsets do not depend on the
        # id, but a quarantine then cannot tell which options the commit had, and may add bad records again.
        commit_id = watermark.commit_id if number is None else self._commit_ids.get(number, f"delta-{number}")
        return replace(watermark, next_offsets=offsets, commit_id=commit_id)

    def _latest_transactions(self, version: int) -> dict[str, int]:
        """Return the versions of the application transactions in the latest commit of a copy, by id.

        Each commit of a copy contains all transactions of the table. The result is empty if the latest entries of the
        log were written by other programs.
        """
        for number in range(version, max(version - MAX_ENTRIES, -1), -1):
            entry = self._read_entry(number)
            if entry is None:
                # The entry was deleted, as Spark does with old entries before a checkpoint.
                break
            actions = [json.loads(line).get("txn") for line in entry.splitlines() if b'"txn"' in line]
            transactions = {action["appId"]: action["version"] for action in actions if action is not None}
            if COMMIT_TRANSACTION in transactions:
                commit_id = _commit_id(entry)
                if commit_id is not None:
                    self._commit_ids[transactions[COMMIT_TRANSACTION]] = commit_id
                return transactions
        return {}

    def _commit_source(self, table: DeltaTable, watermark: Watermark) -> None:
        """Commit the table properties of a watermark."""
        with self._commit_errors(table.version(), watermark.commit_id):
            table.alter.set_table_properties(
                watermark.to_properties(),
                raise_if_not_exists=False,
                commit_properties=self._commit_properties(watermark),
            )

    def _commit_properties(self, watermark: Watermark | None, commit_id: str = "") -> CommitProperties:
        transactions = []
        if watermark is not None:
            commit_id, number = watermark.commit_id, _commit_number(watermark.commit_id)
            self._commit_ids[number] = commit_id
            now_ms = self._env.wall_ms()
            transactions = [
                Transaction(_transaction_id(watermark.topic_id, partition), offset, now_ms)
                for partition, offset in sorted(watermark.next_offsets.items())
            ]
            transactions.append(Transaction(COMMIT_TRANSACTION, number, now_ms))
        # A retry would commit on top of the entries of other writers.
        return CommitProperties(
            custom_metadata={COMMIT_ID: commit_id}, max_commit_retries=0, app_transactions=transactions
        )

    # -- files and errors

    def _files(self) -> pafs.PyFileSystem:
        return pafs.PyFileSystem(DeltaStorageHandler(self._location, self._options))

    def _check_directory(self) -> None:
        """Raise `BadRequest` if the directory contains files that are not part of a table: VACUUM would delete them."""
        if "://" not in self._location:
            with suppress(FileNotFoundError):
                found = pafs.LocalFileSystem().get_file_info(pafs.FileSelector(self._location))
                self._check_names([entry.base_name for entry in found])
            return
        with self._errors("list the files of"):
            found = self._files().get_file_info(pafs.FileSelector("", allow_not_found=True, recursive=True))
        self._check_names([entry.path.partition("/")[0] for entry in found])

    def _check_names(self, names: Sequence[str]) -> None:
        other = [name for name in names if name != LOG_DIRECTORY]
        if other:
            raise BadRequest(
                f"{self.name} is not a Delta table, but contains files such as {min(other)}: use a new directory"
            )

    def _check_columns(self, columns: Sequence[pa.Field], partition_columns: Sequence[str]) -> None:
        """Raise `BadRequest` if a new column has the name of a partition column."""
        if names := [column.name for column in columns if column.name.lower() in partition_columns]:
            raise BadRequest(
                f"column {names[0]} of the records has the name of the partition column of table {self.name}: rename "
                f"the field in {option_name('schema')}, or use {option_value('partition_by', 'none')} for a new table"
            )

    def _schema(self, columns: Sequence[pa.Field]) -> Schema:
        unsupported = next((column for column in columns if _is_unsupported(column.type)), None)
        if unsupported is not None:
            raise BadRequest(f"Delta tables do not support column '{unsupported.name}' of type {unsupported.type}")
        try:
            return Schema.from_arrow(pa.schema(columns))
        except Exception as error:  # noqa: BLE001  (The library raises no other class for an unsupported type.)
            raise BadRequest(f"cannot create columns of table {self.name}: {_text(error)}") from None

    def _loaded(self) -> TableState:
        state = self.load()
        if state is None:
            raise NotFound(f"table {self.name} was deleted during the run: run the copy again to create it")
        return state

    @contextmanager
    def _commit_errors(self, version: int, commit_id: str | None) -> Iterator[None]:
        """Convert the errors of a commit that is based on a version."""
        try:
            yield
        except CommitFailedError as error:
            self._check_rejected(version, commit_id, error)
        except DeltaProtocolError as error:
            raise BadRequest(f"cannot write to table {self.name}: {_text(error)}") from None
        except TableNotFoundError:
            raise NotFound(f"table {self.name} was deleted during the run: run the copy again to create it") from None
        except (DeltaError, OSError) as error:
            if isinstance(error, PermissionError):
                raise self._denied("commit to", error) from error
            self._check_rejected(version, commit_id, error)

    def _check_rejected(self, version: int, commit_id: str | None, error: Exception) -> None:
        """Raise the outcome of a commit for which the library has raised an error. Return if the commit succeeded."""
        unknown = Unavailable(
            f"the result of a commit to table {self.name} is unknown: {_text(error)}", is_unknown=True
        )
        try:
            entry = self._read_entry(version + 1)
        except SparklogError as unavailable:
            raise unknown from unavailable
        if entry is None:
            # The request may still be in flight. If the entry was deleted, another commit came first.
            raise unknown from error
        if commit_id is None or _commit_id(entry) != commit_id:
            raise Conflict(f"another commit to table {self.name} came first") from None

    def _read_entry(self, version: int) -> bytes | None:
        with self._errors("read the log of"):
            try:
                with self._files().open_input_stream(f"{LOG_DIRECTORY}/{version:020}.json") as stream:
                    return bytes(stream.read())
            except FileNotFoundError:
                return None

    @contextmanager
    def _errors(self, action: str) -> Iterator[None]:
        """Convert the errors of a request that does not commit."""
        try:
            yield
        except SparklogError:
            raise
        except PermissionError as error:
            raise self._denied(action, error) from error
        except DeltaProtocolError as error:
            raise BadRequest(f"cannot {action} table {self.name}: {_text(error)}") from None
        except (DeltaError, OSError, pa.ArrowException) as error:
            raise Unavailable(f"cannot {action} table {self.name}: {_text(error)}") from error

    def _denied(self, action: str, error: Exception) -> Unavailable:
        return Unavailable(f"access denied: cannot {action} table {self.name}: {_text(error)}", is_denied=True)


class _Output:
    """A file for writing. The library's own file accepts only `bytes`, and pyarrow also writes buffers."""

    def __init__(self, files: pafs.PyFileSystem, name: str) -> None:
        self._file = files.handler._handler.open_output_stream(name)
        self._position = 0
        self.closed = False

    def write(self, data: Any) -> int:
        written = bytes(memoryview(data))
        self._file.write(written)
        self._position += len(written)
        return len(written)

    def tell(self) -> int:
        return self._position

    def flush(self) -> None:
        pass

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self._file.close()

    def __enter__(self) -> _Output:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    readable: Callable[[], bool] = staticmethod(lambda: False)
    writable: Callable[[], bool] = staticmethod(lambda: True)
    seekable: Callable[[], bool] = staticmethod(lambda: False)


def _transaction_id(topic_id: str, partition: int) -> str:
    return f"sparklog/{topic_id}/{partition}"


def _commit_number(commit_id: str) -> int:
    """Return a hash of a commit id, of 63 bits."""
    return int.from_bytes(hashlib.sha256(commit_id.encode()).digest()[:8], "big") >> 1


def _commit_id(entry: bytes) -> str | None:
    """Return the id in an entry of the log, or None if another program has written the entry."""
    for line in entry.splitlines():
        with suppress(ValueError):
            action = json.loads(line)
            if isinstance(action, dict) and "commitInfo" in action:
                return cast("str | None", action["commitInfo"].get(COMMIT_ID))
    return None


def _upper_bound(value: Any) -> Any:
    """Return an upper bound of a column, given its maximum in the log. Other writers such as Spark round the maximum of
    timestamps down to milliseconds.
    """
    if not isinstance(value, datetime):
        return value
    return value.replace(microsecond=value.microsecond // 1000 * 1000 + 999)


def _transform_text(by: PartitionBy) -> str:
    return f"day({by.columns[0]})" if by.transform == "day" else f"bucket({by.buckets},{by.columns[0]})"


def _transform(text: str | None) -> PartitionBy | None:
    match = TRANSFORM.fullmatch(text or "")
    if match is None:
        return None
    transform, buckets, column = match.groups()
    if transform == "day":
        return PartitionBy("day", (column,))
    return PartitionBy("bucket", (column,), int(buckets or 1))


def _buckets(column: pa.Array, buckets: int) -> pa.Array:
    """Return the bucket of each value. The buckets of a value are the same as in Iceberg tables."""
    if pa.types.is_integer(column.type):
        words = column.cast(pa.int64())
        column = pa.Array.from_buffers(pa.binary(8), len(words), words.buffers(), words.null_count, words.offset)
    elif not (pa.types.is_string(column.type) or pa.types.is_binary(column.type)):
        column = pc.cast(column, pa.string())
    numbers = bucket_for_value(column, buckets)
    return pa.array(numbers, pa.int32(), mask=numbers < 0)


def _is_unsupported(kind: pa.DataType) -> bool:
    """Return True if a type contains a time, or an unsigned integer. deltalake would convert the unsigned integer to a
    signed integer of the same width.
    """
    inner = (kind.field(index).type for index in range(kind.num_fields))
    return pa.types.is_unsigned_integer(kind) or pa.types.is_time(kind) or any(map(_is_unsupported, inner))


def _text(error: BaseException) -> str:
    """Return the message of an error in one line. deltalake joins the causes of an error with colored arrows."""
    text = ARROW.sub(":", str(error))
    return " ".join(text.split()) or type(error).__name__
