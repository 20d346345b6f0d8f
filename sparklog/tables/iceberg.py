"""`IcebergTable`, the target of a copy in an Iceberg catalog, with pyiceberg.

A commit is one request to the catalog. It sets the watermark in the table's properties, and adds a snapshot whose
summary contains the watermark too. The request requires that the snapshot of the loaded version is still the current
one. Other writers may commit without a new snapshot, for example to set a property. Such a commit does not conflict.
A copy always adds a snapshot, even without rows, so of two runs that load the same version only one can commit.

**Watermark.** The watermark of a version is the one in the summary of the nearest ancestor of its current snapshot that
has a watermark. If all of them have expired, it is the one in the properties. The order matters if a user rolls the
table back: the properties still contain the watermark of the commits that were rolled back, and the copy must repeat
them.

**Rejected commits.** pyiceberg's transactions retry a rejected commit on the new version, and then delete the manifests
of the commit. Both are wrong here. Another run may have copied the same records. Also, an HTTP client or a proxy may
send a request twice, so that the first one succeeds and the second one is rejected. Deleting the manifests would then
make the table unreadable. `_SingleAttempt` reports a rejected commit as an error that pyiceberg does not handle, and
the table is loaded to find out whether it contains the snapshot.

**SQL catalogs.** A database reports some failures by an SQLSTATE. If it says that the transaction was rolled back, the
commit is a rejected commit. Any other error of a database, such as a lost connection, may follow a successful commit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import IO, Any, cast
from urllib.parse import urlsplit

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.catalog import WAREHOUSE_LOCATION, Catalog, MetastoreCatalog
from pyiceberg.conversions import from_bytes
from pyiceberg.exceptions import (
    AuthorizationExpiredError,
    BadRequestError,
    CommitFailedException,
    ForbiddenError,
    NoSuchNamespaceError,
    NoSuchTableError,
    OAuthError,
    RESTError,
    TableAlreadyExistsError,
    TooManyRequestsError,
    UnauthorizedError,
    ValidationError,
)
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.io.pyarrow import (
    ArrowScan,
    MetricModeTypes,
    MetricsMode,
    compute_statistics_plan,
    data_file_statistics_from_parquet_metadata,
    parquet_path_to_id_mapping,
)
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.table import CommitTableResponse, FileScanTask, Table, Transaction
from pyiceberg.table.metadata import TableMetadata, TableMetadataV2
from pyiceberg.table.snapshots import Operation, Snapshot, Summary
from pyiceberg.table.update import AddSnapshotUpdate, AssertTableUUID, TableRequirement, TableUpdate
from pyiceberg.typedef import Record
from pyiceberg.types import BinaryType, IntegerType, LongType, StringType

from sparklog.errors import BadRequest, Conflict, NotFound, SparklogError, Unavailable, shortened
from sparklog.tables import iceberg_schema
from sparklog.tables.iceberg_catalog import READ_ONLY, catalog_properties, error_text, sqlstate
from sparklog.tables.merge import ExistingFile, commit_upsert, read_batches
from sparklog.tables.option_names import option_value
from sparklog.tables.root_watermark import FIRST_VERSION, TableHistory
from sparklog.tables.target import ChangeSet, NewFile, NewOutput, TableLayout, TableState
from sparklog.tables.watermark import COMMIT_ID, Watermark

TABLE_PROPERTIES = {
    "format-version": "2",
    "write.parquet.compression-codec": "zstd",
    # Each commit adds a manifest, and every reader reads all manifests. They are merged if there are this many of them.
    "commit.manifest-merge.enabled": "true",
    "commit.manifest.min-count-to-merge": "16",
    # Each commit writes the metadata again, 1 MB after a day of one commit per minute.
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "20",
}
"""Properties of a new table."""
COMPARABLE = (BinaryType, IntegerType, LongType, StringType)
"""Types whose bounds are represented by the same Python values as the values of Arrow."""
NOT_SUPPORTED = 501
"""The HTTP status of a request that a REST catalog does not support."""
ROLLED_BACK = ("40001", "40P01")
"""SQLSTATEs of transactions that were certainly rolled back: serialization failure, deadlock."""
MISSING_RIGHTS = (READ_ONLY, "42501")
"""SQLSTATEs of statements that the role or the server may not execute: read-only transaction, missing privilege."""
DENIED = (AuthorizationExpiredError, ForbiddenError, OAuthError, PermissionError, UnauthorizedError)


class IcebergTable:
    """A table in an Iceberg catalog. See `sparklog.tables.target.TargetTable`.

    Args:
        catalog: The catalog.
        identifier: The namespace and the name of the table.
        new_id: Returns a random id for the names of files.
        has_properties: False if the watermark is not stored in the properties of the table. A version has a watermark
            only if the history of the current snapshot contains one (see `sparklog.tables.root_watermark`).
    """

    def __init__(
        self,
        catalog: Catalog,
        identifier: tuple[str, ...],
        new_id: Callable[[], str],
        has_properties: bool = True,
    ) -> None:
        self._catalog = catalog
        self._identifier = identifier
        self._new_id = new_id
        self._has_properties = has_properties

    @property
    def name(self) -> str:
        return ".".join(self._identifier)

    def load(self) -> TableState | None:
        table = self._load()
        return None if table is None else self._state(table)

    def create(self, layout: TableLayout, watermark: Watermark) -> TableState:
        self._check_warehouse()
        schema = iceberg_schema.table_schema(layout)
        spec = iceberg_schema.partition_spec(layout.partition_by, schema)
        properties = dict(TABLE_PROPERTIES)
        if self._has_properties:
            properties |= watermark.to_properties()
        with self.errors("create"):
            try:
                try:
                    table = self._catalog.create_table(
                        self._identifier, schema, partition_spec=spec, properties=properties
                    )
                except NoSuchNamespaceError:
                    self._create_namespace(self._identifier[:-1])
                    table = self._catalog.create_table(
                        self._identifier, schema, partition_spec=spec, properties=properties
                    )
                if self._has_properties and COMMIT_ID not in table.properties:
                    raise self._without_properties(f"property {COMMIT_ID} is missing in the new table")
            except TableAlreadyExistsError:
                table = self._catalog.load_table(self._identifier)
            except ValueError as error:
                if "location" not in str(error) or self._catalog.properties.get(WAREHOUSE_LOCATION):
                    raise
                raise BadRequest(
                    f"cannot create table {self.name}: the catalog requires the property warehouse, which is the"
                    f" location of new tables; set it in .pyiceberg.yaml or with {catalog_properties()}"
                ) from None
        return self._state(table)

    def _check_warehouse(self) -> None:
        """Raise `BadRequest` if the location of new tables depends on the current directory.

        Other programs, and runs in another directory, would not find the files of the table.
        """
        warehouse = self._catalog.properties.get(WAREHOUSE_LOCATION)
        # The warehouse of a REST catalog is a name.
        if warehouse is None or not isinstance(self._catalog, MetastoreCatalog):
            return
        url = urlsplit(warehouse)
        if url.scheme in ("", "file") and (url.netloc or not url.path.startswith("/")):
            raise BadRequest(
                "the property warehouse of the catalog must be an absolute path or a URL such as file:///data/warehouse,"
                f" found {shortened(warehouse)}"
            )

    def _create_namespace(self, namespace: tuple[str, ...]) -> None:
        try:
            self._catalog.create_namespace_if_not_exists(namespace)
        except Exception:  # SQL catalogs raise a database error if another process creates it at the same time.
            if not self._catalog.namespace_exists(namespace):
                raise

    def add_columns(self, state: TableState, columns: Sequence[pa.Field]) -> TableState:
        table: Table = state.handle
        existing = {field.name: field for field in table.schema().fields}
        transaction = self._transaction(table)
        try:
            with transaction.update_schema() as update:
                for field, column in zip(iceberg_schema.iceberg_schema(columns).fields, columns, strict=True):
                    if column.name in existing:
                        update.update_column(column.name, field.field_type)
                    else:
                        update.add_column((column.name,), field.field_type)
        except (ValidationError, ValueError) as error:
            raise BadRequest(f"cannot change the columns of table {self.name}: {error}") from None
        self._commit(transaction)
        return self._state(self._loaded())

    def for_tasks(self, state: TableState) -> tuple[IcebergTable, TableState]:
        table: Table = state.handle
        # Tasks need the schema, the partitioning and the properties. A history may be large.
        history: dict[str, Any] = {"snapshots": [], "snapshot_log": [], "metadata_log": [], "refs": {}}
        metadata = table.metadata.model_copy(update={**history, "current_snapshot_id": None})
        catalog: Any = _LoadedCatalog()
        catalog.table = Table(table.name(), metadata, table.metadata_location, table.io, catalog, table.config)
        return IcebergTable(catalog, self._identifier, self._new_id), replace(state, handle=catalog.table)

    def partition_values(self, state: TableState, rows: pa.RecordBatch) -> pa.RecordBatch:
        table: Table = state.handle
        return iceberg_schema.partition_values(table.spec(), table.schema(), rows)

    def open_output(self, state: TableState, name: str) -> NewOutput:
        table: Table = state.handle
        path = table.location_provider().new_data_location(name)
        with self.errors("create a file of"):
            return NewOutput(path, cast(IO[bytes], table.io.new_output(path).create(overwrite=True)))

    def append(self, state: TableState, files: Sequence[NewFile], watermark: Watermark) -> None:
        self.commit(state, files, (), watermark)

    def upsert(self, state: TableState, changes: ChangeSet, watermark: Watermark) -> None:
        commit_upsert(self, state, changes, watermark, self._new_id())

    def clear(self, state: TableState, watermark: Watermark) -> None:
        self.commit(state, (), self.existing_files(state), watermark)

    def replace_files(self, state: TableState, added: Sequence[NewFile], removed: Sequence[ExistingFile]) -> None:
        """Replace files with files that contain the same rows, based on exactly `state`."""
        self.commit(state, added, removed, None)

    def commit(
        self, state: TableState, added: Sequence[NewFile], removed: Sequence[ExistingFile], watermark: Watermark | None
    ) -> None:
        """Commit new files, the removal of existing files and the watermark, based on exactly `state`.

        Without a watermark, the new files contain the same rows as the removed files.
        """
        table: Table = state.handle
        properties = {} if watermark is None else watermark.to_properties()
        transaction = self._transaction(table, is_replacement=watermark is None)
        if properties and self._has_properties:
            transaction.set_properties(properties)
        update = transaction.update_snapshot(snapshot_properties=properties)
        added_files = [self._data_file(table, file) for file in added]
        with self.errors("write the manifests of"), update.overwrite() if removed else update.merge_append() as change:
            for file in removed:
                change.delete_data_file(file.handle.file)
            for data_file in added_files:
                change.append_data_file(data_file)
        self._commit(transaction)

    def commit_updates(
        self, state: TableState, updates: Sequence[TableUpdate], requirements: Sequence[TableRequirement]
    ) -> None:
        """Commit changes of metadata that add no snapshot."""
        table: Table = state.handle
        identity = AssertTableUUID(uuid=table.metadata.table_uuid)
        with self._commit_errors():
            _SingleAttempt(self._catalog).commit_table(table, (identity, *requirements), tuple(updates))

    def history(self, state: TableState) -> TableHistory:
        """Return the history of a version."""
        metadata: TableMetadataV2 = state.handle.metadata
        snapshots = {snapshot.snapshot_id: snapshot for snapshot in metadata.snapshots}
        chain = list(ancestors(snapshots, metadata.current_snapshot_id))
        versions = [str(snapshot.snapshot_id) for snapshot in chain]
        # Some programs remove the parent of a snapshot when the parent expires.
        if (chain[-1].sequence_number == 1) if chain else (metadata.last_sequence_number == 0):
            versions.append(FIRST_VERSION)
        others = [snapshots[number] for number in snapshots.keys() - {snapshot.snapshot_id for snapshot in chain}]
        commits = {_summary(snapshot).get(COMMIT_ID, "") for snapshot in others}
        return TableHistory(str(metadata.table_uuid), versions or ["empty"], commits)

    def file_prefix(self, state: TableState) -> str:
        """Return the start of the names of data files, which is the id of the topic."""
        return state.watermark.topic_id if state.watermark is not None else "sparklog"

    def key_columns(self, state: TableState) -> Sequence[str]:
        return sorted(state.handle.schema().identifier_field_names())

    def partition_columns(self, state: TableState) -> Sequence[str]:
        table: Table = state.handle
        return iceberg_schema.source_columns(table.spec(), table.schema())

    def existing_files(self, state: TableState) -> Sequence[ExistingFile]:
        table: Table = state.handle
        schema = table.schema()
        bounded = {
            field.field_id: (field.name, field.field_type)
            for field in schema.fields
            if isinstance(field.field_type, COMPARABLE)
        }
        files = []
        with self.errors("read the manifests of"):
            for task in table.scan().plan_files():
                file = task.file
                lower, upper = file.lower_bounds or {}, file.upper_bounds or {}
                bounds = {
                    name: (from_bytes(kind, lower[number]), from_bytes(kind, upper[number]))
                    for number, (name, kind) in bounded.items()
                    if number in lower and number in upper
                }
                values = None
                if file.spec_id == table.spec().spec_id:
                    values = tuple(file.partition[index] for index in range(len(table.spec().fields)))
                files.append(
                    ExistingFile(file.file_path, file.record_count, file.file_size_in_bytes, values, bounds, task)
                )
        return files

    def read_file(self, state: TableState, file: ExistingFile, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        table: Table = state.handle
        task: FileScanTask = file.handle
        schema = pa.schema([state.schema.field(name) for name in columns])
        with self.errors("read a file of"):
            if task.delete_files:
                # Other engines may mark rows as deleted in separate files.
                scan = ArrowScan(table.metadata, table.io, table.schema().select(*columns), AlwaysTrue())
                for rows in scan.to_record_batches([task]):
                    yield rows.select(columns).cast(schema)
                return
            with table.io.new_input(file.path).open() as stream, pq.ParquetFile(stream) as parquet:
                names = _names_in_file(table, parquet.schema_arrow, schema)
                present = [name for name in names if name is not None]
                for rows in read_batches(parquet, present):
                    arrays = [
                        pa.nulls(rows.num_rows, field.type) if name is None else rows.column(name).cast(field.type)
                        for name, field in zip(names, schema, strict=True)
                    ]
                    yield pa.RecordBatch.from_arrays(arrays, schema=schema)

    def delete_files(self, paths: Sequence[str]) -> None:
        table = self._loaded()
        with self.errors("delete files of"):
            for path in paths:
                with suppress(FileNotFoundError):
                    table.io.delete(path)

    def _load(self) -> Table | None:
        with self.errors("load"):
            try:
                return self._catalog.load_table(self._identifier)
            except (NoSuchTableError, NoSuchNamespaceError):
                return None

    def _loaded(self) -> Table:
        table = self._load()
        if table is None:
            raise self._dropped()
        return table

    def _state(self, table: Table) -> TableState:
        if table.format_version < 2:
            # Other engines write version 1 only to tables that are years old.
            raise BadRequest(
                f"table {self.name} has format version 1: upgrade it to version 2 (in Spark: ALTER TABLE ... SET "
                "TBLPROPERTIES ('format-version' = '2'))"
            )
        schema = iceberg_schema.arrow_schema(table.schema())
        # Files can be committed to a later version if the field ids and the partition fields are the same.
        layout = (table.schema().schema_id, table.spec().spec_id)
        return TableState(schema, self._watermark(table.metadata), layout, table)

    def _watermark(self, metadata: TableMetadata) -> Watermark | None:
        snapshots = {snapshot.snapshot_id: snapshot for snapshot in metadata.snapshots}
        for snapshot in ancestors(snapshots, metadata.current_snapshot_id):
            summary = _summary(snapshot)
            if COMMIT_ID in summary:
                self._check_properties(metadata, snapshot)
                return Watermark.from_properties(summary, self.name)
        if not self._has_properties:
            return None
        written_by = metadata.properties.get(COMMIT_ID)
        if any(_summary(snapshot).get(COMMIT_ID) == written_by for snapshot in metadata.snapshots if written_by):
            raise BadRequest(
                f"table {self.name} was replaced, or rolled back to a snapshot before the first copied record: copy "
                "the topic to a new table"
            )
        return Watermark.from_properties(metadata.properties, self.name)

    def _check_properties(self, metadata: TableMetadata, snapshot: Snapshot) -> None:
        """Raise `BadRequest` if the latest commit is one of a copy, but the properties do not contain its watermark.

        After a rollback, the properties contain a later watermark, and the current snapshot is not the last one that
        was added.
        """
        is_latest = snapshot.snapshot_id == metadata.current_snapshot_id
        is_latest = is_latest and snapshot.sequence_number == getattr(metadata, "last_sequence_number", None)
        commit_id = _summary(snapshot)[COMMIT_ID]
        if self._has_properties and is_latest and metadata.properties.get(COMMIT_ID) != commit_id:
            found = metadata.properties.get(COMMIT_ID) or "no value"
            raise self._without_properties(f"property {COMMIT_ID} should be {commit_id}, found {found}")

    def _without_properties(self, reason: str) -> BadRequest:
        return BadRequest(
            f"the catalog does not store the watermark in the properties of table {self.name}: {reason}; use "
            f"{option_value('watermark', 'root')}"
        )

    def _data_file(self, table: Table, file: NewFile) -> DataFile:
        """Return the manifest entry of a file."""
        schema = table.schema()
        columns = parquet_path_to_id_mapping(schema)
        plan = compute_statistics_plan(schema, table.properties)
        for name in _columns_without_statistics(file.metadata):
            plan[columns[name]] = replace(plan[columns[name]], mode=MetricsMode(MetricModeTypes.NONE))
        statistics = data_file_statistics_from_parquet_metadata(file.metadata, plan, columns)
        return DataFile.from_args(
            content=DataFileContent.DATA,
            file_path=file.path,
            file_format=FileFormat.PARQUET,
            partition=Record(*file.partition_values),
            file_size_in_bytes=file.nbytes,
            sort_order_id=None,
            spec_id=table.spec().spec_id,
            equality_ids=None,
            key_metadata=None,
            **statistics.to_serialized_dict(),
        )

    def _transaction(self, table: Table, *, is_replacement: bool = False) -> Transaction:
        catalog: Any = _SingleAttempt(self._catalog, is_replacement)
        # A transaction copies the metadata many times, which would take seconds if there are many snapshots.
        heads = {reference.snapshot_id for reference in table.refs().values()}
        current = [snapshot for snapshot in table.snapshots() if snapshot.snapshot_id in heads]
        metadata = table.metadata.model_copy(update={"snapshots": current, "snapshot_log": []})
        based_on = Table(table.name(), metadata, table.metadata_location, table.io, catalog, table.config)
        return based_on.transaction()

    def _commit(self, transaction: Transaction) -> None:
        with self._commit_errors():
            transaction.commit_transaction()

    @contextmanager
    def _commit_errors(self) -> Iterator[None]:
        """Convert the errors of a request that commits."""
        try:
            yield
        except _RejectedError as error:
            self._check_rejected(error)
        except NoSuchTableError:
            raise self._dropped() from None
        except BadRequestError as error:
            raise self._rejected("commit to", error) from None
        except DENIED as error:
            raise self._denied("commit to", error) from error
        except TooManyRequestsError as error:
            raise Unavailable(f"cannot commit to table {self.name}: {error_text(error)}") from error
        except Exception as error:  # Each catalog raises errors of its own libraries.
            # The client of REST catalogs has no exception for a table that does not exist.
            if isinstance(error, RESTError) and _http_status(error) == 404:
                raise self._dropped() from None
            if _http_status(error) == NOT_SUPPORTED:
                raise self._rejected("commit to", error) from None
            if sqlstate(error) in MISSING_RIGHTS:
                raise self._denied("commit to", error) from error
            raise self._unknown(error) from error

    def _check_rejected(self, error: _RejectedError) -> None:
        """Raise `Conflict`, unless the table contains the rejected snapshot because the request was sent twice."""
        try:
            table = self._loaded()
        except Unavailable as unavailable:
            raise self._unknown(unavailable) from unavailable
        snapshot = error.snapshot
        if snapshot is not None:
            if table.snapshot_by_id(snapshot.snapshot_id) is not None:
                return
            if table.metadata.current_snapshot_id != snapshot.parent_snapshot_id:
                # The requirement can no longer be met, so no delayed request can add the snapshot.
                _delete_manifests(table, snapshot)
        raise Conflict(f"another commit to table {self.name} came first: {error_text(error.__cause__)}") from None

    @contextmanager
    def errors(self, action: str) -> Iterator[None]:
        """Convert the errors of a request that does not commit."""
        try:
            yield
        except (AttributeError, NameError, SparklogError, TypeError):
            raise
        except DENIED as error:
            raise self._denied(action, error) from error
        except BadRequestError as error:
            raise self._rejected(action, error) from error
        except Exception as error:  # Each catalog raises errors of its own libraries.
            if _http_status(error) == NOT_SUPPORTED:
                raise self._rejected(action, error) from error
            if sqlstate(error) in MISSING_RIGHTS:
                raise self._denied(action, error) from error
            # pyiceberg raises a plain ValueError for a wrong property, and for equality deletes, which it does not
            # support. Its subclasses are about corrupt responses.
            if type(error) is ValueError:
                raise BadRequest(f"cannot {action} table {self.name}: {error_text(error)}") from error
            raise Unavailable(f"cannot {action} table {self.name}: {error_text(error)}") from error

    def _hint(self, action: str) -> str:
        """Return what to do if the catalog rejected a request because of the properties of the watermark."""
        if not self._has_properties or action not in ("create", "commit to"):
            return ""
        return f"; if it does not allow table properties, use {option_value('watermark', 'root')}"

    def _rejected(self, action: str, error: Exception) -> BadRequest:
        return BadRequest(
            f"the catalog rejected a request to {action} table {self.name}: {error_text(error)}{self._hint(action)}"
        )

    def _denied(self, action: str, error: Exception) -> Unavailable:
        text = f"cannot {action} table {self.name}: {error_text(error)}{self._hint(action)}"
        return Unavailable(f"access denied: {text}", is_denied=True)

    def _dropped(self) -> NotFound:
        return NotFound(f"table {self.name} was dropped during the run: run the copy again to create it")

    def _unknown(self, error: Exception) -> Unavailable:
        return Unavailable(
            f"the result of a commit to table {self.name} is unknown: {error_text(error)}", is_unknown=True
        )


class _RejectedError(Exception):
    """The catalog has rejected a commit. pyiceberg handles its own exception by retrying."""

    def __init__(self, snapshot: Snapshot | None) -> None:
        super().__init__()
        self.snapshot = snapshot


class _SingleAttempt:
    """A catalog whose rejected commits pyiceberg does not retry.

    If `is_replacement` is True, the operation of the new snapshot is `replace`, which pyiceberg cannot create.
    """

    def __init__(self, catalog: Catalog, is_replacement: bool = False) -> None:
        self._catalog = catalog
        self._is_replacement = is_replacement

    def __getattr__(self, name: str) -> Any:
        return getattr(self._catalog, name)

    def commit_table(
        self, table: Table, requirements: tuple[TableRequirement, ...], updates: tuple[TableUpdate, ...]
    ) -> CommitTableResponse:
        if self._is_replacement:
            updates = tuple(map(_with_replacement, updates))
        added = next((update.snapshot for update in updates if isinstance(update, AddSnapshotUpdate)), None)
        try:
            return self._catalog.commit_table(table, requirements, updates)
        except CommitFailedException as error:
            raise _RejectedError(added) from error
        except Exception as error:  # Each database driver has its own classes.
            if sqlstate(error) in ROLLED_BACK:
                raise _RejectedError(added) from error
            raise


@dataclass
class _LoadedCatalog:
    """The catalog of a table in a task, which contains only one version of the table."""

    table: Table | None = None

    def load_table(self, identifier: tuple[str, ...]) -> Table | None:
        return self.table


def _names_in_file(table: Table, file_schema: pa.Schema, schema: pa.Schema) -> list[str | None]:
    """Return the name of each column in a file, or None if it was added to the table later.

    Files that were added without field ids have the column names of the table's name mapping.
    """
    names = iceberg_schema.field_ids(file_schema)
    if not names and (mapping := table.name_mapping()) is not None:
        known = {name: field.field_id for field in mapping.root for name in field.names}
        names = {number: name for name in file_schema.names if (number := known.get(name)) is not None}
    return [names.get(number) for number in iceberg_schema.field_ids(schema)]


def _columns_without_statistics(footer: pq.FileMetaData) -> set[str]:
    """Return the paths of columns without statistics in a row group."""
    groups = (footer.row_group(index) for index in range(footer.num_row_groups))
    chunks = (group.column(index) for group in groups for index in range(group.num_columns))
    return {chunk.path_in_schema for chunk in chunks if not chunk.is_stats_set}


def _with_replacement(update: TableUpdate) -> TableUpdate:
    if not isinstance(update, AddSnapshotUpdate):
        return update
    summary = Summary(Operation.REPLACE, **_summary(update.snapshot))
    return AddSnapshotUpdate(snapshot=update.snapshot.model_copy(update={"summary": summary}))


def ancestors(snapshots: Mapping[int, Snapshot], snapshot_id: int | None) -> Iterator[Snapshot]:
    """Yield a snapshot and its ancestors that have not expired, latest first."""
    while snapshot_id is not None and snapshot_id in snapshots:
        yield snapshots[snapshot_id]
        snapshot_id = snapshots[snapshot_id].parent_snapshot_id


def _delete_manifests(table: Table, snapshot: Snapshot) -> None:
    """Delete the metadata files of a rejected snapshot. If a request fails, they remain as unreferenced files."""
    with suppress(OSError):
        for file in snapshot.manifests(table.io):
            if file.added_snapshot_id == snapshot.snapshot_id:
                table.io.delete(file.manifest_path)
        table.io.delete(snapshot.manifest_list)


def _http_status(error: Exception) -> int | None:
    """Return the HTTP status of an error of a REST catalog."""
    return getattr(getattr(error.__cause__, "response", None), "status_code", None)


def _summary(snapshot: Snapshot) -> dict[str, str]:
    return {} if snapshot.summary is None else snapshot.summary.additional_properties
