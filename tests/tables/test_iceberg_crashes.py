"""Test that each record is in an Iceberg table once, although runs of the job are killed at any request.

A run is killed before or after one of its requests to the catalog or to the files of the table. Between two runs, other
programs change the table: they merge files, expire snapshots, set properties and add a column.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.io.pyarrow import PyArrowFileIO

import sparklog
from sparklog.jobs import to_iceberg
from sparklog.jobs.common import DONE
from sparklog.opening import open_view, resolve
from sparklog.tables.copy import TableCopy, TableCopyOptions
from sparklog.tables.iceberg import IcebergTable
from sparklog.tables.maintenance import MaintenanceReport, merge_small_files
from sparklog.tables.rows import RowOptions
from sparklog.transactions.producer import transactional
from tests.tables.iceberg_catalogs import new_id, sqlite_properties

REQUESTS = (
    *((SqlCatalog, name) for name in ("load_table", "create_namespace", "create_table", "commit_table")),
    *((PyArrowFileIO, name) for name in ("new_output", "delete")),
)
NAME = ("shop", "orders")


class KilledError(BaseException):
    """The process is killed, so no code of the job handles this."""


class Kill:
    """Kills a run at a point. A request has two points: before it, and after it."""

    def __init__(self, at: int | None) -> None:
        self.at = at
        self.points = 0

    def point(self) -> None:
        if self.points == self.at:
            raise KilledError
        self.points += 1

    def install(self, patch: pytest.MonkeyPatch) -> None:
        for owner, name in REQUESTS:
            patch.setattr(owner, name, self._wrapped(getattr(owner, name)))

    def _wrapped(self, request: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            self.point()
            result = request(*args, **kwargs)
            self.point()
            return result

        return wrapped


class Copies:
    """A topic with committed, aborted and deleted records, and a table in a SQLite catalog."""

    def __init__(self, directory: Path, mode: str) -> None:
        self.root = sparklog.open(directory / "root", create=True)
        self.root.create_topic("orders", partitions=2)
        self.producer = transactional(self.root, "writer")
        self.mode = mode
        self.values: list[tuple[bytes, bytes | None]] = []
        self.directory = directory
        pairs = sqlite_properties(directory).items()
        self.words = [
            *("--root", str(directory / "root"), "--topic", "orders", "--table", ".".join(NAME), "--catalog", "test"),
            *(word for name, value in pairs for word in ("--catalog-property", f"{name}={value}")),
            *("--mode", mode, "--max-files-per-partition", "4", "--max-offsets-per-trigger", "7"),
        ]

    def produce(self, round_number: int) -> None:
        keys = [b"k%d" % (number % 5) for number in range(round_number, round_number + 8)]
        values = [None if number == 3 else b"%d-%d" % (round_number, number) for number in range(8)]
        with self.producer.begin() as transaction:
            transaction.append("orders", pa.table({"key": keys, "value": pa.array(values, pa.binary())}))
        with suppress(KeyError), self.producer.begin() as transaction:
            transaction.append("orders", pa.table({"key": [b"aborted"], "value": [b"x"]}))
            raise KeyError
        self.values += zip(keys, values, strict=True)

    def expected(self) -> list[tuple[bytes, bytes | None]]:
        if self.mode == "append":
            return sorted(self.values, key=str)
        return sorted(((key, value) for key, value in dict(self.values).items() if value is not None), key=str)

    def rows(self) -> list[tuple[bytes, bytes | None]]:
        with SqlCatalog("test", **sqlite_properties(self.directory)) as catalog:
            rows = catalog.load_table(NAME).scan().to_arrow().to_pylist()
        return sorted(((row["key"], row["value"]) for row in rows), key=str)

    def run(self, kill_at: int | None = None) -> int:
        """Run the job, and return the number of points that it passed. Other programs change the table afterwards."""
        kill = Kill(kill_at)
        with pytest.MonkeyPatch.context() as patch:
            kill.install(patch)
            try:
                assert to_iceberg.main(self.words) == DONE
            except KilledError:
                assert kill.points == kill_at
        return kill.points

    def change_elsewhere(self, number: int) -> None:
        with SqlCatalog("test", **sqlite_properties(self.directory)) as catalog:
            if not catalog.table_exists(NAME):
                return
            table = catalog.load_table(NAME)
            if number % 4 == 0:
                merge_small_files(IcebergTable(catalog, NAME, new_id), 1, new_id, MaintenanceReport())
            elif number % 4 == 1:
                table.maintenance.expire_snapshots().older_than(datetime.now() + timedelta(days=1)).commit()
            elif number % 4 == 2:
                with table.transaction() as transaction:
                    transaction.set_properties({"owner": "anna"})
            elif "note" not in table.schema().column_names:
                with table.update_schema() as update:
                    update.add_column("note", table.schema().find_type("_topic"))


def check_kills(directory: Path, mode: str, points: Callable[[int], range]) -> int:
    """Kill runs at points, each in a new round of records, and return the number of kills."""
    copies = Copies(directory, mode)
    copies.produce(0)
    total = copies.run()
    assert copies.rows() == copies.expected()
    kills = 0
    for number, at in enumerate(points(total)):
        copies.produce(number)
        copies.change_elsewhere(number)
        kills += copies.run(at) == at
        copies.change_elsewhere(number + 1)
        copies.run()
        assert copies.rows() == copies.expected(), f"killed at point {at}"
    return kills


@pytest.mark.parametrize("mode", ["append", "upsert"])
def test_some_points(tmp_path: Path, mode: str) -> None:
    assert check_kills(tmp_path, mode, lambda total: range(1, total, total // 3)) >= 3


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["append", "upsert"])
def test_all_points(tmp_path: Path, mode: str) -> None:
    assert check_kills(tmp_path, mode, range) >= 20


@pytest.mark.parametrize("mode", ["append", "upsert"])
def test_kills_of_the_first_run(tmp_path: Path, mode: str) -> None:
    """The table may not exist, or may be empty."""
    for at in itertools.count(1, 8):
        copies = Copies(tmp_path / str(at), mode)
        copies.produce(0)
        if copies.run(at) < at:
            break
        copies.run()
        assert copies.rows() == copies.expected(), f"killed at point {at}"
    assert at > 6


@pytest.mark.parametrize("mode", ["append", "upsert"])
def test_two_copies_at_the_same_time(tmp_path: Path, mode: str) -> None:
    """Each thread has its own connection to the database of the catalog, as two processes would have."""
    copies = Copies(tmp_path, mode)
    for number in range(3):
        copies.produce(number)
    options = TableCopyOptions(RowOptions(upsert=mode == "upsert"), max_offsets=6)
    begin = threading.Barrier(2)

    def copy(_: int) -> int:
        with SqlCatalog("test", **sqlite_properties(tmp_path)) as catalog:
            view = open_view(resolve(str(tmp_path / "root")), tailing=False)
            begin.wait()
            return TableCopy(view, "orders", IcebergTable(catalog, NAME, new_id), options).copy_existing().commits

    # Two processes cannot create the tables of the database at the same time.
    SqlCatalog("test", **sqlite_properties(tmp_path)).close()
    with ThreadPoolExecutor(2) as threads:
        commits = list(threads.map(copy, range(2)))
    assert sum(commits) >= 3
    assert copies.rows() == copies.expected()
