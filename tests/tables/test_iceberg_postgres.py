"""Test copies to Iceberg tables of a catalog in PostgreSQL, with a real server."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog

import sparklog
from sparklog.errors import Conflict, Unavailable
from sparklog.opening import open_view, resolve
from sparklog.tables.copy import CopyReport, TableCopy, TableCopyOptions
from sparklog.tables.iceberg import IcebergTable
from sparklog.tables.iceberg_catalog import open_catalog
from sparklog.tables.rows import RowOptions
from tests.support.servers.postgres import USER, CommitFault, CommitProxy, PostgresServer, running_postgres
from tests.tables.iceberg_catalogs import new_id, sql_properties
from tests.tables.test_iceberg import created, loaded, offsets, rows, watermark, write

pytestmark = pytest.mark.slow
NAME = ("shop", "orders")
MODES = ("append", "upsert")
ISOLATION = ("read committed", "repeatable read", "serializable")


@pytest.fixture(scope="module")
def postgres() -> Iterator[PostgresServer]:
    with running_postgres() as server:
        yield server


@pytest.fixture
def database(postgres: PostgresServer) -> str:
    return postgres.create_database()


class Copies:
    """A topic, and a table in a database."""

    def __init__(self, directory: Path, uri: str, mode: str) -> None:
        self.root = sparklog.open(directory / "root", create=True)
        self.root.create_topic("orders", partitions=2)
        self.directory = directory
        self.properties = sql_properties(directory, uri)
        self.mode = mode
        self.values: list[tuple[bytes, bytes]] = []

    def produce(self, number: int) -> None:
        values = [(b"k%d" % (index % 5), b"%d-%d" % (number, index)) for index in range(8)]
        keys, contents = zip(*values, strict=True)
        self.root.topic("orders").append(pa.table({"key": list(keys), "value": list(contents)}))
        self.values += values

    def copy(self, uri: str | None = None) -> CopyReport:
        """Copy the existing records, as a process does that connects to the database at `uri`."""
        view = open_view(resolve(str(self.directory / "root")), tailing=False)
        options = TableCopyOptions(RowOptions(upsert=self.mode == "upsert"), max_offsets=6)
        properties = self.properties if uri is None else {**self.properties, "uri": uri}
        with closing(open_catalog("test", properties)) as catalog:
            return TableCopy(view, "orders", IcebergTable(catalog, NAME, new_id), options).copy_existing()

    def check(self) -> None:
        with closing(SqlCatalog("test", **self.properties)) as catalog:
            found = catalog.load_table(NAME).scan().to_arrow().to_pylist()
        expected = self.values if self.mode == "append" else list(dict(self.values).items())
        assert sorted((row["key"], row["value"]) for row in found) == sorted(expected)


@pytest.mark.parametrize("mode", MODES)
def test_copies_continue(postgres: PostgresServer, database: str, tmp_path: Path, mode: str) -> None:
    copies = Copies(tmp_path, postgres.uri(database), mode)
    for number in range(3):
        copies.produce(number)
        assert copies.copy().records == 8
        copies.check()
    assert copies.copy().commits == 0


@pytest.mark.parametrize("isolation", ISOLATION)
@pytest.mark.parametrize("mode", MODES)
def test_copies_at_the_same_time(postgres: PostgresServer, tmp_path: Path, mode: str, isolation: str) -> None:
    """The copies also create the tables of the catalog, the namespace and the table at the same time."""
    database = postgres.create_database(f"default_transaction_isolation = '{isolation}'")
    copies = Copies(tmp_path, postgres.uri(database), mode)
    for number in range(4):
        copies.produce(number)
    begin = threading.Barrier(3)

    def copy(_: int) -> int:
        begin.wait()
        return copies.copy().commits

    with ThreadPoolExecutor(3) as threads:
        commits = list(threads.map(copy, range(3)))
    assert sum(commits) >= 4
    copies.check()


@pytest.mark.parametrize("fault", ["cut before", "cut after", "delayed"])
@pytest.mark.parametrize("mode", MODES)
def test_connections_are_cut_around_the_commit(
    postgres: PostgresServer, database: str, tmp_path: Path, mode: str, fault: CommitFault
) -> None:
    copies = Copies(tmp_path, postgres.uri(database), mode)
    copies.produce(0)
    copies.copy()
    copies.produce(1)
    copies.produce(2)
    with CommitProxy(postgres.port) as proxy:
        proxy.faults += [fault, fault]
        # The row of the table is locked until the delayed commit arrives, and the copy waits for it.
        with delivered(proxy, postgres, database):
            report = copies.copy(postgres.uri(database, proxy.port))
        assert not proxy.faults
    assert report.records == 16
    copies.check()


@contextmanager
def delivered(proxy: CommitProxy, postgres: PostgresServer, database: str) -> Iterator[None]:
    """Send delayed commits to the server once a session waits for their locks."""
    done = threading.Event()

    def deliver() -> None:
        while not done.is_set():
            if waiting_sessions(postgres, database):
                proxy.deliver()
            time.sleep(0.02)

    thread = threading.Thread(target=deliver)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def waiting_sessions(postgres: PostgresServer, database: str) -> int:
    statement = f"SELECT count(*) FROM pg_stat_activity WHERE datname = '{database}' AND wait_event_type = 'Lock'"
    [[number]] = postgres.execute("postgres", statement)
    assert isinstance(number, int)
    return number


@contextmanager
def opened(postgres: PostgresServer, database: str, directory: Path, user: str = USER) -> Iterator[SqlCatalog]:
    properties = sql_properties(directory, postgres.uri(database, user=user))
    with closing(SqlCatalog("test", **properties)) as catalog:
        yield catalog


@pytest.mark.parametrize("isolation", ISOLATION)
def test_concurrent_change_of_the_row(postgres: PostgresServer, tmp_path: Path, isolation: str) -> None:
    """The commit waits for the row of the table, which another transaction changes."""
    database = postgres.create_database(f"default_transaction_isolation = '{isolation}'")
    with opened(postgres, database, tmp_path) as catalog, closing(postgres.connect(database)) as other:
        table = IcebergTable(catalog, NAME, new_id)
        state = created(table)
        files = [write(table, state, "a", rows(0, 5))]
        other.cursor().execute("UPDATE iceberg_tables SET previous_metadata_location = 'changed'")
        with ThreadPoolExecutor(1) as threads:
            commit = threads.submit(table.append, state, files, watermark(5, "commit-1"))
            while not waiting_sessions(postgres, database):
                time.sleep(0.02)
            other.commit()
            if isolation == "read committed":
                commit.result()
            else:
                with pytest.raises(Conflict, match="could not serialize access due to concurrent update"):
                    commit.result()
                table.append(loaded(table), files, watermark(5, "commit-2"))
        assert offsets(catalog) == [0, 1, 2, 3, 4]


RAISE = """
CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN RAISE EXCEPTION 'the commit fails' USING ERRCODE = '{code}'; END $$;
CREATE CONSTRAINT TRIGGER fail AFTER UPDATE ON iceberg_tables {when} FOR EACH ROW EXECUTE FUNCTION fail()
"""
DEFERRED = "DEFERRABLE INITIALLY DEFERRED"


@pytest.mark.parametrize("when", ["", DEFERRED], ids=["update", "commit"])
@pytest.mark.parametrize("code", ["40001", "40P01", "42501", "25006", "40003", "57014", "53300"])
def test_errors_of_the_database(postgres: PostgresServer, database: str, tmp_path: Path, code: str, when: str) -> None:
    """A serialization failure and a deadlock conflict, a missing right is reported, and others are unknown results."""
    with opened(postgres, database, tmp_path) as catalog:
        table = IcebergTable(catalog, NAME, new_id)
        state = created(table)
        files = [write(table, state, "a", rows(0, 5))]
        postgres.execute(database, RAISE.format(code=code, when=when))
        expected = Conflict if code in ("40001", "40P01") else Unavailable
        with pytest.raises(expected, match="the commit fails") as caught:
            table.append(state, files, watermark(5, "commit-1"))
        if isinstance(caught.value, Unavailable):
            assert caught.value.is_denied == (code in ("42501", "25006"))
            assert caught.value.is_unknown != caught.value.is_denied
        postgres.execute(database, "DROP TRIGGER fail ON iceberg_tables")
        table.append(loaded(table), files, watermark(5, "commit-2"))
        assert offsets(catalog) == [0, 1, 2, 3, 4]


def test_role_that_may_only_read(postgres: PostgresServer, database: str, tmp_path: Path) -> None:
    with opened(postgres, database, tmp_path) as catalog:
        created(IcebergTable(catalog, NAME, new_id))
    postgres.execute(database, "CREATE ROLE reader LOGIN; GRANT SELECT ON ALL TABLES IN SCHEMA public TO reader")
    with opened(postgres, database, tmp_path, "reader") as catalog:
        table = IcebergTable(catalog, NAME, new_id)
        with pytest.raises(Unavailable, match="permission denied for table iceberg_tables") as caught:
            table.append(loaded(table), [], watermark(5, "commit-1"))
        assert caught.value.is_denied
        assert "\n" not in str(caught.value)


def test_restarted_server(postgres: PostgresServer, database: str, tmp_path: Path) -> None:
    """A restart closes the connections in the pool of a job that runs with `--follow`."""
    copies = Copies(tmp_path, postgres.uri(database), "append")
    view = open_view(resolve(str(tmp_path / "root")), tailing=True)
    with closing(open_catalog("test", copies.properties)) as catalog:
        copy = TableCopy(view, "orders", IcebergTable(catalog, NAME, new_id), TableCopyOptions())
        for number in range(3):
            copies.produce(number)
            assert copy.copy_existing().commits == number + 1
            end = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = "
            assert postgres.execute("postgres", f"{end}'{database}'")
    copies.check()


def test_missing_database_is_one_line(postgres: PostgresServer, tmp_path: Path) -> None:
    with pytest.raises(Unavailable) as caught:
        open_catalog("test", sql_properties(tmp_path, postgres.uri("missing")))
    assert 'FATAL: database "missing" does not exist; configure it in' in str(caught.value)
    assert "\n" not in str(caught.value)
