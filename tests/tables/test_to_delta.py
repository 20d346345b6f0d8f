"""Test the job `to-delta` without Spark, on a disk and in an object store."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

import sparklog
from sparklog.jobs import to_delta_without_spark as to_delta
from sparklog.jobs.common import DONE, FAILED
from sparklog.log.topic.root import Root
from sparklog.tables.delta import DeltaLakeTable
from sparklog.tables.functions import delta_tables
from tests.support.moto_server import KEY_ID, SECRET
from tests.tables.test_to_iceberg import USAGE, append, sparklog_without

JSON = ("--payload", "json", "--schema", "name STRING", "--key-columns", "id")


class KilledError(BaseException):
    """The process is killed, so no code of the job handles this."""


SERVER = """
from tests.support.moto_server import MotoServer
server = MotoServer()
print(server.endpoint, server.new_bucket().partition("?")[0], flush=True)
input()
"""


@dataclass(frozen=True)
class Bucket:
    url: str
    options: Mapping[str, str]

    @property
    def words(self) -> list[str]:
        return [word for pair in self.options.items() for word in ("--storage-option", "=".join(pair))]


@pytest.fixture(scope="module")
def s3() -> Iterator[Bucket]:
    """A bucket of a server in another process, because some calls of deltalake do not release the interpreter lock."""
    command = [sys.executable, "-c", SERVER]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        endpoint, url = server.stdout.readline().split()
        yield Bucket(
            url,
            {
                "AWS_ENDPOINT_URL": endpoint,
                "AWS_ALLOW_HTTP": "true",
                "AWS_ACCESS_KEY_ID": KEY_ID,
                "AWS_SECRET_ACCESS_KEY": SECRET,
                "AWS_REGION": "us-east-1",
            },
        )
        server.communicate("\n")


@pytest.fixture
def root(tmp_path: Path) -> Root:
    root = sparklog.open(tmp_path / "root", create=True)
    root.create_topic("orders", partitions=2)
    return root


def words(tmp_path: Path, *more: str) -> list[str]:
    """Return the arguments of a run. `more` may replace the topic and the table."""
    defaults = {"--root": str(tmp_path / "root"), "--topic": "orders", "--table": str(tmp_path / "table")}
    return [*(word for name, value in defaults.items() if name not in more for word in (name, value)), *more]


def rows(location: Path | str, options: Mapping[str, str] | None = None) -> list[dict[str, Any]]:
    return pa.table(DeltaTable(str(location), storage_options=dict(options or {})).to_pyarrow_table()).to_pylist()


def test_append_continues_after_the_last_run(root: Root, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = tmp_path / "table"
    append(root, {"a": "1", "b": "2"})
    assert to_delta.main(words(tmp_path)) == DONE
    assert capsys.readouterr().out == f"written to {table}: 2 records in 1 commit\n"
    append(root, {"c": "3"})
    assert to_delta.main(words(tmp_path, "--json")) == DONE
    report = json.loads(capsys.readouterr().out)
    assert (report["records"], report["commits"], report["merged_files"]) == (1, 1, 0)
    assert to_delta.main(words(tmp_path)) == DONE
    assert capsys.readouterr().out == f"written to {table}: no new records\n"
    assert sorted((row["key"], row["value"]) for row in rows(table)) == [(b"a", b"1"), (b"b", b"2"), (b"c", b"3")]


def test_upsert_of_json_with_a_quarantine(
    root: Root, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The table is given as a relative path."""
    monkeypatch.chdir(tmp_path)
    options = ("--table", "table/", "--mode", "upsert", *JSON, "--bad-records", "quarantine")
    append(root, {"1": '{"name":"anna"}', "2": '{"name":"bert"}', "3": "broken"})
    assert to_delta.main(words(tmp_path, *options)) == DONE
    assert "1 bad record" in capsys.readouterr().out
    append(root, {"1": None, "2": '{"name":"berta"}', "4": '{"name":"dora"}'})
    assert to_delta.main(words(tmp_path, *options)) == DONE
    assert "1 row deleted" in capsys.readouterr().out
    assert sorted((row["id"], row["name"]) for row in rows(tmp_path / "table")) == [("2", "berta"), ("4", "dora")]
    [bad] = rows(tmp_path / "table_quarantine")
    assert (bad["key"], bad["value"]) == (b"3", b"broken")


def test_bad_records_of_a_topic_that_was_created_again(root: Root, tmp_path: Path) -> None:
    options = ("--payload", "json", "--schema", "name STRING", "--bad-records", "quarantine", "--new-topic", "continue")
    for number in range(2):
        append(root, {"1": '{"name":"anna"}', "2": f"broken {number}"})
        assert to_delta.main(words(tmp_path, *options)) == DONE
        partitions = len(root.topic("orders").bounds())
        root.delete_topic("orders")
        root.create_topic("orders", partitions=partitions)
    assert [row["name"] for row in rows(tmp_path / "table")] == ["anna"] * 2
    assert sorted(row["value"] for row in rows(tmp_path / "table_quarantine")) == [b"broken 0", b"broken 1"]


def test_run_that_is_killed_after_it_created_the_table_is_continued(
    root: Root, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    create = DeltaLakeTable.create

    def create_and_die(*arguments: Any) -> None:
        create(*arguments)
        raise KilledError

    append(root, {"0": "x"})
    # A run that is killed earlier leaves an empty directory.
    (tmp_path / "table" / "_delta_log").mkdir(parents=True)
    monkeypatch.setattr(DeltaLakeTable, "create", create_and_die)
    with pytest.raises(KilledError):
        to_delta.main(words(tmp_path, "--starting-offsets", "latest"))
    monkeypatch.undo()
    assert rows(tmp_path / "table") == []
    append(root, {"1": "y"})
    # The table contains the starting offsets.
    assert to_delta.main(words(tmp_path)) == DONE
    assert [row["value"] for row in rows(tmp_path / "table")] == [b"y"]


@pytest.mark.parametrize("options", [(), ("--mode", "upsert", *JSON, "--partition-by", "none")])
def test_small_files_are_merged(root: Root, tmp_path: Path, options: tuple[str, ...]) -> None:
    table = tmp_path / "table"
    for number in range(12):
        append(root, {f"{number}": '{"name":"x"}'})
        assert to_delta.main(words(tmp_path, "--max-files-per-partition", "3", *options)) == DONE
        assert len(DeltaTable(str(table)).file_uris()) <= 3
    assert sorted(row["_offset"] for row in rows(table)) == sorted([*range(6), *range(6)])[-12:]
    merges = [entry for entry in DeltaTable(str(table)).history() if "sparklog.next-offsets" not in entry]
    assert merges
    removed = [
        json.loads(line)["remove"]
        for entry in sorted((table / "_delta_log").glob("*.json"))
        for line in entry.read_text().splitlines()
        if "remove" in line[:12]
    ]
    if not options:
        assert removed
        assert not any(action["dataChange"] for action in removed)


def test_table_that_cannot_be_merged_is_still_written(
    root: Root, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise sparklog.BadRequest("the table has deletion vectors")

    append(root, {"a": "1"})
    monkeypatch.setattr("sparklog.jobs.table_options.merge_small_files", fail)
    assert to_delta.main(words(tmp_path)) == DONE
    assert "the small files of table " in capsys.readouterr().err
    assert len(rows(tmp_path / "table")) == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--storage-option", "region"), "expected NAME=VALUE, found 'region'"),
        (("--metadata",), "the table always contains the columns of --metadata"),
        (("--payload", "json"), "--payload json requires --schema"),
        (("--partition-by", "hour(_timestamp)"), r"--partition-by must be day\(COLUMN\)"),
    ],
)
def test_wrong_options(
    tmp_path: Path, options: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        to_delta.main(words(tmp_path, *options))
    assert ended.value.code == USAGE
    error = capsys.readouterr().err
    assert len(error.splitlines()) == 1
    assert re.search(message, error), error


@pytest.mark.parametrize(
    ("location", "message"),
    [
        ("nothing://bucket/table", "nothing"),
        ("s3://no-such-bucket/table", "cannot .* table s3://no-such-bucket/table"),
        ("file", "file"),
    ],
)
def test_wrong_locations(
    root: Root, tmp_path: Path, s3: Bucket, location: str, message: str,
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    append(root, {"a": "1"})
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    assert to_delta.main(words(tmp_path, "--table", location, *s3.words)) == FAILED
    error = capsys.readouterr().err
    assert re.search(message, error), error
    assert len(error.splitlines()) == 1


def test_the_job_does_not_need_spark(root: Root, tmp_path: Path) -> None:
    append(root, {"a": "1"})
    result = sparklog_without("pyspark", "to-delta", *words(tmp_path))
    assert (result.returncode, result.stderr) == (0, "")
    assert [row["key"] for row in rows(tmp_path / "table")] == [b"a"]
    for checkpoint in (("--checkpoint", "c"), ("--checkpoint=c",)):
        result = sparklog_without("pyspark", "to-delta", *words(tmp_path), *checkpoint)
        assert result.returncode == 1
        assert "sparklog to-delta requires PySpark: " in result.stderr


def test_missing_package_is_named(root: Root, tmp_path: Path) -> None:
    append(root, {"a": "1"})
    result = sparklog_without("deltalake", "to-delta", *words(tmp_path))
    assert result.returncode == 1
    assert "Delta tables without Spark require deltalake: " in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_table_in_a_bucket(root: Root, tmp_path: Path, s3: Bucket) -> None:
    """Two copies run at the same time. Each record is copied once, because the store creates an object only once."""
    for mode, more in (("append", ()), ("upsert", ("--partition-by", "none"))):
        table = f"{s3.url}/{mode}"
        line = words(tmp_path, "--table", table, "--mode", mode, "--max-offsets-per-trigger", "6", *s3.words, *more)
        for first in (0, 10):
            append(root, {f"{number}": f"{mode} {first}" for number in range(first, first + 15)})
            with ThreadPoolExecutor(2) as threads:
                assert list(threads.map(to_delta.main, (line, line))) == [DONE, DONE]
        found = rows(table, s3.options)
        positions = [(row["_partition_id"], row["_offset"]) for row in found]
        assert len(positions) == len(set(positions))
        if mode == "append":
            assert len(found) == 30
        else:
            assert {row["key"]: row["value"] for row in found} == {
                b"%d" % number: b"upsert 0" if number < 10 else b"upsert 10" for number in range(25)
            }


def test_public_function(root: Root, tmp_path: Path) -> None:
    append(root, {"1": '{"name":"anna"}', "2": "broken"})
    options: Any = {"payload": "json", "schema": "name STRING", "key_columns": ["id"], "bad_records": "quarantine"}
    report = sparklog.to_delta(tmp_path / "root", "orders", str(tmp_path / "table"), **options)
    assert (report.records, report.rows, report.bad_records) == (2, 1, 1)
    append(root, {"3": "{}"})
    assert sparklog.to_delta(root, "orders", str(tmp_path / "table"), **options).records == 1
    found = sorted((row["id"], row["name"]) for row in rows(tmp_path / "table"))
    assert found == [("1", "anna"), ("3", None)]
    [bad] = rows(tmp_path / "table_quarantine")
    assert bad["reason"] == "the value is not a JSON object"
    with pytest.raises(sparklog.BadRequest, match="was written with mode append, not upsert"):
        sparklog.to_delta(root, "orders", str(tmp_path / "table"), **options, mode="upsert")
    with pytest.raises(sparklog.NotFound, match="topic 'clicks' does not exist"):
        sparklog.to_delta(root, "clicks", str(tmp_path / "clicks"))
    assert delta_tables("/a/b/", {}, root.env)[1].name == "/a/b_quarantine"
