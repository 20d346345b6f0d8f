"""Test the job `to-iceberg` with a SQLite catalog and a REST catalog."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import DataScan
from pyiceberg.utils.config import Config

import sparklog
from sparklog.jobs import to_iceberg
from sparklog.jobs.common import DONE, FAILED, INTERRUPTED
from sparklog.jobs.table_options import TableJob
from sparklog.log.topic.root import Root, RootView
from sparklog.maintenance.table_runs import read_table_runs
from sparklog.tables.copy import TableCopy
from sparklog.tables.iceberg import IcebergTable
from sparklog.testing.world import World
from tests.support.servers import schema_registry
from tests.tables.iceberg_catalogs import open_catalog, sqlite_properties

USAGE = 2
NOTICE = "sparklog to-iceberg: stopping after the current commit; press Ctrl-C again to stop at once\n"


@pytest.fixture
def root(tmp_path: Path) -> Root:
    root = sparklog.open(tmp_path / "root", create=True)
    root.create_topic("orders", partitions=2)
    return root


@pytest.fixture
def catalog(tmp_path: Path) -> Iterator[SqlCatalog]:
    with SqlCatalog("test", **sqlite_properties(tmp_path)) as catalog:
        yield catalog


def append(root: Root, values: Mapping[str, str | None]) -> None:
    columns = {"key": pa.array(values.keys()).cast(pa.binary()), "value": pa.array(values.values()).cast(pa.binary())}
    root.topic("orders").append(pa.table(columns))


def words(tmp_path: Path, *more: str, properties: Mapping[str, str] | None = None) -> list[str]:
    """Return the arguments of a run. `more` may replace the topic and the table."""
    pairs = (properties or sqlite_properties(tmp_path)).items()
    catalog = [word for name, value in pairs for word in ("--catalog-property", f"{name}={value}")]
    defaults = {"--root": str(tmp_path / "root"), "--topic": "orders", "--table": "shop.orders", "--catalog": "test"}
    given = [word for name, value in defaults.items() if name not in more for word in (name, value)]
    return [*given, *catalog, *more]


def rows(catalog: Catalog, table: str = "orders") -> list[dict[str, Any]]:
    return catalog.load_table(("shop", table)).scan().to_arrow().to_pylist()


def test_append_continues_after_the_last_run(
    root: Root, catalog: SqlCatalog, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    append(root, {"a": "1", "b": "2"})
    assert to_iceberg.main(words(tmp_path)) == DONE
    assert capsys.readouterr().out == "written to shop.orders: 2 records in 1 commit\n"
    append(root, {"c": "3"})
    assert to_iceberg.main(words(tmp_path, "--json")) == DONE
    report = json.loads(capsys.readouterr().out)
    assert (report["records"], report["commits"], sum(report["next_offsets"].values())) == (1, 1, 3)
    assert to_iceberg.main(words(tmp_path)) == DONE
    assert capsys.readouterr().out == "written to shop.orders: no new records\n"
    assert sorted((row["key"], row["value"]) for row in rows(catalog)) == [(b"a", b"1"), (b"b", b"2"), (b"c", b"3")]


def test_upsert_of_json_with_a_quarantine(
    root: Root, catalog: SqlCatalog, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = (
        *("--mode", "upsert", "--payload", "json", "--schema", "name STRING", "--key-columns", "id"),
        *("--bad-records", "quarantine", "--partition-by", "bucket(4, id)"),
    )
    append(root, {"1": '{"name":"anna"}', "2": '{"name":"bert"}', "3": "broken"})
    assert to_iceberg.main(words(tmp_path, *options)) == DONE
    assert "1 bad record" in capsys.readouterr().out
    append(root, {"1": None, "2": '{"name":"berta"}', "4": '{"name":"dora"}'})
    assert to_iceberg.main(words(tmp_path, *options)) == DONE
    assert "1 row deleted" in capsys.readouterr().out
    assert sorted((row["id"], row["name"]) for row in rows(catalog)) == [("2", "berta"), ("4", "dora")]
    [bad] = rows(catalog, "orders_quarantine")
    assert (bad["key"], bad["value"]) == (b"3", b"broken")
    assert str(catalog.load_table(("shop", "orders")).spec().fields[0].transform) == "bucket[4]"


@pytest.mark.parametrize(
    ("payload", "schema_type", "old", "new", "prefix", "values"),
    [
        (
            *("avro", "AVRO"),
            '{"type": "record", "name": "A", "fields": [{"name": "id", "type": "long"}]}',
            (
                '{"type": "record", "name": "A", "fields": [{"name": "id", "type": "long"},'
                ' {"name": "item", "type": ["null", "string"], "default": null}]}'
            ),
            b"",
            (b"\2", b"\4\2\2x"),
        ),
        (
            *("json-schema", "JSON"),
            '{"type": "object", "properties": {"id": {"type": "integer"}}}',
            '{"type": "object", "properties": {"id": {"type": "integer"}, "item": {"type": "string"}}}',
            b"",
            (b'{"id": 1}', b'{"id": 2, "item": "x"}'),
        ),
        (
            *("protobuf", "PROTOBUF"),
            'syntax = "proto3"; message A { int64 id = 1; }',
            'syntax = "proto3"; message A { int64 id = 1; optional string item = 2; }',
            b"\0",
            (b"\x08\1", b"\x08\2\x12\1x"),
        ),
    ],
)
def test_values_of_a_schema_registry(
    root: Root, catalog: SqlCatalog, tmp_path: Path, payload: str, schema_type: str, old: str, new: str, prefix: bytes,
    values: tuple[bytes, bytes],
) -> None:  # fmt: skip
    """The table has the columns of the latest schema of the subject, and grows with it."""
    for module in {"avro": ["fastavro"], "protobuf": ["grpc_tools"]}.get(payload, []):
        pytest.importorskip(module)
    topic = root.topic("orders")
    with schema_registry.running() as server:
        options = ("--payload", payload, "--schema-registry", server.url, "--bad-records", "skip", "--grow-schema")
        for schema, value in ((old, values[0]), (new, values[1])):
            number = server.register("orders-value", schema, schema_type)
            topic.append(pa.table({"value": [b"\0" + number.to_bytes(4, "big") + prefix + value, b"broken"]}))
            assert to_iceberg.main(words(tmp_path, *options)) == DONE
    found = sorted((row["id"], row["item"]) for row in rows(catalog))
    assert found == [(1, None), (2, "x")]


def test_subject_of_another_naming_strategy(root: Root, catalog: SqlCatalog, tmp_path: Path) -> None:
    with schema_registry.running() as server:
        number = server.register("shop.Order", '{"type": "object", "properties": {"id": {"type": "integer"}}}', "JSON")
        root.topic("orders").append(pa.table({"value": [b"\0" + number.to_bytes(4, "big") + b'{"id": 1}']}))
        options = ("--payload", "json-schema", "--schema-registry", server.url, "--value-subject", "shop.Order")
        assert to_iceberg.main(words(tmp_path, *options)) == DONE
    assert [row["id"] for row in rows(catalog)] == [1]


def test_report_contains_the_columns_and_files_of_a_run(
    root: Root, catalog: SqlCatalog, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ("--mode", "upsert", "--payload", "json", "--key-columns", "id", "--grow-schema", "--schema")
    append(root, {"1": '{"n":1}'})
    assert to_iceberg.main(words(tmp_path, *options, "n INT", "--json")) == DONE
    report = json.loads(capsys.readouterr().out)
    [file] = catalog.load_table(("shop", "orders")).inspect.files().to_pylist()
    assert (report["files"], report["file_bytes"]) == (1, file["file_size_in_bytes"])
    assert to_iceberg.main(words(tmp_path, *options, "n BIGINT, name STRING")) == DONE
    assert capsys.readouterr().out == "written to shop.orders: no new records, 2 columns added or widened\n"
    append(root, {"2": None})
    assert to_iceberg.main(words(tmp_path, *options, "n BIGINT, name STRING")) == DONE
    assert capsys.readouterr().out == "written to shop.orders: 1 record in 1 commit\n"


def test_topic_that_was_created_again_replaces_the_rows(
    root: Root, catalog: SqlCatalog, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    append(root, {"a": "1", "b": "2"})
    assert to_iceberg.main(words(tmp_path, "--mode", "upsert")) == DONE
    root.delete_topic("orders")
    root.create_topic("orders")
    append(root, {"b": "3", "c": "4"})
    assert to_iceberg.main(words(tmp_path, "--mode", "upsert")) == FAILED
    assert "use --new-topic continue, or replace to delete the existing rows first" in capsys.readouterr().err
    for _ in range(2):
        assert to_iceberg.main(words(tmp_path, "--mode", "upsert", "--new-topic", "replace")) == DONE
        assert sorted((row["key"], row["value"]) for row in rows(catalog)) == [(b"b", b"3"), (b"c", b"4")]


def test_starting_offsets_of_a_new_table(root: Root, catalog: SqlCatalog, tmp_path: Path) -> None:
    topic = root.topic("orders")
    for number in range(4):
        topic.append(pa.table({"value": [b"%d" % number], "partition": pa.array([0], pa.int32())}))
    assert to_iceberg.main(words(tmp_path, "--starting-offsets", '{"orders":{"0":3,"1":-1}}')) == DONE
    assert [row["_offset"] for row in rows(catalog)] == [3]


@pytest.mark.parametrize(
    ("partition_by", "error"),
    [
        ("day(at)", "has no column 'at' to partition by: use one of key, value"),
        ("day(key)", r"day\(key\) requires a date or a timestamp, but the type of the column is binary"),
        ("bucket(4, _headers)", r"the column of bucket\(4, _headers\) must not have the type"),
    ],
)
def test_partitioning_that_the_columns_do_not_support(
    root: Root, catalog: SqlCatalog, tmp_path: Path, partition_by: str, error: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The run fails before it creates the table, so the table can be created with another partitioning."""
    append(root, {"a": "1"})
    assert to_iceberg.main(words(tmp_path, "--partition-by", partition_by)) == FAILED
    printed = capsys.readouterr().err
    assert len(printed.splitlines()) == 1
    assert re.search(error, printed), printed
    assert not catalog.table_exists(("shop", "orders"))


def test_small_files_are_merged_and_snapshots_expire(root: Root, catalog: SqlCatalog, tmp_path: Path) -> None:
    options = ("--max-files-per-partition", "3", "--snapshot-age", "0s")
    for number in range(12):
        append(root, {f"{number}": "x"})
        assert to_iceberg.main(words(tmp_path, *options)) == DONE
        table = catalog.load_table(("shop", "orders"))
        assert len(list(table.scan().plan_files())) <= 3
    assert len(table.snapshots()) == 1
    assert sorted(row["key"] for row in rows(catalog)) == sorted(b"%d" % number for number in range(12))


def test_follow_copies_new_records_until_it_is_interrupted(
    catalog: SqlCatalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    root = World().root()
    root.create_topic("orders", partitions=2)
    append(root, {"0": "x"})
    pauses: list[float] = []

    def sleep(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 5:
            raise KeyboardInterrupt
        if len(pauses) < 4:
            append(root, {f"{len(pauses)}": "x"})

    view = RootView(root)
    monkeypatch.setattr(view, "env", replace(view.env, sleep=sleep))
    monkeypatch.setattr(TableJob, "open", lambda _: view)
    assert to_iceberg.main(words(tmp_path, "--follow", "--interval", "20 seconds")) == INTERRUPTED
    assert capsys.readouterr().err == (
        "sparklog to-iceberg: interrupted: 4 records in 4 commits; the next run continues after the last commit\n"
    )
    assert sorted(row["key"] for row in rows(catalog)) == [b"0", b"1", b"2", b"3"]
    assert all(0 < pause <= 20 for pause in pauses)


def test_step_without_a_commit_is_repeated_before_the_interval_ends(
    catalog: SqlCatalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = World().root()
    root.create_topic("orders")
    append(root, {"0": "x"})
    pauses: list[float] = []
    copy_interval = TableCopy.copy_interval

    def copy_at_second_call(copy: TableCopy) -> bool:
        return not pauses or copy_interval(copy)

    def sleep(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 2:
            raise KeyboardInterrupt

    view = RootView(root)
    monkeypatch.setattr(view, "env", replace(view.env, sleep=sleep))
    monkeypatch.setattr(TableJob, "open", lambda _: view)
    monkeypatch.setattr(TableCopy, "copy_interval", copy_at_second_call)
    assert to_iceberg.main(words(tmp_path, "--follow", "--interval", "1h")) == INTERRUPTED
    assert 0 < pauses[0] <= view.poll_interval_ms / 1000 < pauses[1]
    assert [row["key"] for row in rows(catalog)] == [b"0"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("options", [("--follow",), ("--max-offsets-per-trigger", "1")])
def test_signal_during_a_commit_ends_the_run_after_the_commit(
    root: Root, catalog: SqlCatalog, tmp_path: Path, number: signal.Signals, options: tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    append(root, {"0": "x", "1": "x"})
    commit = IcebergTable.append

    def commit_and_stop(*arguments: Any) -> None:
        os.kill(os.getpid(), number)
        commit(*arguments)

    handlers = [signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGINT)]
    monkeypatch.setattr(IcebergTable, "append", commit_and_stop)
    assert to_iceberg.main(words(tmp_path, *options)) == INTERRUPTED
    copied = len(rows(catalog))
    error = capsys.readouterr().err
    after = "1 commit; the next run continues after the last commit"
    assert re.fullmatch(rf"{NOTICE}sparklog to-iceberg: interrupted: {copied} records? in {after}\n", error)
    assert [signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGINT)] == handlers


def test_second_signal_interrupts_the_commit(
    root: Root, catalog: SqlCatalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    append(root, {"0": "x"})

    def stop(*_: Any) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            os.kill(os.getpid(), number)

    monkeypatch.setattr(IcebergTable, "append", stop)
    assert to_iceberg.main(words(tmp_path, "--follow")) == INTERRUPTED
    assert rows(catalog) == []


def test_signal_ends_a_process_that_waits_for_records(root: Root, catalog: SqlCatalog, tmp_path: Path) -> None:
    append(root, {"0": "x"})
    command = [sys.executable, "-m", "sparklog", "to-iceberg", *words(tmp_path, "--follow", "--interval", "1h")]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            while not catalog.table_exists(("shop", "orders")) or not rows(catalog):
                time.sleep(0.05)
            process.terminate()
            _, error = process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode == INTERRUPTED
    # The signal may arrive before the process waits.
    assert error.removeprefix(NOTICE) == (
        "sparklog to-iceberg: interrupted: 1 record in 1 commit; the next run continues after the last commit\n"
    )


def test_failed_maintenance_does_not_fail_the_job(
    root: Root, catalog: SqlCatalog, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The records are copied, and the next run maintains the table."""
    with open_catalog("rest", tmp_path) as rest:
        assert rest.server is not None
        append(root, {"0": "x"})
        assert to_iceberg.main(words(tmp_path, properties=rest.properties)) == DONE
        append(root, {"1": "x"})

        def fail_second_commit() -> None:
            assert rest.server is not None
            rest.server.faults.append("error 500")

        rest.server.after_commit = fail_second_commit
        options = ("--max-files-per-partition", "1", "--snapshot-age", "never")
        assert to_iceberg.main(words(tmp_path, *options, properties=rest.properties)) == DONE
    assert "maintenance of table shop.orders failed: the result of a commit" in capsys.readouterr().err
    assert sorted(row["key"] for row in rows(catalog)) == [b"0", b"1"]


def test_table_that_cannot_be_merged_is_still_written(
    root: Root,
    catalog: SqlCatalog,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fail(*_: object) -> None:
        raise ValueError("PyIceberg does not yet support equality deletes")

    options = ("--snapshot-age", "0s")
    append(root, {"0": "x"})
    assert to_iceberg.main(words(tmp_path, *options)) == DONE
    append(root, {"1": "x"})
    with monkeypatch.context() as patch:
        patch.setattr(DataScan, "plan_files", fail)
        assert to_iceberg.main(words(tmp_path, *options)) == DONE
    error = "the small files of table shop.orders are not merged: cannot read the manifests of table shop.orders: "
    assert f"{error}PyIceberg does not yet support equality deletes" in capsys.readouterr().err
    assert sorted(row["key"] for row in rows(catalog)) == [b"0", b"1"]
    assert len(catalog.load_table(("shop", "orders")).snapshots()) == 1


def test_records_are_copied_once_if_responses_are_lost(root: Root, tmp_path: Path) -> None:
    with open_catalog("rest", tmp_path) as rest:
        assert rest.server is not None
        for number, fault in enumerate(("lost response", "sent twice", "lost response")):
            append(root, {f"{number}": "x"})
            if number:
                rest.server.faults.append(fault)
            assert to_iceberg.main(words(tmp_path, properties=rest.properties)) == DONE
        assert sorted(row["key"] for row in rows(rest.catalog)) == [b"0", b"1", b"2"]
        assert rest.server.commits == 4


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--table", "orders"), "--table must be NAMESPACE.TABLE, found 'orders'"),
        (("--catalog-property", "uri"), "expected NAME=VALUE, found 'uri'"),
        (("--partition-by", "hour(_timestamp)"), r"--partition-by must be day\(COLUMN\), bucket\(N, COLUMN\) or none"),
        (("--starting-offsets", "group"), "--starting-offsets must be earliest, latest or JSON .*, found 'group'"),
        (("--starting-offsets", '{"payments":{"0":1}}'), "with the topic of --topic, found"),
        (("--resume-offsets", '{"0":-1}'), '--resume-offsets must be JSON such as {"0":23}, found'),
        (("--resume-offsets", '{"0":5}'), "--resume-offsets requires --watermark root"),
        (("--value-subject", "shop.Order"), "--value-subject requires --schema-registry or --registry-cache"),
        (("--quarantine-resume-offsets", '{"0":5}'), "--quarantine-resume-offsets requires --watermark root"),
        (("--snapshot-age", "5"), "expected a period such as 90s, 45m, 3h or 2d, found '5'"),
        (("--delete-unreferenced", "1h"), "at least 24 hours old"),
        (("--payload", "json"), "--payload json requires --schema"),
        (("--interval", "5s"), "--interval requires --follow"),
        (("--payload", "protobuf"), "--payload protobuf requires --schema: the file of the Protobuf schema"),
        (("--schema-registry", "http://h"), "a schema registry requires --payload with one of avro, json-schema"),
        (
            ("--payload", "avro", "--schema", "x", "--schema-registry", "http://h"),
            "omit --schema, because the schema registry contains the schemas",
        ),
    ],
)
def test_wrong_options(
    tmp_path: Path, options: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        to_iceberg.main(words(tmp_path, *options))
    assert ended.value.code == USAGE
    error = capsys.readouterr().err
    assert len(error.splitlines()) == 1
    assert re.search(message, error), error


@pytest.mark.parametrize(
    ("properties", "message"),
    [
        ({"type": "rest", "uri": "http://127.0.0.1:9"}, "cannot open the Iceberg catalog: .*refused.*UNAVAILABLE"),
        (
            {"type": "sql"},
            "catalog: the property uri is missing; configure it in .pyiceberg.yaml or with --catalog-property .*BAD_",
        ),
        ({"type": "nothing"}, "cannot open the Iceberg catalog: 'nothing' is not a valid CatalogType; configure it"),
        ({"type": "sql", "uri": "nothing://x"}, "cannot open the Iceberg catalog: .*nothing; configure it"),
        (
            {"type": "sql", "uri": "sqlite:////no/such/directory/catalog.db"},
            r"cannot open the Iceberg catalog: unable to open database file; configure it in .*UNAVAILABLE",
        ),
        (
            {"type": "sql", "uri": "sqlite://"},
            (
                r"the catalog requires the property warehouse, .*; set it in .pyiceberg"
                r".yaml or with --catalog-property \[SPARKLOG_BAD_REQUEST\]"
            ),
        ),
        *(
            (
                {"type": "sql", "uri": "sqlite://", "warehouse": warehouse},
                f"warehouse of the catalog must be an absolute path or a URL .*, found '{warehouse}'",
            )
            for warehouse in ("warehouse", "./data/warehouse", "file://warehouse/tables")
        ),
        (
            {"type": "sql", "uri": "sqlite://", "warehouse": "nothing://x"},
            r"cannot create table shop.orders: .*nothing.* \[SPARKLOG_BAD_REQUEST\]",
        ),
    ],
)
def test_wrong_catalogs(
    root: Root, tmp_path: Path, properties: dict[str, str], message: str, capsys: pytest.CaptureFixture[str],
    recwarn: pytest.WarningsRecorder,
) -> None:  # fmt: skip
    assert root
    assert to_iceberg.main(words(tmp_path, properties=properties)) == FAILED
    error = capsys.readouterr().err
    assert re.search(message, error), error
    assert len(error.splitlines()) == 1
    assert not list(recwarn)


def test_metadata_that_another_run_has_deleted_is_no_warning(
    root: Root, catalog: SqlCatalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder
) -> None:
    def delete(*_: Any) -> None:
        raise FileNotFoundError("metadata/1.json")

    append(root, {"0": "x"})
    monkeypatch.setattr(SqlCatalog, "_delete_old_metadata", delete)
    assert to_iceberg.main(words(tmp_path)) == DONE
    assert len(rows(catalog)) == 1
    assert not list(recwarn)


@pytest.mark.parametrize(
    ("catalog", "message"),
    [
        (
            (),
            "catalog: none is specified; configure it in .pyiceberg.yaml or with --catalog-property, or use --catalog",
        ),
        (
            ("--catalog", "prot"),
            "catalog 'prot' is not configured; did you mean 'prod'?; configure it in .pyiceberg.yaml",
        ),
        (("--catalog", "prod"), "cannot open the Iceberg catalog: the property uri is missing; configure it in"),
    ],
)
def test_unknown_catalogs(
    root: Root,
    tmp_path: Path,
    catalog: tuple[str, ...],
    message: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert root
    (tmp_path / ".pyiceberg.yaml").write_text("catalog:\n  prod:\n    type: sql\n")
    monkeypatch.setenv("PYICEBERG_HOME", str(tmp_path))
    monkeypatch.setattr("pyiceberg.catalog._ENV_CONFIG", Config())
    assert to_iceberg.main([*words(tmp_path)[:6], *catalog]) == FAILED
    error = capsys.readouterr().err
    assert message in error
    assert "--uri" not in error
    assert len(error.splitlines()) == 1


def test_runs_are_recorded_in_the_root(root: Root, catalog: SqlCatalog, tmp_path: Path) -> None:
    append(root, {"a": "1", "b": "broken"})
    json_options = ("--payload", "json", "--schema", "id INT")
    assert to_iceberg.main(words(tmp_path, *json_options)) == FAILED
    assert to_iceberg.main(words(tmp_path)) == DONE
    sparklog.to_iceberg(root, "orders", "shop.orders", catalog=catalog)
    failures: list[sparklog.SparklogError] = []
    runs = read_table_runs(sparklog.open(tmp_path / "root"), ["orders"], failures)["orders"].runs
    assert [(run.job, run.table, run.copied.records, run.copied.commits) for run in runs] == [
        ("to-iceberg", "shop.orders", 0, 0),
        ("to-iceberg", "shop.orders", 2, 1),
        ("to-iceberg", "shop.orders", 0, 0),
    ]
    assert "the value is not a JSON object" in runs[0].failure


def test_run_is_running_during_a_long_pause(
    catalog: SqlCatalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World()
    root = world.root()
    root.create_topic("orders")
    append(root, {"0": "x"})
    states = []

    def sleep(seconds: float) -> None:
        world.now_ms += round(seconds * 1000)
        run = read_table_runs(root, ["orders"], [])["orders"].runs[-1]
        states.append(run.state_at(world.now_ms))
        if len(states) == 8:
            raise KeyboardInterrupt

    view = RootView(root)
    monkeypatch.setattr(view, "env", replace(view.env, sleep=sleep))
    monkeypatch.setattr(TableJob, "open", lambda _: view)
    assert to_iceberg.main(words(tmp_path, "--follow", "--interval", "1h")) == INTERRUPTED
    assert states == ["running"] * 8
    run = read_table_runs(root, ["orders"], [])["orders"].runs[-1]
    assert (run.state_at(world.now_ms), run.copied.records, run.took_ms >= 60 * 60_000) == ("interrupted", 1, True)


def test_read_only_root_does_not_fail_the_copy(
    root: Root, catalog: SqlCatalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    append(root, {"a": "1"})
    monkeypatch.setattr(type(root.store), "writable", False)
    assert to_iceberg.main(words(tmp_path)) == DONE
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "to-iceberg: failed to record this run: the root is read-only" in error
    assert len(rows(catalog)) == 1


def test_missing_topic_is_reported_before_the_catalog_is_opened(
    root: Root, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert root
    assert to_iceberg.main(words(tmp_path, "--topic", "nothing")) == FAILED
    assert "topic 'nothing' does not exist" in capsys.readouterr().err
    assert not (tmp_path / "catalog.db").exists()


def sparklog_without(package: str, *line: str) -> subprocess.CompletedProcess[str]:
    """Run a command in a process that cannot import a package."""
    program = f"import sys; sys.modules[{package!r}] = None; from sparklog.cli import main; main()"
    command = [sys.executable, "-c", program, *line]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_the_job_does_not_need_spark(root: Root, catalog: SqlCatalog, tmp_path: Path) -> None:
    append(root, {"a": "1"})
    result = sparklog_without("pyspark", "to-iceberg", *words(tmp_path))
    assert (result.returncode, result.stderr) == (0, "")
    assert [row["key"] for row in rows(catalog)] == [b"a"]


def test_missing_package_is_named(tmp_path: Path) -> None:
    result = sparklog_without("pyiceberg", "to-iceberg", *words(tmp_path))
    assert result.returncode == 1
    assert "sparklog to-iceberg requires pyiceberg: " in result.stderr
    assert len(result.stderr.splitlines()) == 1
