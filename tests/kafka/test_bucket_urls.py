"""Kafka directories by their URL, on a server that speaks S3: told apart, read, imported from and looked into."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from sparklog.errors import BadRequest
from sparklog.kafka.importing.run import import_log_dir
from sparklog.kafka.in_place import KafkaView, files
from sparklog.log.state.view import READ_COMMITTED
from sparklog.opening import (
    KAFKA_DIRECTORY,
    KAFKA_PARTITION,
    NOTHING,
    ROOT,
    TOPIC,
    Location,
    open_view,
    resolve,
)
from sparklog.storage import Store, open_store
from sparklog.storage.locations import join, without_settings
from sparklog.testing.world import World
from sparklog.testing.wrapper_stores import CountingStore
from sparklog.tools.inspection.inspect import inspect_file, inspect_topic
from tests.fixture_data import expected_records
from tests.kafka.logs import FIRST, read, read_topic, without_epochs, write_partition
from tests.support.command_line import invoke


def copied_to(url: str, folder: Path) -> str:
    store = open_store(url)
    for file in sorted(folder.rglob("*")):
        if file.is_file():
            assert store.create(str(file.relative_to(folder)), file.read_bytes())
    return url


def test_kinds_of_urls_and_their_requests(bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_partition(tmp_path / "kafka", "t-0", {0: FIRST})
    write_partition(tmp_path / "root" / "orders" / "sealed" / "0", "00000000000000000007-Abc", {0: FIRST})
    (tmp_path / "root" / "_root.json").write_text("{}")
    (tmp_path / "root" / "_groups").mkdir()
    (tmp_path / "root" / "_groups" / "entry").write_text("{}")
    (tmp_path / "backup").mkdir()
    (tmp_path / "backup" / "_backup.json").write_text("{}")
    copied_to(bucket, tmp_path)
    stores: list[CountingStore] = []

    def opened(location: str) -> Store:
        stores.append(CountingStore(open_store(location)))
        return stores[-1]

    monkeypatch.setattr(files, "open_store", opened)
    listed = {"list": 1, "list_folders": 1}
    root, backup = join(bucket, "root"), join(bucket, "backup")
    for name, expected, requests in (
        ("root", Location(ROOT, root, root), {"get": 1}),
        ("root/orders", Location(TOPIC, join(root, "orders"), root, "orders"), {"get": 2}),
        ("root/new", Location(TOPIC, join(root, "new"), root, "new"), {"get": 2}),
        ("root/_groups", NOTHING, {"get": 2, "list": 2, "list_folders": 1}),
        ("root/_schemas", Location(TOPIC, join(root, "_schemas"), root, "_schemas"), {"get": 2, "list": 1}),
        ("kafka", KAFKA_DIRECTORY, {"get": 2, "list": 1}),
        ("kafka/t-0", KAFKA_PARTITION, {"get": 2, "list": 1}),
        ("root/orders/sealed/0/00000000000000000007-Abc", NOTHING, {"get": 4, "list": 1}),
        ("backup", Location(ROOT, backup, backup), {"get": 3} | listed),
        (
            "backup/orders",
            Location(TOPIC, join(backup, "orders"), backup, "orders"),
            {"get": 4, "list": 1, "list_folders": 1},
        ),
        ("", NOTHING, {"get": 2} | listed),
        ("nothing", NOTHING, {"get": 4} | listed),
    ):
        url = join(bucket, name) if name else bucket
        stores.clear()
        if isinstance(expected, str):
            expected = Location(expected, url, url)
        assert resolve(url) == expected
        assert sum((store.counts for store in stores), stores[0].counts.__class__()) == requests, name


def test_url_with_one_slash_suggests_the_right_url() -> None:
    with pytest.raises(BadRequest, match="is missing a slash: expected two after s3:"):
        resolve("s3:/bucket/kafka")


def test_directory_can_be_opened_by_url(bucket: str, fixtures: Path) -> None:
    data = fixtures / "transactions/data"
    url = copied_to(join(bucket, "backup/kafka"), data)
    for place, topic in ((url, "txn-a"), (join(url, "txn-b-1"), "txn-b")):
        view = open_view(resolve(place), tailing=False)
        assert isinstance(view, KafkaView)
        assert view.location == without_settings(place)
        number = max(view.bounds(topic))
        # Parts go through pickle, as on their way to a task.
        expected = without_epochs(expected_records(fixtures / "transactions", f"{topic}-{number}", READ_COMMITTED))
        assert read(view, topic, number, READ_COMMITTED) == expected
    root = World().root()
    import_log_dir(root, url)
    other = World().root()
    import_log_dir(other, data)
    assert read_topic(root.topic("txn-b")) == read_topic(other.topic("txn-b"))
    segment = "txn-b-0/00000000000000000000.log"
    mine, others = inspect_file(join(url, segment)), inspect_file(data / segment)
    assert mine.batches == others.batches
    assert mine.batches.num_rows
    assert inspect_topic(KafkaView(url), "txn-b", [1]).gaps == inspect_topic(KafkaView(data), "txn-b", [1]).gaps


COMMANDS = (
    ("consume", "--topic", "txn-a", "--from-beginning", "--max-messages", "20", "--root", ""),
    ("topics", "describe", "--root", ""),
    ("log-dirs", "--root", ""),
    ("groups", "list", "--root", ""),
    ("groups", "describe", "g-classic", "--root", "", "--json"),
    ("verify", "--root", "", "--topic", "txn-b", "--json"),
    ("dump-log", "/txn-b-1"),
    ("dump-log", "/txn-b-0/00000000000000000000.log", "--print-data-log"),
    ("dump-log", "--root", "", "txn-b-1/leader-epoch-checkpoint"),
)


def test_commands_print_the_same_as_for_a_disk(bucket: str, fixtures: Path) -> None:
    """In the commands a folder is what lies behind the directory's own name, and that empty."""
    data = fixtures / "transactions/data"
    copied_to(join(bucket, "kafka"), data)
    url, _, settings = bucket.partition("?")
    for command in COMMANDS:
        answers = []
        for base, query in ((str(data), ""), (f"{url}/kafka", f"?{settings}")):
            at_base = [f"{base}{each}{query}" if not each or each[0] == "/" else each for each in command]
            result = invoke(at_base)
            assert result.exit_code == 0, result.output
            answers.append(re.sub(r'"seconds": [\d.]+', "", result.output.replace(base, "")))
        assert answers[0] == answers[1], command
        assert answers[0]
