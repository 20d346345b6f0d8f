"""Maintenance of an Iceberg table: expiring snapshots, and deleting unreferenced files.

A copy adds one snapshot with each commit. Maintenance keeps their number bounded. `sparklog.tables.maintenance` merges
small files. Maintenance does not change the watermark or the rows, and may run at any time, even while a copy runs:

* Each change is a commit that requires that the snapshot of the loaded version is still the current one. If another
  commit comes first, the maintenance is not repeated until the next run.
* Files are deleted only after they are no longer part of a snapshot. Files that have never been part of a snapshot may
  belong to a commit in flight, so they are deleted only if they are older than a safe age. Only files with the names of
  a copy are considered, because other tables may have the same location.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise

from pyarrow.fs import FileSelector, FileType
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.table import Table
from pyiceberg.table.refs import MAIN_BRANCH, SnapshotRefType
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.table.update import AssertRefSnapshotId, RemoveSnapshotsUpdate

from sparklog.errors import BadRequest, Conflict
from sparklog.tables.iceberg import IcebergTable, ancestors
from sparklog.tables.maintenance import MaintenanceReport, loaded

MIN_UNREFERENCED_AGE_MS = 24 * 3_600_000
"""Minimum age of an unreferenced file that may be deleted. A copy commits its files within this time."""
MIN_SNAPSHOTS = "history.expire.min-snapshots-to-keep"


def expire_snapshots(table: IcebergTable, before_ms: int, report: MaintenanceReport) -> None:
    """Remove ancestors of the current snapshot that are older than `before_ms`, and delete their files.

    The latest snapshots, as many as the table property says, and snapshots of other branches and of tags remain.
    """
    state = loaded(table)
    iceberg: Table = state.handle
    expired = _expired(iceberg, before_ms)
    if not expired:
        return
    with table.errors("read the manifests of"):
        files = sorted(_files_of(iceberg, expired) - _files_of(iceberg, _remaining(iceberg, expired)))
    heads = [
        AssertRefSnapshotId.model_validate({"ref": name, "snapshot-id": reference.snapshot_id})
        for name, reference in iceberg.refs().items()
    ]
    removal = RemoveSnapshotsUpdate.model_validate({"snapshot-ids": [snapshot.snapshot_id for snapshot in expired]})
    try:
        table.commit_updates(state, (removal,), heads)
    except Conflict:
        return
    report.expired_snapshots += len(expired)
    table.delete_files(files)
    report.deleted_files += files


def _expired(iceberg: Table, before_ms: int) -> list[Snapshot]:
    snapshots = {snapshot.snapshot_id: snapshot for snapshot in iceberg.snapshots()}
    protected = set()
    for name, reference in iceberg.refs().items():
        protected.add(reference.snapshot_id)
        if reference.snapshot_ref_type == SnapshotRefType.BRANCH and name != MAIN_BRANCH:
            protected.update(ancestor.snapshot_id for ancestor in ancestors(snapshots, reference.snapshot_id))
    latest = max(1, int(iceberg.properties.get(MIN_SNAPSHOTS, "1")))
    return [
        snapshot
        for snapshot in list(ancestors(snapshots, iceberg.metadata.current_snapshot_id))[latest:]
        if snapshot.timestamp_ms < before_ms and snapshot.snapshot_id not in protected
    ]


def _remaining(iceberg: Table, expired: Sequence[Snapshot]) -> list[Snapshot]:
    """Return remaining snapshots that together contain all files that an expired and a remaining snapshot contain.

    In the history of the current snapshot, a file that is in two snapshots is also in those between them. Therefore,
    the neighbors of expired snapshots represent the history.
    """
    snapshots = {snapshot.snapshot_id: snapshot for snapshot in iceberg.snapshots()}
    removed = {snapshot.snapshot_id for snapshot in expired}
    history = [ancestor.snapshot_id for ancestor in ancestors(snapshots, iceberg.metadata.current_snapshot_id)]
    neighbors = {number for pair in pairwise(history) if removed & set(pair) for number in pair}
    others = snapshots.keys() - set(history)
    return [snapshots[number] for number in (neighbors | others) - removed]


def _files_of(iceberg: Table, snapshots: Iterable[Snapshot]) -> set[str]:
    """Return the locations of all files of snapshots: data files, delete files, manifests and manifest lists."""
    files = set()
    manifests = {}
    for snapshot in snapshots:
        files.add(snapshot.manifest_list)
        manifests.update({manifest.manifest_path: manifest for manifest in snapshot.manifests(iceberg.io)})
    for path, manifest in manifests.items():
        files.add(path)
        files.update(entry.data_file.file_path for entry in manifest.fetch_manifest_entry(iceberg.io))
    return files


def unreferenced_files(table: IcebergTable, before_ms: int) -> list[str]:
    """Return the files of copies and of the table's metadata that are older than `before_ms` and not referenced.

    Raises `BadRequest` if the files of the table cannot be listed.
    """
    iceberg: Table = loaded(table).handle
    with table.errors("list the files of"):
        listed = list(_listed(iceberg, before_ms))
    # The table is loaded again, so that it references all listed files that were committed before.
    state = loaded(table)
    iceberg = state.handle
    with table.errors("read the manifests of"):
        referenced = _files_of(iceberg, iceberg.snapshots()) | {iceberg.metadata_location}
    referenced.update(entry.metadata_file for entry in iceberg.metadata.metadata_log)
    referenced.update(file.statistics_path for file in iceberg.metadata.statistics)
    paths = {_path(location) for location in referenced}
    prefix = f"{table.file_prefix(state)}-"
    return [location for location, name in listed if _is_own(name, prefix) and _path(location) not in paths]


def delete_unreferenced_files(table: IcebergTable, now_ms: int, age_ms: int, report: MaintenanceReport) -> None:
    """Delete unreferenced files that are older than `age_ms`."""
    check_unreferenced_age(age_ms)
    files = unreferenced_files(table, now_ms - age_ms)
    table.delete_files(files)
    report.deleted_files += files


def check_unreferenced_age(age_ms: int) -> None:
    """Raise `BadRequest` if files of this age may still be committed."""
    if age_ms < MIN_UNREFERENCED_AGE_MS:
        raise BadRequest(
            f"unreferenced files must be at least {MIN_UNREFERENCED_AGE_MS // 3_600_000} hours old to be deleted, "
            "because a running copy may still commit them"
        )


def _is_own(name: str, prefix: str) -> bool:
    return name.startswith(prefix) if name.endswith(".parquet") else name.endswith((".avro", ".metadata.json"))


def _listed(iceberg: Table, before_ms: int) -> Iterator[tuple[str, str]]:
    """Yield the location and the name of each old file in the data and metadata directories."""
    io = iceberg.io
    if not isinstance(io, PyArrowFileIO):
        raise BadRequest(
            f"the files of table {'.'.join(iceberg.name())} cannot be listed with {type(io).__name__}: use the catalog "
            "property py-io-impl=pyiceberg.io.pyarrow.PyArrowFileIO"
        )
    provider = iceberg.location_provider()
    for directory in dict.fromkeys((provider.data_path, provider.metadata_path)):
        scheme, netloc, path = io.parse_location(directory, io.properties)
        start = directory[: len(directory) - len(path.rstrip("/"))]
        files = io.fs_by_scheme(scheme, netloc).get_file_info(FileSelector(path, allow_not_found=True, recursive=True))
        for file in files:
            if file.type == FileType.File and file.mtime_ns // 1_000_000 < before_ms:
                yield f"{start}{file.path}", file.base_name


def _path(location: str) -> str:
    """Return a location without a scheme, because `file:/a` and `file:///a` are the same file."""
    scheme, separator, rest = location.partition("://")
    if not separator:
        scheme, separator, rest = location.partition(":")
    return posixpath.normpath(rest if separator else scheme)
