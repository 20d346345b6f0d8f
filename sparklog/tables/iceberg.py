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
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import IO, Any, cast

import pyarrow as pa
from pyiceberg.catalog import Catalog
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
from pyiceberg.io.pyarrow import (
    compute_statistics_plan,
    data_file_statistics_from_parquet_metadata,
    parquet_path_to_id_mapping,
    schema_to_pyarrow,
)
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.table import CommitTableResponse, Table, Transaction
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.table.update import AddSnapshotUpdate, TableRequirement, TableUpdate
from pyiceberg.typedef import Record

from sparklog.errors import BadRequest, Conflict, NotFound, SparklogError, Unavailable
from sparklog.tables import iceberg_schema
from sparklog.tables.target import NewFile, NewOutput, TableLayout, TableState
from sparklog.tables.watermark import COMMIT_ID, Watermark

TABLE_PROPERTIES = {
    "format-version": "2",
    "write.parquet.compression-codec": "zstd",
    # Each commit adds a manifest. Without a merge, a day of one commit per minute would have 1,440 of them to read.
    "commit.manifest-merge.enabled": "true",
    # Each commit writes the metadata again.
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "100",
}
"""Properties of a new table."""
SCHEMA_ID, SPEC_ID = b"sparklog.iceberg.schema-id", b"sparklog.iceberg.spec-id"
"""Keys in the metadata of `TableState.schema`, which become part of the footer of each data file. If the table's schema
or partitioning changes before the file is committed, they identify the schema and the partitioning of the file.
"""
DENIED = (AuthorizationExpiredError, ForbiddenError, OAuthError, PermissionError, UnauthorizedError)


class IcebergTable:
    """A table in an Iceberg catalog. See `sparklog.tables.target.TargetTable`."""

    def __init__(self, catalog: Catalog, identifier: tuple[str, ...]) -> None:
        self._catalog = catalog
        self._identifier = identifier

    @property
    def name(self) -> str:
        return ".".join(self._identifier)

    def load(self) -> TableState | None:
        table = self._load()
        return None if table is None else self._state(table)

    def create(self, layout: TableLayout, watermark: Watermark) -> TableState:
        schema = iceberg_schema.table_schema(layout)
        spec = iceberg_schema.partition_spec(layout.partition_by, schema)
        properties = TABLE_PROPERTIES | watermark.to_properties()
        with self._errors("create"):
            try:
                try:
                    table = self._catalog.create_table(
                        self._identifier, schema, partition_spec=spec, properties=properties
                    )
                except NoSuchNamespaceError:
                    self._catalog.create_namespace_if_not_exists(self._identifier[:-1])
                    table = self._catalog.create_table(
                        self._identifier, schema, partition_spec=spec, properties=properties
                    )
            except TableAlreadyExistsError:
                table = self._catalog.load_table(self._identifier)
        return self._state(table)

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

    def partition_values(self, state: TableState, rows: pa.RecordBatch) -> pa.RecordBatch:
        table: Table = state.handle
        return iceberg_schema.partition_values(table.spec(), table.schema(), rows)

    def open_output(self, state: TableState, name: str) -> NewOutput:
        table: Table = state.handle
        path = table.location_provider().new_data_location(name)
        with self._errors("create a file of"):
            return NewOutput(path, cast(IO[bytes], table.io.new_output(path).create(overwrite=True)))

    def append(self, state: TableState, files: Sequence[NewFile], watermark: Watermark) -> None:
        self.commit(state, files, (), watermark)

    def commit(
        self, state: TableState, added: Sequence[NewFile], removed: Sequence[DataFile], watermark: Watermark
    ) -> None:
        """Commit new files, the removal of existing files and the watermark, based on exactly `state`."""
        table: Table = state.handle
        properties = watermark.to_properties()
        transaction = self._transaction(table)
        transaction.set_properties(properties)
        update = transaction.update_snapshot(snapshot_properties=properties)
        added_files = [self._data_file(table, file) for file in added]
        with self._errors("write the manifests of"), update.overwrite() if removed else update.merge_append() as change:
            for file in removed:
                change.delete_data_file(file)
            for file in added_files:
                change.append_data_file(file)
        self._commit(transaction)

    def find_commit(self, commit_id: str, since: TableState) -> bool:
        table, base = self._loaded(), since.handle
        if any(_summary(snapshot).get(COMMIT_ID) == commit_id for snapshot in table.snapshots()):
            return True
        if table.last_sequence_number == base.last_sequence_number:
            return False
        for snapshot in _ancestors(table.metadata):
            # Expiry of snapshots removes the id of an expired parent. The commit would be the next one after `since`.
            if snapshot.snapshot_id == base.metadata.current_snapshot_id:
                return False
            if snapshot.sequence_number == base.last_sequence_number + 1:
                return False
        raise Unavailable(
            f"the snapshots of table {self.name} since a commit with an unknown result have expired or were rolled "
            "back, so the result cannot be determined: expire snapshots later",
            is_unknown=True,
        )

    def delete_files(self, paths: Sequence[str]) -> None:
        table = self._loaded()
        with self._errors("delete files of"):
            for path in paths:
                with suppress(FileNotFoundError):
                    table.io.delete(path)

    def _load(self) -> Table | None:
        with self._errors("load"):
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
            # Snapshots of version 1 have no sequence numbers, which `find_commit` needs.
            raise BadRequest(
                f"table {self.name} has format version 1: upgrade it to version 2 (in Spark: ALTER TABLE ... SET "
                "TBLPROPERTIES ('format-version' = '2'))"
            )
        ids = {SCHEMA_ID: str(table.schema().schema_id), SPEC_ID: str(table.spec().spec_id)}
        schema = schema_to_pyarrow(table.schema()).with_metadata(ids)
        return TableState(schema, self._watermark(table.metadata), table)

    def _watermark(self, metadata: TableMetadata) -> Watermark | None:
        for snapshot in _ancestors(metadata):
            summary = _summary(snapshot)
            if COMMIT_ID in summary:
                return Watermark.from_properties(summary, self.name)
        written_by = metadata.properties.get(COMMIT_ID)
        if any(_summary(snapshot).get(COMMIT_ID) == written_by for snapshot in metadata.snapshots if written_by):
            raise BadRequest(
                f"table {self.name} was replaced, or rolled back to a snapshot before the first copied record: copy "
                "the topic to a new table"
            )
        return Watermark.from_properties(metadata.properties, self.name)

    def _data_file(self, table: Table, file: NewFile) -> DataFile:
        """Return the manifest entry of a file, with the schema and partitioning for which it was written."""
        footer: Mapping[bytes, bytes] = file.metadata.metadata or {}
        schema = table.schemas()[int(footer.get(SCHEMA_ID, table.schema().schema_id))]
        spec_id = int(footer.get(SPEC_ID, table.spec().spec_id))
        if spec_id != table.spec().spec_id:
            raise BadRequest(f"the partitioning of table {self.name} has changed during the run: run it again")
        statistics = data_file_statistics_from_parquet_metadata(
            file.metadata,
            compute_statistics_plan(schema, table.properties),
            parquet_path_to_id_mapping(schema),
        )
        return DataFile.from_args(
            content=DataFileContent.DATA,
            file_path=file.path,
            file_format=FileFormat.PARQUET,
            partition=Record(*file.partition_values),
            file_size_in_bytes=file.nbytes,
            sort_order_id=None,
            spec_id=spec_id,
            equality_ids=None,
            key_metadata=None,
            **statistics.to_serialized_dict(),
        )

    def _transaction(self, table: Table) -> Transaction:
        catalog: Any = _SingleAttempt(self._catalog)
        based_on = Table(table.name(), table.metadata, table.metadata_location, table.io, catalog, table.config)
        return based_on.transaction()

    def _commit(self, transaction: Transaction) -> None:
        try:
            transaction.commit_transaction()
        except _RejectedError as error:
            self._check_rejected(error)
        except NoSuchTableError:
            raise self._dropped() from None
        except BadRequestError as error:
            raise BadRequest(f"the catalog rejected a commit to table {self.name}: {_text(error)}") from None
        except DENIED as error:
            raise self._denied("commit to", error) from error
        except TooManyRequestsError as error:
            raise Unavailable(f"cannot commit to table {self.name}: {_text(error)}") from error
        except Exception as error:  # Each catalog raises errors of its own libraries.
            # The client of REST catalogs has no exception for a table that does not exist.
            response = getattr(error.__cause__, "response", None)
            if isinstance(error, RESTError) and getattr(response, "status_code", None) == 404:
                raise self._dropped() from None
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
        raise Conflict(f"another commit to table {self.name} came first: {_text(error.__cause__)}") from None

    @contextmanager
    def _errors(self, action: str) -> Iterator[None]:
        """Convert the errors of a request that does not commit."""
        try:
            yield
        except SparklogError:
            raise
        except DENIED as error:
            raise self._denied(action, error) from error
        except BadRequestError as error:
            raise BadRequest(f"cannot {action} table {self.name}: {_text(error)}") from error
        except Exception as error:  # Each catalog raises errors of its own libraries.
            raise Unavailable(f"cannot {action} table {self.name}: {_text(error)}") from error

    def _denied(self, action: str, error: Exception) -> Unavailable:
        return Unavailable(f"access denied: cannot {action} table {self.name}: {_text(error)}", is_denied=True)

    def _dropped(self) -> NotFound:
        return NotFound(f"table {self.name} was dropped during the run: run the copy again to create it")

    def _unknown(self, error: Exception) -> Unavailable:
        return Unavailable(f"the result of a commit to table {self.name} is unknown: {_text(error)}", is_unknown=True)


class _RejectedError(Exception):
    """The catalog has rejected a commit. pyiceberg handles its own exception by retrying."""

    def __init__(self, snapshot: Snapshot | None) -> None:
        super().__init__()
        self.snapshot = snapshot


class _SingleAttempt:
    """A catalog whose rejected commits pyiceberg does not retry."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog

    def __getattr__(self, name: str) -> Any:
        return getattr(self._catalog, name)

    def commit_table(
        self, table: Table, requirements: tuple[TableRequirement, ...], updates: tuple[TableUpdate, ...]
    ) -> CommitTableResponse:
        try:
            return self._catalog.commit_table(table, requirements, updates)
        except CommitFailedException as error:
            added = (update.snapshot for update in updates if isinstance(update, AddSnapshotUpdate))
            raise _RejectedError(next(added, None)) from error


def _ancestors(metadata: TableMetadata) -> Iterator[Snapshot]:
    """Yield the current snapshot and its ancestors that have not expired, latest first."""
    snapshots = {snapshot.snapshot_id: snapshot for snapshot in metadata.snapshots}
    current = metadata.current_snapshot_id
    while current is not None and current in snapshots:
        yield snapshots[current]
        current = snapshots[current].parent_snapshot_id


def _delete_manifests(table: Table, snapshot: Snapshot) -> None:
    """Delete the metadata files of a rejected snapshot. If a request fails, they remain as unreferenced files."""
    with suppress(OSError):
        for file in snapshot.manifests(table.io):
            if file.added_snapshot_id == snapshot.snapshot_id:
                table.io.delete(file.manifest_path)
        table.io.delete(snapshot.manifest_list)


def _summary(snapshot: Snapshot) -> dict[str, str]:
    return {} if snapshot.summary is None else snapshot.summary.additional_properties


def _text(error: BaseException | None) -> str:
    return str(error) or type(error).__name__
