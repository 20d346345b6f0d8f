"""Test tables whose watermark is in the root: in memory, and in a REST catalog that does not store properties."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog.rest import RestCatalog

import sparklog
from sparklog.errors import BadRequest, Conflict, Unavailable
from sparklog.jobs import to_iceberg
from sparklog.jobs.common import DONE
from sparklog.log.journal.entry_log import EntryLog
from sparklog.log.state.table_watermarks import TABLE_WATERMARKS, TableWatermark
from sparklog.log.topic.root import Root, RootView
from sparklog.tables.copy import TableCopy, TableCopyOptions
from sparklog.tables.functions import iceberg_tables
from sparklog.tables.root_watermark import RootWatermarkTable, _complete
from sparklog.tables.rows import RowOptions
from sparklog.tables.target import NewFile, TableState
from sparklog.tables.watermark import Watermark
from sparklog.testing.world import World
from tests.support.rest_catalog import PropertyRule, RestServer
from tests.tables.iceberg_catalogs import open_catalog
from tests.tables.memory_table import MemoryCatalog, MemoryTable, Step

UPSERT = TableCopyOptions(RowOptions("json", schema="id BIGINT", upsert=True, key_columns=("id",)))


class KilledError(BaseException):
    """The process is killed, so no code of the copy handles this."""


class KilledTable(MemoryTable):
    """A table whose process is killed while it appends rows, before or after the commit."""

    is_after = False

    def append(self, state: TableState, files: Sequence[NewFile], watermark: Watermark) -> None:
        if self.is_after:
            super().append(state, files, watermark)
        raise KilledError


class Copies:
    """A topic, and a table in memory whose properties are not stored."""

    def __init__(self, options: TableCopyOptions | None = None) -> None:
        self.world = World()
        self.root = self.world.root()
        self.topic = self.root.create_topic("t")
        self.catalog = MemoryCatalog()
        self.options = options or TableCopyOptions()
        self.produced = 0

    def produce(self, count: int = 3) -> None:
        numbers = range(self.produced, self.produced + count)
        values = [b'{"id":%d}' % number for number in numbers]
        self.topic.append(pa.table({"key": [b"%d" % number for number in numbers], "value": values}))
        self.produced += count

    def table(self, step: Step = lambda what: None, resume_offsets: Mapping[int, int] | None = None) -> Any:
        inner = MemoryTable(self.catalog, "t", step, has_properties=False)
        return RootWatermarkTable(inner, self.root, resume_offsets)

    def copy(self, step: Step = lambda what: None, resume_offsets: Mapping[int, int] | None = None) -> TableCopy:
        return TableCopy(RootView(self.root), "t", self.table(step, resume_offsets), self.options)

    def copy_with_quarantine(self, quarantine: RootWatermarkTable) -> None:
        TableCopy(RootView(self.root), "t", self.table(), self.options, quarantine).copy_existing()

    def copy_until_killed(self, at: str, *, is_after: bool = False) -> None:
        """Copy the records, and die before a request to the table, or after it."""

        def step(what: str) -> None:
            if what == at:
                raise KilledError

        copy = self.copy(lambda what: None if is_after else step(what))
        if is_after:
            table = copy._target
            assert isinstance(table, RootWatermarkTable)
            commit: Callable[..., None] = getattr(table._table, at)

            def commit_and_die(*arguments: Any) -> None:
                commit(*arguments)
                raise KilledError

            setattr(table._table, at, commit_and_die)
        with pytest.raises(KilledError):
            copy.copy_existing()

    def change_elsewhere(self) -> None:
        """Another program commits without rows."""
        assert self.catalog.current is not None
        self.catalog.commit(self.catalog.current)

    def expire(self) -> None:
        """Remove all versions but the current one."""
        self.change_elsewhere()
        del self.catalog.versions[:-1]

    def entry(self) -> TableWatermark:
        return self.root.engine.entries(TABLE_WATERMARKS, "table").refresh()

    def offsets(self) -> list[int]:
        return sorted(self.catalog.rows()["_offset"].to_pylist())

    def check(self) -> None:
        assert self.offsets() == list(range(self.produced))


def test_watermark_survives_expired_versions() -> None:
    copies = Copies()
    for commits in (1, 1, 0):
        copies.produce(3 * commits)
        copies.expire() if copies.catalog.versions else None
        assert copies.copy().copy_existing().commits == commits
        copies.check()


@pytest.mark.parametrize("expires", [False, True])
@pytest.mark.parametrize("at", ["load", "create", "open_output", "append"])
def test_killed_before_a_request(at: str, expires: bool) -> None:
    """A run that is killed before its commit is in the table is repeated, unless the history has expired."""
    copies = Copies()
    if at != "create":
        copies.copy().copy_existing()
        copies.produce()
        copies.copy().copy_existing()
    copies.produce()
    copies.copy_until_killed(at)
    if expires and at != "create":
        copies.expire()
    if expires and at == "append":
        with pytest.raises(BadRequest, match="unknown whether the table contains the offsets 3 to 5 of t-0"):
            copies.copy().copy_existing()
        copies.copy(resume_offsets={0: 3}).copy_existing()
    copies.copy().copy_existing()
    copies.check()


def test_killed_after_the_table_is_created() -> None:
    copies = Copies()
    copies.produce()
    copies.copy_until_killed("create", is_after=True)
    assert copies.catalog.current is not None
    assert copies.entry().number == -1
    assert copies.copy().copy_existing().commits == 1
    copies.check()


def test_killed_after_the_commit() -> None:
    """The next run finds the commit in the history, and writes its entry, so a later expiry has no effect."""
    copies = Copies()
    copies.produce()
    copies.copy_until_killed("append", is_after=True)
    assert copies.entry().pending
    assert copies.copy().copy_existing().commits == 0
    assert not copies.entry().pending
    copies.expire()
    assert copies.copy().copy_existing().commits == 0
    copies.check()


def test_killed_after_the_commit_and_the_history_has_expired() -> None:
    copies = Copies()
    copies.produce()
    copies.copy().copy_existing()
    copies.produce()
    copies.copy_until_killed("append", is_after=True)
    copies.expire()
    with pytest.raises(BadRequest) as caught:
        copies.copy().copy_existing()
    assert str(caught.value) == (
        "a run was killed while it committed to table t, and the snapshots since then have expired: it is unknown "
        "whether the table contains the offsets 3 to 5 of t-0. Run the copy once with resume_offsets, with "
        "max(_offset) + 1 of the rows of each _partition_id"
    )
    with pytest.raises(BadRequest, match="resume_offsets of partition 0 must be at least 3"):
        copies.copy(resume_offsets={0: 2}).copy_existing()
    copies.produce()
    assert copies.copy(resume_offsets={0: 6}).copy_existing().records == 3
    copies.check()
    # Later runs do not use the offsets.
    assert copies.copy(resume_offsets={0: 6}).copy_existing().records == 0


def unresolved(catalog: MemoryCatalog, root: Root, resume_offsets: Mapping[int, int] | None) -> RootWatermarkTable:
    table = MemoryTable(catalog, "q", has_properties=False)
    return RootWatermarkTable(table, root, resume_offsets, "quarantine_resume_offsets")


def test_killed_between_the_commits_to_the_quarantine_and_the_table() -> None:
    """A run with offsets for the quarantine adds a bad record only if the commit to the quarantine had failed."""
    for is_after in (False, True):
        copies = Copies(TableCopyOptions(RowOptions("json", schema="id BIGINT"), bad_records="quarantine"))
        quarantine = MemoryCatalog(table_id="quarantine")
        copies.topic.append(pa.table({"value": [b"bad"]}))
        killed = KilledTable(quarantine, "q", has_properties=False)
        killed.is_after = is_after
        with pytest.raises(KilledError):
            copies.copy_with_quarantine(RootWatermarkTable(killed, copies.root))
        quarantine.commit(quarantine.versions[-1])
        quarantine.commit(quarantine.versions[-1])
        del quarantine.versions[:-1]
        text = (
            r"0 to 0 of t-0\. .* with quarantine_resume_offsets, with max\(offset\) \+ 1 of the rows of each partition$"
        )
        with pytest.raises(BadRequest, match=text):
            copies.copy_with_quarantine(unresolved(quarantine, copies.root, None))
        copies.copy_with_quarantine(unresolved(quarantine, copies.root, {0: int(is_after)}))
        assert quarantine.rows()["value"].to_pylist() == [b"bad"]


def test_upsert_is_repeated_if_the_history_has_expired() -> None:
    copies = Copies(UPSERT)
    copies.produce()
    copies.copy().copy_existing()
    for is_after in (False, True):
        copies.produce()
        copies.copy_until_killed("upsert", is_after=is_after)
        copies.expire()
    copies.produce()
    copies.copy().copy_existing()
    assert sorted(copies.catalog.rows()["id"].to_pylist()) == list(range(copies.produced))


def test_a_failed_commit_does_not_hide_the_one_of_another_run() -> None:
    """Two runs commit on the same version. The entry of the run that fails is the latest one."""
    copies = Copies()
    copies.produce()
    copies.copy().copy_existing()
    copies.produce()
    first, second = copies.table(), copies.table()
    one, two = first.load(), second.load()
    after = replace(one.watermark, next_offsets={0: 6}, commit_id="one")
    other = replace(one.watermark, next_offsets={0: 5}, commit_id="two")
    first._begin(one, after)
    second._begin(two, other)
    first._table.append(one.handle.state, [], after)
    with pytest.raises(Conflict):
        second._table.append(two.handle.state, [], other)
    assert first.load().watermark == after
    copies.expire()
    with pytest.raises(BadRequest, match="unknown whether"):
        first.load()


def test_a_late_entry_does_not_replace_a_pending_watermark() -> None:
    """A stalled run writes the entry after its commit when another run has begun the next commit."""
    copies = Copies()
    copies.produce()
    copies.copy_until_killed("append", is_after=True)
    stalled = copies.table().load().watermark
    copies.produce()
    copies.copy_until_killed("append", is_after=True)
    log = copies.root.engine.entries(TABLE_WATERMARKS, "table")
    before = log.refresh()
    _complete(log, stalled)
    assert log.refresh() == before
    copies.copy().copy_existing()
    copies.check()


def test_the_entry_is_read_again_if_a_run_commits_while_the_table_is_loaded() -> None:
    """The commit of the other run has expired when the table is loaded for the second time."""
    copies = Copies()
    copies.produce()
    copies.copy().copy_existing()
    copies.expire()
    copies.produce()
    loads = itertools.count()

    def step(what: str) -> None:
        if what == "load" and next(loads) == 1:
            copies.copy().copy_existing()
            copies.expire()

    assert copies.copy(step).copy_existing().commits == 0
    assert next(loads) == 3
    copies.check()


def test_root_that_is_unavailable_before_the_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    """The commit was not sent, so its outcome is known."""
    copies = Copies()
    copies.produce()
    table = copies.table()
    copies.copy().copy_existing()
    state = table.load()

    def fail(*_: Any) -> None:
        raise Unavailable("no response", is_unknown=True)

    with monkeypatch.context() as patch:
        patch.setattr(EntryLog, "write", fail)
        with pytest.raises(Unavailable, match="cannot write the watermark of table t: no response") as caught:
            table.append(state, [], replace(state.watermark, commit_id="x"))
    assert not caught.value.is_unknown
    assert len(copies.catalog.versions) == 2


def test_root_that_is_unavailable_after_the_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    copies = Copies()
    copies.produce()
    real = EntryLog.write
    writes = itertools.count()

    def fail(self: Any, step: Any) -> Any:
        # The entries of the creation, of the pending commit, and of the commit.
        if next(writes) == 2:
            raise Unavailable("no response", is_unknown=True)
        return real(self, step)

    with monkeypatch.context() as patch:
        patch.setattr(EntryLog, "write", fail)
        assert copies.copy().copy_existing().commits == 1
    assert copies.copy().copy_existing().commits == 0
    copies.check()


def test_table_of_another_program_requires_starting_offsets() -> None:
    copies = Copies()
    other = MemoryTable(copies.catalog, "t")
    copies.copy().copy_existing()
    del other
    copies.expire()
    for info in list(copies.root.store.list("_watermarks/")):
        copies.root.store.delete(info.key)
    copies.root = copies.world.root()
    copies.produce()
    with pytest.raises(BadRequest, match="was not created by copying a topic"):
        copies.copy().copy_existing()
    copies.options = TableCopyOptions(starting_offsets="earliest")
    copies.copy().copy_existing()
    copies.check()


def test_entry_is_a_valid_document() -> None:
    copies = Copies()
    copies.produce()
    copies.copy_until_killed("append")
    entry = copies.entry()
    [path] = [
        info.key for info in copies.root.store.list("_watermarks/") if info.key.endswith(f"{entry.number:020}.json")
    ]
    document = json.loads(copies.root.store.get(path))
    assert document["pending"]["sparklog.next-offsets"] == '{"0":3}'
    assert document["watermark"]["sparklog.next-offsets"] == '{"0":0}'
    assert document["basedOn"] == ""
    assert TABLE_WATERMARKS.decode(TABLE_WATERMARKS.table.encode(entry), "key", entry.number) == entry
    report = sparklog.verify(copies.root)
    assert not report.findings, report.findings


def test_kafka_log_directory_cannot_store_a_watermark(server: RestServer, tmp_path: Path) -> None:
    partition = tmp_path / "kafka" / "orders-0"
    partition.mkdir(parents=True)
    (partition / "00000000000000000000.log").touch()
    with pytest.raises(BadRequest, match="watermark='root' requires a root, not a Kafka log directory"):
        sparklog.to_iceberg(tmp_path / "kafka", "orders", "shop.orders", catalog={"uri": server.uri}, watermark="root")


def test_python_call(root: Root, server: RestServer) -> None:
    append(root)
    with RestCatalog("test", uri=server.uri) as catalog:
        for records in (3, 0):
            report = sparklog.to_iceberg(
                root, "orders", "shop.orders", catalog=catalog, watermark="root", partition_by="none"
            )
            assert report.records == records
            expire(server)
        _, *targets = iceberg_tables(catalog, ("shop", "orders"), RootView(root), "root", {0: 1}, {0: 2})
        for target, option, offsets in zip(
            targets, ("resume_offsets", "quarantine_resume_offsets"), ({0: 1}, {0: 2}), strict=True
        ):
            assert isinstance(target, RootWatermarkTable)
            assert (target._resume_option, target._resume_offsets) == (option, offsets)
    with pytest.raises(BadRequest, match="resume_offsets must be a mapping of partitions to offsets"):
        sparklog.to_iceberg(root, "orders", "shop.orders", watermark="root", resume_offsets="x")  # type: ignore[arg-type]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RestServer]:
    with open_catalog("rest", tmp_path) as setup:
        assert setup.server is not None
        yield setup.server


@pytest.fixture
def root(tmp_path: Path) -> Root:
    root = sparklog.open(tmp_path / "root", create=True)
    root.create_topic("orders")
    return root


def words(tmp_path: Path, server: RestServer, *more: str) -> list[str]:
    return [
        *("--root", str(tmp_path / "root"), "--topic", "orders", "--table", "shop.orders", "--catalog", "test"),
        *("--catalog-property", "type=rest", "--catalog-property", f"uri={server.uri}"),
        *("--partition-by", "none", *more),
    ]


def append(root: Root, count: int = 3) -> None:
    root.topic("orders").append(pa.table({"key": [b"k"] * count, "value": [b"v"] * count}))


def offsets(server: RestServer) -> list[int]:
    with RestCatalog("test", uri=server.uri) as catalog:
        return sorted(catalog.load_table("shop.orders").scan().to_arrow()["_offset"].to_pylist())


RULES: list[PropertyRule] = ["rejected", "not implemented", "forbidden", "dropped", "dropped by commits"]


@pytest.mark.parametrize("rule", RULES)
def test_catalog_without_properties(
    root: Root, server: RestServer, tmp_path: Path, rule: PropertyRule, capsys: pytest.CaptureFixture[str]
) -> None:
    """The error names the option, and with the option, each record is copied once."""
    server.property_rule = rule
    append(root)
    assert to_iceberg.main(words(tmp_path, server)) != DONE
    [line] = capsys.readouterr().err.splitlines()
    assert "use --watermark root" in line
    in_root = words(tmp_path, server, "--watermark", "root")
    for count in range(1, 4):
        assert to_iceberg.main(in_root) == DONE
        assert offsets(server) == list(range(3 * count))
        expire(server)
        append(root)
    capsys.readouterr()
    assert to_iceberg.main(words(tmp_path, server)) != DONE
    assert "the watermark of table shop.orders is stored in the root: use --watermark root" in capsys.readouterr().err


def expire(server: RestServer) -> None:
    """Another program commits, and expires all other snapshots."""
    with RestCatalog("test", uri=server.uri) as catalog:
        table = catalog.load_table("shop.orders")
        table.overwrite(table.scan().to_arrow())
        table.refresh()
        table.maintenance.expire_snapshots().older_than(datetime.now() + timedelta(days=1)).commit()
        assert len(table.refresh().snapshots()) == 1
        assert not any(name.startswith("sparklog.") for name in table.properties) or server.property_rule != "dropped"
