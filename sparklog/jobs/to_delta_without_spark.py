r"""Write a topic into a Delta table, exactly once: one row per record, or the latest record of each key. The table
contains the offsets up to which the topic was copied, so there is no checkpoint, and Spark and Java are not required.
With --checkpoint PATH, the job runs on Spark and has other options: see `sparklog to-delta --checkpoint PATH --help`.

    sparklog to-delta --root /data/log --topic orders --table /data/tables/orders
    sparklog to-delta --root /data/log --topic orders --table s3://bucket/orders --storage-option AWS_REGION=eu-west-1

A run on another host continues where the last run stopped. Several runs may copy to the same table. Without `--follow`,
the job ends when it has written the records that existed at its start. After a commit, the job also merges small files.
See `sparklog.jobs.common` for exit codes.
"""

# Do not import annotations from __future__: `parse` evaluates the annotations in this module.
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated

from sparklog.console.options import name_and_value
from sparklog.console.parameters import Option
from sparklog.jobs.common import job, parse
from sparklog.jobs.table_options import TableJob, Upkeep
from sparklog.tables.functions import delta_tables


@dataclass(kw_only=True)
class ToDeltaTable(TableJob):
    """Options of the job."""

    table: Annotated[
        str,
        Option(metavar="PATH", help="Directory or URL of the Delta table. The table is created if it does not exist."),
    ]
    storage_option: Annotated[
        list[str] | None,
        Option(
            metavar="PROPERTY=VALUE",
            help="Setting of the object store, as in deltalake, such as AWS_REGION=eu-west-1. May be repeated.",
            show_default="environment variables such as AWS_REGION",
        ),
    ] = None
    storage_options: dict[str, str] = field(init=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.storage_options = dict(name_and_value(text, "--storage-option") for text in self.storage_option or ())


SPARK_OPTIONS = {
    "--metadata": "the table always contains the columns of --metadata, unless --checkpoint is used",
}
arguments = partial(parse, "to-delta", ToDeltaTable, __doc__, advice=SPARK_OPTIONS)


@job("to-delta", after_interrupt="the next run continues after the last commit")
def main(words: Sequence[str]) -> int:
    options = arguments(words)
    view = options.open()
    table, quarantine = delta_tables(options.table, options.storage_options, view.env)
    upkeep = Upkeep(table, options.max_files_per_partition, view)
    return options.run("to-delta", view, table, quarantine, upkeep)
