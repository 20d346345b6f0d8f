"""`sparklog get`: the latest record of a key, in roots and in Kafka directories."""

from __future__ import annotations

import base64
import json
import random
import struct
from pathlib import Path
from typing import get_args

import pyarrow as pa
import pytest

import sparklog as library
from sparklog.cli.printing import Format
from sparklog.format.key_hash import partition_for_key
from sparklog.format.text import parse_key
from sparklog.formats import FORMATS
from sparklog.log.read import key_lookup
from sparklog.log.state.view import COLUMNS, READ_COMMITTED, READ_UNCOMMITTED, LogView, OffsetRange
from sparklog.log.topic.cloning import clone_topic
from sparklog.log.topic.root import Root
from sparklog.log.topic.topic import Topic
from sparklog.opening import open_view, resolve
from sparklog.tools.verification.run import verify_root
from sparklog.transactions.producer import transactional
from tests.cli.conftest import REPOSITORY, Sparklog
from tests.support.records import keyed_rows

KAFKA = REPOSITORY / "examples" / "data" / "kafka-log-dir"


@pytest.fixture
def log(root: Path) -> Root:
    opened = library.open(root, create=True)
    topic = opened.create_topic("t", partitions=3)
    topic.append(keyed_rows((b"a", b"1"), (b"b", b"1"), (b"a", b"2"), (None, b"0"), (b"", b"empty")))
    topic.append(keyed_rows((b"b", b"2"), (b"b", None)))
    return opened


@pytest.mark.usefixtures("log")
def test_get_prints_the_latest_value(sparklog: Sparklog) -> None:
    assert sparklog("get", "t", "--key", "a").out == "2\n"
    assert sparklog("get", "--key", "").out == "empty\n"
    place = int(partition_for_key(pa.array([b"a"]), 3)[0])
    shown = sparklog("get", "t", "-k", "a", "--print-key", "--print-partition", "--print-offset").out
    partition, offset, key, value = shown.rstrip("\n").split("\t")
    assert (partition, key, value) == (f"Partition:{place}", "a", "2")
    found = json.loads(sparklog("get", "t", "-k", "a", "--json").out)
    assert (found["value"], f"Offset:{found['offset']}") == ("2", offset)
    assert "sparklog get" in sparklog("get", "--help").out.split("Example:")[1]


@pytest.mark.usefixtures("log")
def test_get_of_a_tombstone_and_of_a_missing_key(sparklog: Sparklog) -> None:
    deleted = sparklog("get", "t", "-k", "b", code=3)
    assert deleted.out == ""
    assert deleted.err.startswith("sparklog: key 'b' of topic t was deleted: offset ")
    assert json.loads(sparklog("get", "t", "-k", "b", "--json", code=3).out)["value"] is None
    missing = sparklog("get", "t", "-k", "c", code=1)
    assert "no record in topic t has the key 'c'" in missing.err
    assert "--all-partitions" in missing.err
    assert len(missing.err.splitlines()) == 1
    for arguments, code, says in (
        (("-k", "a", "-p", 7), 1, "0, 1, 2, found partition 7"),
        (("-k", "a", "-p", 0, "--all-partitions"), 2, "specify --all-partitions or --partition, not both"),
        (("-k", "x", "--key-format", "long"), 1, "the key: expected a long, found 'x'"),
    ):
        assert says in sparklog("get", "t", *arguments, code=code).err


def test_get_finds_a_key_in_another_partition(sparklog: Sparklog, log: Root) -> None:
    topic = log.topic("t")
    elsewhere = (int(partition_for_key(pa.array([b"a"]), 3)[0]) + 1) % 3
    table = keyed_rows((b"a", b"newer"), partition=elsewhere)
    topic.append(table.append_column("timestamp", pa.array([4_000_000_000_000], pa.int64())))
    assert sparklog("get", "t", "-k", "a").out == "2\n"
    assert sparklog("get", "t", "-k", "a", "-p", elsewhere).out == "newer\n"
    assert sparklog("get", "t", "-k", "a", "--all-partitions").out == "newer\n"


def value_of(topic: Topic, key: str) -> bytes | None:
    """Return the latest value of a key, or None for a tombstone."""
    found = topic.get(key)
    assert found is not None
    value: bytes | None = found.column("value")[0].as_py()
    return value


def place_of(key: bytes, partitions: int) -> int:
    return int(partition_for_key(pa.array([key]), partitions)[0])


def test_get_searches_the_partitions_before_partitions_were_added(sparklog: Sparklog, log: Root) -> None:
    topic = log.topic("t")
    for partitions in (5, 50):
        topic.alter(partitions=partitions)
        assert len({place_of(b"a", count) for count in (3, 5, 50)}) == 3
        assert sparklog("get", "t", "-k", "a").out == "2\n"
    assert value_of(topic, "b") is None
    topic.append(keyed_rows((b"a", b"3")))
    assert sparklog("get", "t", "-k", "a").out == "3\n"
    assert topic.get("c") is None
    clone_topic(log, "t", "copy")
    assert value_of(log.topic("copy"), "b") is None
    log.topic("copy").alter(partitions=51)
    assert value_of(log.topic("copy"), "b") is None
    assert verify_root(log.store).sound


def test_get_returns_the_latest_record_of_several_partitions(root: Path) -> None:
    """Records in an added partition are later. Among other partitions, the greatest timestamp decides."""
    topic = library.open(root, create=True).create_topic("t", partitions=4)
    keys = [b"k%d" % number for number in range(60)]
    for round_number, partitions in enumerate((4, 6, 9)):
        if partitions > 4:
            topic.alter(partitions=partitions)
        # Each round omits some keys, so that their latest record is in the partition before the change.
        chosen = [key for at, key in enumerate(keys) if at % 3 >= round_number]
        topic.append(keyed_rows(*((key, b"%d" % round_number) for key in chosen)))
    for at, key in enumerate(keys):
        assert value_of(topic, key.decode()) == b"%d" % (at % 3)


def test_a_record_in_an_added_partition_ends_the_search(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = library.open(root, create=True).create_topic("t", partitions=4)
    topic.alter(partitions=8)
    keys = [b"k%d" % number for number in range(40)]
    topic.append(keyed_rows(*((key, b"v") for key in keys)))
    looked: list[int] = []
    newest_offset = key_lookup._latest_offset

    def counted(view: LogView, name: str, partition: int, key: bytes, isolation: str) -> int | None:
        looked.append(partition)
        return newest_offset(view, name, partition, key, isolation)

    monkeypatch.setattr(key_lookup, "_latest_offset", counted)
    for key in keys:
        assert topic.get(key) is not None
    # If the number of partitions is doubled, a key keeps its partition or goes to a new partition.
    assert len(looked) == len(keys)


def test_the_isolation_level_decides_which_record_is_the_latest(log: Root) -> None:
    topic = log.topic("t")
    transaction = transactional(log, "x").begin()
    transaction.append("t", keyed_rows((b"a", b"aborted")))
    transaction._prepare_topics()
    transaction.abort()
    committed = topic.get(b"a")
    assert committed is not None
    assert committed.column("value")[0].as_py() == b"2"
    seen = topic.get(b"a", isolation_level=READ_UNCOMMITTED)
    assert seen is not None
    assert seen.column("value")[0].as_py() == b"aborted"


def test_keys_are_strings_bytes_or_numbers(sparklog: Sparklog, log: Root) -> None:
    assert get_args(Format) == FORMATS
    number = struct.pack(">q", 7)
    log.topic("t").append(keyed_rows((number, b"seven")))
    assert sparklog("get", "t", "-k", "7", "--key-format", "long").out == "seven\n"
    assert sparklog("get", "t", "-k", number.hex(), "--key-format", "hex").out == "seven\n"
    text = base64.b64encode(number).decode()
    assert sparklog("get", "t", "-k", text, "--key-format", "base64").out == "seven\n"
    kinds = ("short", "integer", "float", "double")
    assert [parse_key("1", kind).hex() for kind in kinds] == ["0001", "00000001", "3f800000", "3ff0000000000000"]
    assert parse_key("é") == "é".encode()
    for kind, wrong in (("hex", "0x1"), ("base64", "a"), ("short", "40000"), ("double", "x"), ("uuid", "x")):
        with pytest.raises(library.BadRequest, match=r"expected (a|hex|base64|one of the formats)"):
            parse_key(wrong, kind)


def model(view: LogView, topic: str, partition: int, isolation: str) -> dict[bytes | None, int]:
    """Return the offset of the last record of each key, from a sequential read."""
    bounds = view.bounds(topic)[partition]
    wanted = OffsetRange(topic, partition, bounds.log_start, bounds.end(isolation))
    found: dict[bytes | None, int] = {}
    for part in view.plan([wanted], isolation):
        for batch in part.read(("key", "offset")):
            found.update(zip(batch.column("key").to_pylist(), batch.column("offset").to_pylist(), strict=True))
    return found


@pytest.mark.parametrize("run_bytes", [1, 500, 4 << 20])
def test_get_agrees_with_a_scan(root: Path, monkeypatch: pytest.MonkeyPatch, run_bytes: int) -> None:
    """Reads of one offset, of several offsets and of all offsets agree with a scan."""
    monkeypatch.setattr(key_lookup, "FIRST_CHUNK_BYTES", run_bytes)
    chance = random.Random(run_bytes)
    log = library.open(root, create=True)
    topic = log.create_topic("t", partitions=2)
    for _ in range(12):
        pairs = [(b"k%d" % chance.randrange(40), b"v" * chance.randrange(20)) for _ in range(chance.randrange(1, 30))]
        topic.append(keyed_rows(*pairs))
    topic.delete_records({0: 20})
    view = open_view(resolve(str(root)), tailing=False)
    expected = {**model(view, "t", 0, READ_COMMITTED), **model(view, "t", 1, READ_COMMITTED)}
    for key in [b"k%d" % n for n in range(42)]:
        record = key_lookup.latest_record(view, "t", key)
        assert (None if record is None else record.column("offset")[0].as_py()) == expected.get(key)


@pytest.mark.parametrize("isolation", [READ_COMMITTED, READ_UNCOMMITTED])
def test_get_reads_kafka_directories_in_place(isolation: str) -> None:
    view = open_view(resolve(str(KAFKA)), tailing=False)
    looked = 0
    for topic in ("txn-a", "txn-b"):
        view.refresh([topic])
        for partition in view.bounds(topic):
            for key, offset in model(view, topic, partition, isolation).items():
                if key is None:
                    continue
                record = key_lookup.latest_record(view, topic, key, partitions=[partition], isolation=isolation)
                assert record is not None
                assert record.schema.names == list(COLUMNS)
                assert record.column("offset")[0].as_py() == offset
                looked += 1
    assert looked > 50


def test_get_works_on_all_kinds_of_kafka_directories(sparklog: Sparklog) -> None:
    view = open_view(resolve(str(KAFKA)), tailing=False)
    view.refresh(["txn-b"])
    key = next(key for key in model(view, "txn-b", 1, READ_COMMITTED) if key is not None)
    one = ("get", "--root", KAFKA / "txn-b-1", "--key-format", "hex", "-k", key.hex(), "--json")
    assert json.loads(sparklog(*one).out)["partition"] == 1


def test_get_requires_a_partition_if_partitions_are_missing(tmp_path: Path) -> None:
    for partition in (0, 2):
        (tmp_path / f"txn-b-{partition}").symlink_to(KAFKA / f"txn-b-{partition // 2}")
    view = open_view(resolve(str(tmp_path)), tailing=False)
    with pytest.raises(library.BadRequest, match=r"contains only partitions 0, 2 of topic txn-b"):
        key_lookup.latest_record(view, "txn-b", b"k")
    assert key_lookup.latest_record(view, "txn-b", b"not there", partitions=[0, 2]) is None
