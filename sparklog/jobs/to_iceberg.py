r"""Write a topic into an Iceberg table, exactly once: one row per record, or the latest record of each key.

    sparklog to-iceberg --root /data/log --topic orders --table shop.orders --catalog-property type=sql \
        --catalog-property uri=sqlite:////data/catalog.db --catalog-property warehouse=file:///data/warehouse

The job needs neither Spark nor Java. The catalog is configured as in pyiceberg: in `.pyiceberg.yaml`, in environment
variables, or with `--catalog-property`. The table contains the offsets up to which the topic was copied, so there is no
checkpoint, and a run on another host continues where the last run stopped. Several runs may copy to the same table.

Without `--follow`, the job ends when it has written the records that existed at its start. After a commit, the job also
merges small files and removes old snapshots. See `sparklog.jobs.common` for exit codes.
"""

# Do not import annotations from __future__: `parse` evaluates the annotations in this module.
import json
import warnings
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Any, Literal

from sparklog.common.parsing import INT64_MAX, is_digits
from sparklog.console.options import name_and_value, parse_age
from sparklog.console.parameters import Option
from sparklog.errors import BadRequest, shortened
from sparklog.jobs.common import job, parse
from sparklog.jobs.table_options import TableJob, Upkeep
from sparklog.log.state.view import LogView
from sparklog.tables.copy import CopyReport
from sparklog.tables.functions import iceberg_tables
from sparklog.tables.iceberg import IcebergTable
from sparklog.tables.iceberg_catalog import open_catalog, table_identifier
from sparklog.tables.iceberg_maintenance import check_unreferenced_age, delete_unreferenced_files, expire_snapshots

WARNINGS = r"Failed to delete old metadata|Encountered invalid snapshot summary|No preferred file implementation"
"""Warnings of pyiceberg that users of the job cannot act on. A metadata file that pyiceberg failed to delete is an
unreferenced file, which the job can delete later. Only other programs write snapshot summaries without an operation. If
no implementation supports the scheme of a location, an error is raised after the warning.
"""
EXPIRE_INTERVAL_MS = 3_600_000
"""The minimum time between two removals of old snapshots."""


@dataclass(kw_only=True)
class ToIceberg(TableJob):
    """Options of the job."""

    table: Annotated[str, Option(metavar="NAMESPACE.TABLE", help="Table to write. It is created if it does not exist.")]
    catalog: Annotated[
        str | None,
        Option(
            metavar="NAME", help="Catalog in pyiceberg's configuration.", show_default="pyiceberg's default catalog"
        ),
    ] = None
    catalog_property: Annotated[
        list[str] | None,
        Option(metavar="PROPERTY=VALUE", help="Property of the catalog, such as uri. May be repeated."),
    ] = None
    watermark: Annotated[
        Literal["table", "root"],
        Option(
            help="Location of the copied offsets: the properties of the table, or the root if the catalog does not"
            " store these properties."
        ),
    ] = "table"
    resume_offsets: Annotated[
        str | None,
        Option(
            metavar="JSON",
            help='Offsets to continue at, given as JSON such as {"0":23}, if --watermark root does not know whether the'
            " table contains the last commit.",
            show_default="fail",
        ),
    ] = None
    quarantine_resume_offsets: Annotated[
        str | None,
        Option(
            metavar="JSON",
            help="Offsets at which TABLE_quarantine continues, in the same cases and format as --resume-offsets.",
            show_default="fail",
        ),
    ] = None
    snapshot_age: Annotated[
        str,
        Option(metavar="AGE|never", help="Remove snapshots that are older than this age, such as 6h or 5d."),
    ] = "1d"
    delete_unreferenced: Annotated[
        str | None,
        Option(
            metavar="AGE",
            help="Delete files that belong to no snapshot, such as files of interrupted runs, if they are older than"
            " this age. The minimum is 1d.",
            show_default="keep them",
        ),
    ] = None
    identifier: tuple[str, ...] = field(init=False)
    resume_at: dict[int, int] | None = field(init=False)
    quarantine_resume_at: dict[int, int] | None = field(init=False)
    properties: dict[str, str] = field(init=False)
    snapshot_age_ms: int | None = field(init=False)
    unreferenced_age_ms: int | None = field(init=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.identifier = table_identifier(self.table)
        self.properties = dict(name_and_value(text, "--catalog-property") for text in self.catalog_property or ())
        self.resume_at = self._resume_offsets(self.resume_offsets, "--resume-offsets")
        self.quarantine_resume_at = self._resume_offsets(self.quarantine_resume_offsets, "--quarantine-resume-offsets")
        self.snapshot_age_ms = None
        if self.snapshot_age != "never":
            self.snapshot_age_ms = parse_age(self.snapshot_age, "--snapshot-age")
        self.unreferenced_age_ms = None
        if self.delete_unreferenced is not None:
            self.unreferenced_age_ms = parse_age(self.delete_unreferenced, "--delete-unreferenced")
            check_unreferenced_age(self.unreferenced_age_ms)

    def _resume_offsets(self, text: str | None, option: str) -> dict[int, int] | None:
        if text is None:
            return None
        offsets = _offsets(text, option)
        if self.watermark != "root":
            raise BadRequest(f"{option} requires --watermark root")
        return offsets


def _offsets(text: str, option: str) -> dict[int, int]:
    """Parse the offset of each partition."""
    try:
        offsets = json.loads(text)
    except (ValueError, RecursionError):
        offsets = None
    if not isinstance(offsets, dict) or not all(
        is_digits(partition) and type(offset) is int and 0 <= offset <= INT64_MAX
        for partition, offset in offsets.items()
    ):
        raise BadRequest(f'{option} must be JSON such as {{"0":23}}, found {shortened(text)}')
    return {int(partition): offset for partition, offset in offsets.items()}


class IcebergUpkeep(Upkeep):
    """Maintains the table of a job after commits, and also removes old snapshots and files."""

    def __init__(self, job: ToIceberg, table: IcebergTable, view: LogView) -> None:
        super().__init__(table, job.max_files_per_partition, view)
        self._job = job
        self._iceberg = table

    def maintain(self, report: CopyReport) -> None:
        super().maintain(report)
        job, now_ms = self._job, self._env.wall_ms()
        if not self.is_due("expire", EXPIRE_INTERVAL_MS) or self._iceberg.load() is None:
            return
        if job.snapshot_age_ms is not None:
            expire_snapshots(self._iceberg, now_ms - job.snapshot_age_ms, self.report)
        if job.unreferenced_age_ms is not None:
            delete_unreferenced_files(self._iceberg, now_ms, job.unreferenced_age_ms, self.report)

    def results(self) -> dict[str, Any]:
        return {
            **super().results(),
            "expired_snapshots": self.report.expired_snapshots,
            "deleted_files": len(self.report.deleted_files),
        }


arguments = partial(parse, "to-iceberg", ToIceberg, __doc__)


@job("to-iceberg", after_interrupt="the next run continues after the last commit")
def main(words: Sequence[str]) -> int:
    options = arguments(words)
    warnings.filterwarnings("ignore", WARNINGS, UserWarning)
    view = options.open()
    with closing(open_catalog(options.catalog, options.properties)) as catalog:
        table, target, quarantine = iceberg_tables(
            catalog, options.identifier, view, options.watermark, options.resume_at, options.quarantine_resume_at
        )
        return options.run("to-iceberg", view, target, quarantine, IcebergUpkeep(options, table, view))
