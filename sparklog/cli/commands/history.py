"""`sparklog history`: the commits of a topic, newest first, as DESCRIBE HISTORY of Delta."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from sparklog.cli.locations import open_root
from sparklog.cli.options import RootOption, whole_number
from sparklog.cli.parameters import Argument, Commands
from sparklog.cli.terminal import Output, print_table
from sparklog.times import iso_time
from sparklog.units import size_text

if TYPE_CHECKING:
    from sparklog.log.state.commit import Commit

app = Commands()


@dataclass(frozen=True)
class Version:
    """One commit. `records`, `nbytes`: that it brought; None where it only rewrites records that were there."""

    version: int
    timestamp: str
    operation: str
    records: int | None
    nbytes: int | None
    writer: str | None

    @classmethod
    def of(cls, commit: Commit) -> Version:
        from sparklog.log.state.commit import COMPACT, MERGE, SEAL

        counts: tuple[int | None, int | None] = None, None
        if commit.op not in (MERGE, SEAL, COMPACT):
            counts = sum(sum(file.records) for file in commit.files), sum(sum(file.nbytes) for file in commit.files)
        return cls(commit.version, iso_time(commit.made_ms), commit.op, *counts, writer_of(commit))

    def cells(self) -> tuple[object, ...]:
        nbytes = None if self.nbytes is None else size_text(self.nbytes)
        return self.version, self.timestamp, self.operation, self.records, nbytes, self.writer


def writer_of(commit: Commit) -> str | None:
    """Return what names a commit's writer: query and batch, txnAppId and txnVersion, or transaction."""
    from sparklog.log.state.writer_runs import TXN

    if commit.writer is not None:
        batch = ("txnAppId", "txnVersion") if commit.writer.kind == TXN else ("query", "batch")
        return f"{batch[0]} {commit.writer.id}, {batch[1]} {commit.writer.batch}"
    return None if commit.txn is None else f"transaction {commit.txn.id} #{commit.txn.n}"


@app.add("history", "sparklog history orders --limit 10 --root /data/log")
def history(
    topic: Annotated[str, Argument(metavar="TOPIC", help="The topic; also a deleted one.")],
    root: RootOption,
    limit: Annotated[int, whole_number(low=1, text="Commits at most.")] = 100,
) -> Output:
    """Show the commits of a topic, newest first: version, time, operation, records and bytes that it brought, writer.

    A version serves `--as-of` of clone, export and restore, and versionAsOf of a scan. Commits are kept for seven days
    at least; --json names the oldest one.
    """
    from sparklog.log.journal.names import check_topic_name
    from sparklog.log.state.history import History

    opened = open_root(root)
    if opened.engine.log(check_topic_name(topic)).refresh().head.version < 0:
        # It never was, which is an error that names similar ones.
        opened.topic(topic)
    log = History(opened.store, topic)
    kept = log.commits.version.tolist()
    # Below a gap are versions that a stalled writer left.
    pairs = zip(kept[-2::-1], kept[:0:-1], strict=True)
    oldest = next((after for before, after in pairs if after != before + 1), kept[0])
    newest = kept[-1]
    versions = range(newest, max(oldest, newest + 1 - limit) - 1, -1)
    rows = [Version.of(log.commit(version)) for version in versions]

    def show() -> None:
        headings = ("VERSION", "TIME", "OPERATION", "RECORDS", "BYTES", "WRITER")
        print_table(headings, [row.cells() for row in rows], right=("VERSION", "RECORDS", "BYTES"))
        if versions[-1] > oldest:
            print(f"{versions[-1] - oldest:,} older commits are not shown; look at --limit")
        if oldest > 0:
            print(f"commits before version {oldest} are no longer kept")

    return Output({"topic": topic, "oldestVersion": oldest, "commits": rows}, show)
