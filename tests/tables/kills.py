"""Kill copies to real tables at labelled points, while other programs change the table and the topic.

`python -m tests.tables.kills delta --kills 200 --seed 1` runs one series. A parent process appends records, some of
which are in transactions that abort, and starts two copies at a time in their own processes. Each copy kills its
process with SIGKILL at a labelled point that the seed selects. Between the copies, the parent compacts the topic,
rewrites the files of the table as another program does, and expires the history of the table. At the end, the rows must
be those of a replay of the topic.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import random
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import IO, Any, Literal, cast

import pyarrow as pa

import sparklog
from sparklog.errors import BadRequest, Conflict, Unavailable
from sparklog.log.journal.clocks import SYSTEM
from sparklog.log.topic.root import Root, RootView
from sparklog.tables.copy import TableCopy, TableCopyOptions
from sparklog.tables.root_watermark import RootWatermarkTable
from sparklog.tables.rows import RowOptions
from sparklog.tables.target import NewOutput, TableState, TargetTable
from sparklog.transactions.producer import transactional

TableKind = Literal["delta", "sqlite", "postgres", "rest", "sqlite-root", "postgres-root"]
"""`-root`: the watermark is stored in the root."""
TABLES: tuple[TableKind, ...] = ("delta", "sqlite", "postgres", "rest", "sqlite-root", "postgres-root")
UNRESOLVED = 3
"""The exit code of a copy that does not know whether the table contains a commit."""
TOPIC, PARTITIONS, KEYS = "orders", 2, 8
SCHEMA = "n INT, k INT"
NAMESPACE = ("shop", "orders")


METHODS = {
    "load": "load", "create": "create", "open": "open_output", "append": "append", "upsert": "upsert",
    "delete": "delete_files",
}  # fmt: skip


STEPS = {
    False: ("load", "open", "write", "append", "delete"),
    True: ("load", "open", "write", "upsert", "delete"),
}
"""The steps of a copy to an existing table, by `is_upsert`."""


def kill_at(table: TargetTable, point: str, skipped: int) -> None:
    """Let a table kill this process when it reaches a point, which it passes `skipped` times before."""
    remaining = skipped

    def reach(reached: str) -> None:
        nonlocal remaining
        if reached == point:
            remaining -= 1
            if remaining < 0:
                os.kill(os.getpid(), signal.SIGKILL)

    def wrapped(what: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def killed(*arguments: Any) -> Any:
            reach(f"before {what}")
            result = call(*arguments)
            reach(f"after {what}")
            if isinstance(result, NewOutput):
                return NewOutput(
                    result.path, cast(IO[bytes], _WithWrite(result.file, wrapped("write", result.file.write)))
                )
            return result

        return killed

    def wrap(table: TargetTable) -> None:
        for what, method in METHODS.items():
            setattr(table, method, wrapped(what, getattr(table, method)))

    for_tasks = table.for_tasks

    def wrapped_for_tasks(state: TableState) -> tuple[TargetTable, TableState]:
        writer, version = for_tasks(state)
        if writer is not table:
            wrap(writer)
        return writer, version

    wrap(table)
    table.for_tasks = wrapped_for_tasks  # type: ignore[method-assign]


class _WithWrite:
    def __init__(self, file: Any, write: Callable[..., Any]) -> None:
        self._file = file
        self.write = write

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


@dataclass(frozen=True)
class Place:
    """Where the root and the table of a series are. `uri` is the address of a REST catalog or of a database."""

    directory: str
    kind: TableKind
    is_upsert: bool
    uri: str = ""

    @property
    def root(self) -> str:
        return f"{self.directory}/root"

    @property
    def options(self) -> TableCopyOptions:
        rows = RowOptions("json", schema=SCHEMA, headers=False)
        if self.is_upsert:
            rows = replace(rows, upsert=True, key_columns=("k",))
        # pyiceberg, which rewrites the files of the table, requires another package for partitioned tables.
        return TableCopyOptions(rows, max_offsets=40, partition_by="default" if self.kind == "delta" else None)

    @property
    def is_in_root(self) -> bool:
        return self.kind.endswith("-root")

    @contextmanager
    def open(self) -> Iterator[TargetTable]:
        """Open the table. If the watermark is in the root, `located` returns the target of copies."""
        if self.kind == "delta":
            from sparklog.tables.delta import DeltaLakeTable

            yield DeltaLakeTable(f"{self.directory}/table", {}, SYSTEM)
            return
        from pyiceberg.catalog.rest import RestCatalog
        from pyiceberg.catalog.sql import SqlCatalog

        from sparklog.tables.iceberg import IcebergTable
        from tests.tables.iceberg_catalogs import new_id, sql_properties

        if self.kind == "rest":
            with RestCatalog("test", type="rest", uri=self.uri) as catalog:
                yield IcebergTable(catalog, NAMESPACE, new_id)
            return
        with SqlCatalog("test", **sql_properties(Path(self.directory), self.uri)) as sql:
            yield IcebergTable(sql, NAMESPACE, new_id, has_properties=not self.is_in_root)

    def located(self, table: TargetTable, root: Root, resume_offsets: Mapping[int, int] | None = None) -> TargetTable:
        """Return the target of copies."""
        return RootWatermarkTable(cast(Any, table), root, resume_offsets) if self.is_in_root else table


def copy_until_killed(place: Place, point: str, skipped: int) -> None:
    """Copy the existing records in this process, which is killed at a point."""
    with place.open() as table:
        view = RootView(sparklog.open(place.root))
        try:
            kill_at(table, point, skipped)
            TableCopy(view, TOPIC, place.located(table, view.root), place.options).copy_existing()
        except (Conflict, Unavailable) as error:
            print(f"copy: {error.code} {error}", file=sys.stderr)
        except BadRequest as error:
            if "resume_offsets" not in str(error):
                raise
            sys.exit(UNRESOLVED)


@dataclass
class Series:
    """One series of kills."""

    place: Place
    source: random.Random
    committed: list[int] = field(default_factory=list)
    next_number: int = 0
    counts: Counter[str] = field(default_factory=Counter)

    def run(self, kills: int) -> None:
        root = sparklog.open(self.place.root, create=True)
        configs = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": 0.0, "segment.ms": 1}
        root.create_topic(TOPIC, partitions=PARTITIONS, configs=configs if self.place.is_upsert else {})
        with self.place.open():
            # pyiceberg fails if two processes create the tables of a SQL catalog at the same time.
            pass
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload([__name__, "sparklog.tables.delta", "sparklog.tables.iceberg"])
        while not self.committed:
            self.append(root)
        for point in ("before create", "after create"):
            self.copy_in_processes(context, [(point, 0)])
        while self.counts["kills"] < kills:
            for _ in range(self.source.randint(1, 3)):
                self.append(root)
            steps = self.source.choices(STEPS[self.place.is_upsert], k=2)
            if "delete" in steps:
                # A copy only deletes its files if another copy commits first.
                steps = ["delete", "nothing"]
            points = [
                (
                    f"{self.source.choice(['before', 'after'])} {step}",
                    0 if step == "delete" else self.source.choice([0, 0, 1, 2]),
                )
                for step in steps
            ]
            exit_codes = self.copy_in_processes(context, points)
            if UNRESOLVED in exit_codes:
                self.counts["unresolved commits"] += 1
                self.copy(root)
            if self.source.random() < 0.2:
                self.change_table()
            if self.source.random() < 0.1 and self.place.is_upsert:
                sparklog.compact(root, topics=[TOPIC], roll=True)
                self.counts["compactions of the topic"] += 1
        self.copy(root)
        self.check(root)

    def copy_in_processes(self, context: ForkServerContext, points: Sequence[tuple[str, int]]) -> list[int | None]:
        """Copy in one process per point, and return the exit codes. `points` contains arguments of `kill_at`."""
        processes = [
            context.Process(target=copy_until_killed, args=(self.place, point, skipped)) for point, skipped in points
        ]
        for process in processes:
            process.start()
        exit_codes: list[int | None] = []
        for process, (point, _) in zip(processes, points, strict=True):
            process.join(120)
            assert process.exitcode in (0, -signal.SIGKILL, UNRESOLVED), f"{point}: exit code {process.exitcode}"
            if process.exitcode == -signal.SIGKILL:
                self.counts["kills"] += 1
                self.counts[point] += 1
            exit_codes.append(process.exitcode)
        return exit_codes

    def copy(self, root: Root) -> None:
        """Copy the existing records, as a user does who finds the copied offsets in the rows."""
        resume_offsets: dict[int, int] = {}
        if self.place.is_in_root and not self.place.is_upsert:
            for row in self.rows():
                partition, end = row["_partition_id"], row["_offset"] + 1
                resume_offsets[partition] = max(end, resume_offsets.get(partition, 0))
        with self.place.open() as table:
            target = self.place.located(table, root, resume_offsets)
            TableCopy(RootView(root), TOPIC, target, self.place.options).copy_existing()

    def append(self, root: Root) -> None:
        numbers = range(self.next_number, self.next_number + self.source.randint(1, 12))
        self.next_number = numbers.stop
        keys = [self.source.randrange(KEYS) for _ in numbers]
        values = [json.dumps({"n": number, "k": key}).encode() for number, key in zip(numbers, keys, strict=True)]
        if self.place.is_upsert:
            values = [None if self.source.random() < 0.2 else value for value in values]  # type: ignore[misc]
        records = pa.table(
            {
                "key": pa.array([b"%d" % key for key in keys], pa.binary()),
                "value": pa.array(values, pa.binary()),
                "partition": pa.array([key % PARTITIONS for key in keys], pa.int32()),
            }
        )
        if self.source.random() < 0.7:
            root.topic(TOPIC).append(records)
        else:
            transaction = transactional(root, f"writer-{numbers.start}").begin()
            transaction.append(TOPIC, records)
            if self.source.random() < 0.5:
                transaction.abort()
                self.counts["aborted transactions"] += 1
                return
            transaction.commit()
        self.committed += numbers

    def change_table(self) -> None:
        """Change the table as another program does: merge its files, and expire its history."""
        if self.place.kind == "delta":
            from deltalake import DeltaTable

            if not DeltaTable.is_deltatable(f"{self.place.directory}/table"):
                return
            table = DeltaTable(f"{self.place.directory}/table")
            table.optimize.compact()
            table.create_checkpoint()
            table.cleanup_metadata()
        else:
            from sparklog.tables.iceberg import IcebergTable

            with self.place.open() as target:
                assert isinstance(target, IcebergTable)
                state = target.load()
                if state is None or state.handle.current_snapshot() is None:
                    return
                rows = state.handle.scan().to_arrow()
                state.handle.overwrite(rows)
                state.handle.refresh()
                state.handle.maintenance.expire_snapshots().older_than(datetime.now(timezone.utc)).commit()
        self.counts["changes by another program"] += 1

    def rows(self) -> list[dict[str, Any]]:
        if self.place.kind == "delta":
            from deltalake import DeltaTable

            found: list[dict[str, Any]] = DeltaTable(f"{self.place.directory}/table").to_pyarrow_table().to_pylist()
            return found
        with self.place.open() as table:
            state = table.load()
            if state is None:
                return []
            rows: list[dict[str, Any]] = state.handle.scan().to_arrow().to_pylist()
            return rows

    def check(self, root: Root) -> None:
        """Compare the rows with a replay of the topic."""
        rows = self.rows()
        if self.place.is_upsert:
            records = pa.table(root.topic(TOPIC).table(columns=["key", "value"])).to_pylist()
            expected: Counter[Any] = Counter((int(row["key"]), json.loads(row["value"])["n"]) for row in records)
            found: Counter[Any] = Counter((row["k"], row["n"]) for row in rows)
        else:
            expected, found = Counter(self.committed), Counter(row["n"] for row in rows)
        assert found == expected, f"missing rows: {expected - found}, additional rows: {found - expected}"


def run_series(kind: TableKind, kills: int, seed: int, directory: Path, *, is_upsert: bool) -> Counter[str]:
    """Run a series in a directory, and return how often each point was reached.

    Raises `AssertionError` if the rows are wrong.
    """
    with ExitStack() as stack:
        uri = f"sqlite:///{directory}/catalog.db"
        if kind in ("postgres", "postgres-root"):
            from tests.support.servers.postgres import running_postgres

            server = stack.enter_context(running_postgres())
            uri = server.uri(server.create_database())
        if kind == "rest":
            from tests.tables.iceberg_catalogs import open_catalog

            setup = stack.enter_context(open_catalog("rest", directory))
            assert setup.server is not None
            uri = setup.server.uri
        series = Series(Place(str(directory), kind, is_upsert, uri), random.Random(seed))
        try:
            series.run(kills)
            if kills >= 100:
                points = {f"{when} {step}" for when in ("before", "after") for step in ("create", *STEPS[is_upsert])}
                assert not points - set(series.counts), "points without a kill"
        except BaseException:
            print(f"seed {seed}, table {kind}, {series.counts}", file=sys.stderr)
            raise
        return series.counts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("table", choices=TABLES)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--upsert", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        counts = run_series(options.table, options.kills, options.seed, Path(directory), is_upsert=options.upsert)
    for name, count in sorted(counts.items()):
        print(f"{count:6} {name}")


if __name__ == "__main__":
    main()
