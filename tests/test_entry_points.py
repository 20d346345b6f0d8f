"""Test that each entry point accepts a bucket URL instead of a path, and rejects an unsupported
location in one line.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path

import pyarrow as pa
import pytest

import sparklog
from sparklog.doctor.examine import examine_root
from sparklog.errors import SparklogError
from sparklog.storage import system_errors
from sparklog.storage.local import LocalStore
from sparklog.storage.locations import join
from tests.support.command_line import invoke

KAFKA = Path(__file__).parents[1] / "examples" / "data" / "kafka-log-dir"
SECRET = "wJalrXUtnFEMI"
RECORDS = pa.table({"key": ["a", "b", "a"], "value": ["1", "2", "3"]})

EntryPoint = Callable[[str, str], object]
"""Function of the location to test and the location of an existing root."""


def words(line: str, location: str, root: str) -> list[str]:
    """Return the words of a command, in which `@` is the location to test and `ROOT` is the root."""
    filled = line.replace("ROOT", root).replace("KAFKA", str(KAFKA))
    return [location if word == "@" else word for word in filled.split()]


def command(line: str) -> EntryPoint:
    """Return an entry point that runs a command, and raises the error that the command prints."""

    def run(location: str, root: str) -> None:
        result = invoke(words(line, location, root))
        if result.exit_code:
            assert result.exit_code == 1, result.output
            raise ValueError(result.stderr.rstrip("\n") or result.stdout)

    return run


def job(name: str, line: str) -> EntryPoint:
    """Return an entry point that runs a job in this process. Its error is the output on stderr."""

    def run(location: str, root: str) -> None:
        from importlib import import_module

        from sparklog import output

        lines: list[str] = []
        module, said = import_module(f"sparklog.jobs.{name}"), pytest.MonkeyPatch()
        with said.context() as patch:
            patch.setattr("sparklog.jobs.common.say", lines.append)
            patch.setattr(output, "say", lines.append)
            code = module.main(words(line, location, root))
        if code:
            raise ValueError("\n".join(lines))

    return run


def source(way: str, **options: str) -> EntryPoint:
    """Return an entry point that calls the data source like Spark's planner."""

    def run(location: str, root: str) -> None:
        from pyspark.sql.types import BinaryType, StructType

        from sparklog.datasource.data_source import SparklogDataSource

        columns = StructType().add("key", BinaryType()).add("value", BinaryType())
        made = SparklogDataSource({"path": location, **options})
        if way == "schema":
            made.schema()
        elif way == "streamReader":
            made.streamReader(columns).initialOffset()
        else:
            getattr(made, way)(columns, False)

    return run


READERS: Mapping[str, EntryPoint] = {
    "open": lambda at, root: sparklog.open(at),
    "open_view": lambda at, root: sparklog.open_view(at),
    "table": lambda at, root: sparklog.table(at, "t"),
    "compact": lambda at, root: sparklog.compact(at),
    "retain": lambda at, root: sparklog.retain(at),
    "verify": lambda at, root: sparklog.verify(at),
    "repair": lambda at, root: sparklog.repair(at),
    "backup of": lambda at, root: sparklog.backup(at, f"{root}-backup"),
    "restore of": lambda at, root: sparklog.restore(at, f"{root}-again"),
    "clone": lambda at, root: sparklog.clone(at, "t", "u"),
    "repartition": lambda at, root: sparklog.repartition(at, "t", "v", partitions=2),
    "export_kafka of": lambda at, root: sparklog.export_kafka(at, ["t"], f"{root}-kafka"),
    "load": source("schema", subscribe="t"),
    "load a stream": source("streamReader", subscribe="t"),
    **{
        line: command(line)
        for line in (
            "topics list --root @",
            "consume t --root @",
            "get t --key a --root @",
            "table t --root @",
            "history t --root @",
            "log-dirs --root @",
            "groups list --root @",
            "transactions list --root @",
            "report --json --root @",
            "metrics --root @",
            "verify --root @",
            "repair @ --execute",
            "backup --root @ --to ROOT-backup",
            "restore --from @ --to ROOT-again",
            "clone t u --root @",
            "repartition t --to v --partitions 2 --root @",
            "export t --root @ --to ROOT-kafka",
            "configs describe --root @",
            "delete-records t --partition 0 --offset 0 --root @",
        )
    },
    "job compact": job("compact", "--root @"),
    "job retain": job("retain", "--root @"),
    "job verify": job("verify", "--root @"),
}
WRITERS: Mapping[str, EntryPoint] = {
    "open, create": lambda at, root: sparklog.open(at, create=True),
    "backup to": lambda at, root: sparklog.backup(root, at),
    "restore to": lambda at, root: sparklog.restore(root, at),
    "import_kafka into": lambda at, root: sparklog.import_kafka(at, KAFKA),
    "save": source("writer", topic="t"),
    "start": source("streamWriter", topic="t"),
    "topics create": command("topics create new --root @"),
    "produce": command("produce t --file ROOT/_root.json --root @"),
    "backup --to": command("backup --root ROOT --to @"),
    "restore --to": command("restore ROOT --to @"),
    "import": command("import KAFKA --root @"),
}
OTHERS: Mapping[str, EntryPoint] = {
    "import_kafka of": lambda at, root: sparklog.import_kafka(root, at),
    "import of": command("import @ --root ROOT"),
    "dump-log": command("dump-log @"),
    "export_kafka to": lambda at, root: sparklog.export_kafka(root, ["t"], at),
    "export --to": command("export t --root ROOT --to @"),
}
REFUSED = {
    "hdfs:/x": "expected two after hdfs:, as in hdfs://namenode:8020/log",
    "HDFS:/nn/x": "expected two after hdfs:",
    "dbfs:/mnt/log": "use the URL of the underlying bucket, such as s3://bucket/log",
    "s3:/b/x": "expected two after s3:, as in s3://bucket/log",
    "s3a:x": "expected two after s3a:, as in s3://bucket/log",
    "s4://b/x": "expected a path, or a URL such as s3://bucket/log",
    "https://b.s3.amazonaws.com/x": "use s3://bucket/log?endpoint=<server>",
    "/dbfs/mnt/log": "/dbfs does not exist here: use the URL of the underlying bucket, such as s3://bucket/log",
    "/Volumes/main/log": "/Volumes does not exist here: use the URL of the underlying bucket",
    "file:/dbfs/mnt/log": "/dbfs does not exist here: use the URL of the underlying bucket",
    f"s3://AKIA:{SECRET}@bucket/log": "must not contain a user or keys",
    f"s3://bucket/log?secret_access_key={SECRET}": "must not contain the secret secret_access_key",
}


@pytest.fixture
def root(tmp_path: Path) -> str:
    """Create a root with a topic on a disk."""
    made = sparklog.open(tmp_path / "log", create=True)
    made.create_topic("t").append(RECORDS)
    return made.location


def answer(entry_point: EntryPoint, location: str, root: str) -> str:
    """Return the one-line error that an entry point raises."""
    with pytest.raises(Exception) as caught:
        entry_point(location, root)
    text = str(caught.value)
    assert isinstance(caught.value, (SparklogError, ValueError)) or "SPARKLOG_" in type(caught.value).__name__, text
    assert "\n" not in text
    return text


@pytest.mark.parametrize("location", REFUSED)
def test_an_unsupported_location_is_rejected_in_one_line_and_creates_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, root: str, location: str
) -> None:
    if any(location.startswith(top) and os.path.isdir(top) for top in ("/dbfs", "/Volumes")):
        pytest.skip(f"{location}: this machine has such a folder")
    monkeypatch.chdir(tmp_path)
    for name, entry_point in {**READERS, **WRITERS, **OTHERS}.items():
        if name.startswith("export") and "to" in name and "//" in location:
            continue  # An export requires a disk, and this error is raised first.
        text = answer(entry_point, location, root)
        assert REFUSED[location] in text, name
        assert SECRET not in text, name
    assert sorted(os.listdir(tmp_path)) == ["log"]


def records(location: str) -> list[tuple[str, str]]:
    table = sparklog.open(location).topic("t").scan().to_table()
    return list(zip(table["key"].to_pylist(), table["value"].to_pylist(), strict=True))


def test_each_function_and_job_accepts_a_bucket(bucket: str, root: str, tmp_path: Path) -> None:
    """`tests/cli/test_every_command.py` tests the commands."""
    url = join(bucket, "log")
    sparklog.open(url, create=True).create_topic("t").append(RECORDS)
    for number, (name, entry_point) in enumerate(READERS.items()):
        if "--" not in name and name != "job verify":  # These entry points start Spark.
            entry_point(url, str(tmp_path / f"from-bucket-{number}"))
    made = ("backup to", "restore to", "import_kafka into", "open, create", "save", "start")
    for number, name in enumerate(made):
        WRITERS[name](join(bucket, f"new/{number}"), root)
    assert sparklog.open(url).topics() == ["t", "u", "v"]
    assert records(join(bucket, "new/1")) == records(url) == records(root)
    for number, name in enumerate(made):
        if name != "backup to":
            assert sparklog.verify(join(bucket, f"new/{number}")).sound, name


def test_copies_between_a_disk_and_a_bucket(bucket: str, root: str, tmp_path: Path) -> None:
    """Back up a root on a disk to a bucket, restore the backup in the bucket, and restore that root on a disk."""
    backups, again = join(bucket, "backups"), join(bucket, "restored/log")
    assert sparklog.backup(root, backups).number == 1
    assert sparklog.backup(root, backups).number == 2
    sparklog.restore(backups, again)
    sparklog.clone(again, "t", "u")
    with pytest.raises(sparklog.BadRequest, match="is inside the root"):
        sparklog.backup(root, join(again, "backups"))
    with pytest.raises(sparklog.BadRequest, match="is inside the backup repository"):
        sparklog.restore(root, join(backups, "log"))
    sparklog.backup(again, tmp_path / "backups")
    sparklog.restore(tmp_path / "backups", tmp_path / "again")
    assert records(str(tmp_path / "again")) == records(again) == records(root)
    for place in (again, tmp_path / "again"):
        assert sparklog.verify(place).sound


def test_topic_directory_in_a_bucket(bucket: str) -> None:
    opened = sparklog.open(join(bucket, "log"), create=True)
    opened.create_topic("t").append(RECORDS)
    view = sparklog.open_view(join(bucket, "log/t"))
    assert view.topics() == ["t"]
    assert view.location == opened.location == join(bucket, "log")
    with pytest.raises(sparklog.NotFound, match=r"There is no log at s3://.*/log/no/such"):
        sparklog.open_view(join(bucket, "log/no/such"))
    with pytest.raises(sparklog.BadRequest, match=r"did you mean the root s3://.*/log"):
        sparklog.open(bucket, create=True)
    with pytest.raises(sparklog.BadRequest, match=r"it is inside the root s3://.*/log\?endpoint"):
        sparklog.open(join(bucket, "log/t"), create=True)


def test_a_missing_topic_is_reported_with_the_url_of_its_root(bucket: str) -> None:
    url = join(bucket, "log")
    opened = sparklog.open(url, create=True)
    with pytest.raises(sparklog.NotFound, match=rf"topic 'no' does not exist in {re.escape(url)}; .*ensure_topic"):
        opened.topic("no")


def test_doctor_does_not_check_disks_for_a_bucket(bucket: str) -> None:
    found = {each.check: each for each in examine_root(join(bucket, "log"))}
    assert {name: each.status for name, each in found.items()} == {"store": "ok", "clock": "ok", "root": "warn"}
    assert f"--root '{join(bucket, 'log')}'" in (found["root"].fix or "")


def test_bucket_configured_by_the_environment(bucket: str) -> None:
    environment = {"SPARKLOG_ROOT": join(bucket, "log")}
    assert invoke(["topics", "create", "t"], environment).exit_code == 0
    assert invoke(["topics", "list"], environment).stdout == "t\n"


def test_checkpoint_in_a_bucket_does_not_prevent_a_root(bucket: str) -> None:
    store = sparklog.storage.open_store(bucket)
    for key in ("orders-query/metadata", "orders-query/offsets/0", "_checkpoint/x"):
        store.create(key, b"x")
    assert sparklog.open(bucket, create=True).topics() == []


def test_store_settings_can_be_spark_options(bucket: str) -> None:
    url, _, endpoint = join(bucket, "log").partition("?endpoint=")
    sparklog.open(f"{url}?endpoint={endpoint}", create=True).create_topic("t")
    for name in ("endpoint", "Endpoint", "fs.s3a.endpoint"):
        source("schema", subscribe="t", **{name: endpoint, "fs.s3a.path.style.access": "true"})(url, "")
    for options, words in {
        ("endpoint", "http://other:1"): "the URL sets endpoint=http://127.0.0.1",
        ("regoin", "x"): "Unknown option 'regoin': did you mean 'region'?",
        ("fs.s3a.endpiont", "x"): "has no setting fs.s3a.endpiont for s3://",
        ("fs.s3a.secret.key", SECRET): "the options must not contain the secret fs.s3a.secret.key",
        ("aws_secret_access_key", SECRET): "the options must not contain the secret",
    }.items():
        text = answer(source("schema", **dict([options])), f"{url}?endpoint={endpoint}", "")
        assert words in text
        assert SECRET not in text
    assert "region are settings of object stores" in answer(source("schema", region="x"), "/data/log", "")


def test_bucket_mount_is_rejected_and_no_files_are_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_link(*paths: str, **options: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", no_link)
    monkeypatch.setattr(system_errors, "mount_of", lambda path: f"{tmp_path} (fuse.s3fs)")
    for name in ("open, create", "topics create", "save"):
        text = answer(WRITERS[name], str(tmp_path / "a" / "b"), "")
        assert "if it is a mounted bucket, use the URL of the underlying bucket, such as s3://bucket/log" in text
        assert os.listdir(tmp_path) == []
    (tmp_path / "a").mkdir()
    with pytest.raises(sparklog.BadRequest, match="hard links"):
        LocalStore(tmp_path / "a").self_check()
    assert os.listdir(tmp_path) == ["a"]
