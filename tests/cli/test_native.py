"""Commands on a sparklog root: create, describe, alter, delete, produce, consume and offsets."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

import sparklog as library
from sparklog.cli.commands import consume
from sparklog.format.batch_scan import scan_headers
from tests.cli.conftest import Sparklog

LinesFile = Callable[[str], Path]


def test_a_topic_is_created_altered_and_deleted(sparklog: Sparklog, root: Path) -> None:
    created = sparklog("topics", "create", "orders", "--partitions", 3, "-c", "retention.ms=86400000")
    assert created.out == f"Created topic orders with 3 partitions in {root}.\n"
    assert created.err == f"sparklog: created root {root}\n"
    sparklog("topics", "create", "clicks")
    assert sparklog("topics", "list").lines == ["clicks", "orders"]
    assert json.loads(sparklog("topics", "list", "--json").out) == ["clicks", "orders"]
    assert "already" in sparklog("topics", "create", "orders", code=1).err
    assert sparklog("topics", "create", "orders", "--if-not-exists").code == 0
    altered = sparklog("topics", "alter", "orders", "--partitions", 5)
    assert altered.out == "Altered topic orders.\n"
    (line,) = altered.err.splitlines()
    assert line.startswith("sparklog: topic orders: keys now map to other partitions")
    sparklog("configs", "alter", "orders", "--add-config", "segment.ms=7", "--delete-config", "retention.ms")
    described = json.loads(sparklog("topics", "describe", "orders", "--json").out)
    assert [(topic["topic"], topic["partitionCount"], topic["configs"]) for topic in described] == [
        ("orders", 5, {"segment.ms": "7"})
    ]
    assert sparklog("topics", "delete", "orders").out == "Deleted topic orders.\n"
    assert sparklog("topics", "list").lines == ["clicks"]
    assert "orders" in sparklog("topics", "delete", "orders", code=1).err
    assert sparklog("topics", "delete", "orders", "--if-exists").out == "Topic orders does not exist.\n"


def test_describe_is_a_line_and_a_table(sparklog: Sparklog, lines_file: LinesFile) -> None:
    sparklog("topics", "create", "orders", "-p", 2, "-c", "compression.type=lz4", "-c", "segment.ms=5")
    sparklog("produce", "orders", "-p", 1, "--file", lines_file("a\nb\n"))
    title, heading, first, second = sparklog("topics", "describe", "orders").lines
    assert title.split("\t")[0::2] == ["Topic: orders", "PartitionCount: 2"]
    assert title.endswith("\tConfigs: compression.type=lz4,segment.ms=5")
    assert heading.split() == ["PARTITION", "LOG-START", "LAST-STABLE", "LOG-END", "BYTES"]
    assert first.split() == ["0", "0", "0", "0", "0"]
    assert second.split()[:4] == ["1", "0", "2", "2"]
    assert int(second.split()[4]) > 0


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (("topics", "create", "t", "-c", "retention.msec=1"), 1, "retention.ms"),
        (("topics", "create", "t", "-c", "retention.ms"), 2, "expected NAME=VALUE"),
        (("topics", "create", "t", "-p", "0"), 2, "--partitions"),
        (("topics", "create", "a/b"), 1, "a/b"),
        (("topics", "alter", "orders"), 2, "--partitions"),
        (("topics", "alter", "orders", "-p", "1"), 1, "partition"),
        (("consume", "ordres"), 1, "orders"),
        (("consume", "orders", "-p", "9"), 1, "no partition 9"),
        (("consume", "orders", "-o", "0"), 2, "requires --partition"),
        (("consume", "orders", "-o", "end", "-p", "0"), 2, "earliest, latest or a number"),
        (("consume", "orders", "-o", "99", "-p", "0"), 1, "offset 99 of orders-0 is out of range"),
        (
            ("consume", "orders", "--from-beginning", "-o", "latest"),
            2,
            "specify --from-beginning or --offset, not both",
        ),
        (("consume", "orders", "--from-timestamp", "noon"), 2, "'--from-timestamp'"),
        (("offsets", "orders", "--time", "-7"), 2, "'--time'"),
        (("produce", "orders", "--json", "--key-separator", ":"), 2, "specify --json or --key-separator, not both"),
        (("produce", "orders", "--key-separator", ""), 2, "at least one character"),
        (("produce", "orders", "--file", "missing"), 2, "missing"),
        (("produce", "orders", "-p", "99999999999"), 2, "--partition"),
        (("frobnicate",), 2, "frobnicate"),
        (("consume", "orders", "--root", "nowhere"), 1, "nowhere"),
    ],
)
def test_errors_are_one_line_with_their_exit_code(
    sparklog: Sparklog, arguments: tuple[str, ...], code: int, says: str
) -> None:
    sparklog("topics", "create", "orders", "--partitions", 2)
    outcome = sparklog(*arguments, code=code)
    assert says in outcome.err
    assert outcome.err.startswith("sparklog: ")
    assert outcome.err.count("\n") == 1
    assert outcome.out == ""


def test_create_does_not_change_an_existing_topic(sparklog: Sparklog, root: Path) -> None:
    sparklog("topics", "create", "orders", "--partitions", 2)
    before = {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}
    failed = sparklog("topics", "create", "orders", "--partitions", 5, code=1)
    assert "topic 'orders' already exists, with 2 partitions; alter it or choose another name" in failed.err
    assert failed.err.count("\n") == 1
    sparklog("topics", "create", "orders", "--partitions", 5, "--if-not-exists")
    assert {path: path.read_bytes() for path in root.rglob("*") if path.is_file()} == before


def test_keys_are_partitioned_as_in_kafka(sparklog: Sparklog, lines_file: LinesFile) -> None:
    sparklog("topics", "create", "clicks", "--partitions", 2)
    lines = lines_file("anna:/home\ncarl:/cart\nanna:/pay\n")
    assert sparklog("produce", "clicks", "--key-separator", ":", "--file", lines).err == (
        "Appended 3 records to clicks\n"
    )
    outcome = sparklog("consume", "clicks", "--print-partition", "--print-offset", "--print-key")
    assert outcome.lines == [
        "Partition:0\tOffset:0\tcarl\t/cart",
        "Partition:1\tOffset:0\tanna\t/home",
        "Partition:1\tOffset:1\tanna\t/pay",
    ]
    assert outcome.err == "Processed a total of 3 messages\n"
    assert sparklog("offsets", "clicks").lines == ["clicks:0:1", "clicks:1:2"]
    assert sparklog("offsets").lines == ["clicks:0:1", "clicks:1:2"]
    assert json.loads(sparklog("offsets", "--time", "earliest", "--json").out)[1] == {
        "topic": "clicks",
        "partition": 1,
        "offset": 0,
    }


def test_headers_null_marker_and_partition(sparklog: Sparklog, lines_file: LinesFile) -> None:
    sparklog("topics", "create", "t", "--partitions", 3)
    lines = lines_file("h1:v1,h2:v2\tk:v\n\tk:NIL\n")
    how = ("--headers", "--key-separator", ":", "--null-marker", "NIL", "--partition", 2)
    sparklog("produce", "t", *how, "--file", lines)
    shown = sparklog("consume", "t", "--print-headers", "--print-key", "--print-partition", "--null-literal", "-").lines
    assert shown == ["Partition:2\th1:v1,h2:v2\tk\tv", "Partition:2\tNO_HEADERS\tk\t-"]


def test_json_of_one_topic_is_the_input_of_another(sparklog: Sparklog, lines_file: LinesFile) -> None:
    records = [
        {"key": "a", "value": "1", "timestamp": 5, "partition": 1, "headers": [["h", "x"], ["h", None]]},
        {"key": None, "value": {"base64": "//4="}, "timestamp": 6, "partition": 0, "headers": []},
        {"key": "", "value": None, "timestamp": 7, "partition": 1, "headers": []},
    ]
    for topic in ("one", "two"):
        sparklog("topics", "create", topic, "--partitions", 2)
    sparklog("produce", "one", "--json", "--file", lines_file("\n".join(map(json.dumps, records))))
    out = sparklog("consume", "one", "--json").out
    sparklog("produce", "two", "--json", "--file", lines_file(out))
    assert sparklog("consume", "two", "--json").out == out.replace('"topic": "one"', '"topic": "two"')
    rows = [json.loads(line) for line in out.splitlines()]
    assert [row["offset"] for row in rows] == [0, 0, 1]
    for row in rows:
        assert row["topic"] == "one"
        assert row["timestampType"] == "CreateTime"
    kept = [{name: row[name] for name in records[0]} for row in rows]
    assert kept == [records[1], records[0], records[2]]


def test_an_invalid_line_reports_the_records_appended_before(sparklog: Sparklog, lines_file: LinesFile) -> None:
    sparklog("topics", "create", "t")
    long = "k:" + "x" * 1000 + "\n"
    outcome = sparklog("produce", "t", "--key-separator", ":", "--file", lines_file(long * 20_000 + "bad\n"), code=1)
    assert "line 20001: expected key separator ':'" in outcome.err
    appended = int(sparklog("offsets", "t").out.rsplit(":", 1)[1])
    assert f"({appended} records before the error were appended)" in outcome.err
    assert 0 < appended < 20_000


@pytest.mark.usefixtures("records_in_files")
@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_each_codec_is_written_and_read(sparklog: Sparklog, lines_file: LinesFile, root: Path, codec: str) -> None:
    sparklog("topics", "create", "t")
    sparklog("produce", "t", "--compression", codec, "--file", lines_file("a long line, " * 9 + "\n"))
    file = next((root / "t" / "append").iterdir())
    headers = scan_headers(file.read_bytes(), whole=False)
    assert ["none", "gzip", "snappy", "lz4", "zstd"][int(headers.codec[0])] == codec
    assert sparklog("consume", "t").out == "a long line, " * 9 + "\n"


def test_consume_starts_and_stops_at_the_given_positions(sparklog: Sparklog, lines_file: LinesFile) -> None:
    sparklog("topics", "create", "t")
    records = [json.dumps({"value": f"v{n}", "timestamp": 1000 * n}) for n in range(5)]
    sparklog("produce", "t", "--json", "--file", lines_file("\n".join(records)))
    assert sparklog("consume", "t", "-n", 2).lines == ["v0", "v1"]
    assert sparklog("consume", "t", "-n", 0).lines == []
    assert sparklog("consume", "t", "--from-beginning").lines == ["v0", "v1", "v2", "v3", "v4"]
    assert sparklog("consume", "t", "-p", 0, "-o", 3).lines == ["v3", "v4"]
    assert sparklog("consume", "t", "-p", 0, "-o", 5).lines == []
    assert sparklog("consume", "t", "-o", "latest").lines == []
    assert sparklog("consume", "t", "-o", "earliest", "-n", 1).lines == ["v0"]
    assert sparklog("consume", "t", "--from-timestamp", 2500).lines == ["v3", "v4"]
    assert sparklog("consume", "t", "--timestamp", "1970-01-01T00:00:04Z").lines == ["v4"]
    assert sparklog("consume", "t", "--timestamp", 4001).lines == []
    assert sparklog("offsets", "t", "--time", 2500).lines == ["t:0:3"]
    assert sparklog("offsets", "t", "--time", 4001).lines == []
    assert sparklog("offsets", "t", "--time", -3).lines == ["t:0:4"]


def test_a_topic_directory_can_be_read(sparklog: Sparklog, lines_file: LinesFile, root: Path) -> None:
    sparklog("topics", "create", "t")
    sparklog("topics", "create", "u")
    sparklog("produce", "t", "--file", lines_file("v\n"))
    assert sparklog("consume", "--root", root / "t").lines == ["v"]
    assert sparklog("offsets", "--root", root / "t").lines == ["t:0:1"]
    assert sparklog("topics", "list", "--root", root / "t").lines == ["t"]
    assert "is the directory of topic t, not of u" in sparklog("consume", "u", "--root", root / "t", code=2).err


@pytest.fixture
def while_it_waits(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], None]], None]:
    """Return a function that runs an action when a follower reaches the log end for the first time."""

    def happens(event: Callable[[], None]) -> None:
        left = [event]

        def sleep(seconds: float) -> None:
            if left:
                left.pop()()
            time.sleep(seconds)

        monkeypatch.setattr(consume, "time", SimpleNamespace(sleep=sleep, monotonic=time.monotonic))

    return happens


WhileItWaits = Callable[[Callable[[], None]], None]


def test_follow_starts_at_the_end_and_prints_new_records(
    sparklog: Sparklog, lines_file: LinesFile, root: Path, while_it_waits: WhileItWaits
) -> None:
    sparklog("topics", "create", "t", "--partitions", 2)
    sparklog("produce", "t", "-p", 0, "--file", lines_file("before\n"))
    late = lines_file("after\nmore\n")

    def later() -> None:
        topic = library.open(str(root)).topic("t")
        topic.alter(partitions=3)
        for partition in (0, 2):
            topic.append(_rows(late.read_text().split(), partition))

    while_it_waits(later)
    outcome = sparklog("consume", "t", "--follow", "-n", 4, "--timeout-ms", 120_000, "--print-partition")
    assert sorted(outcome.lines) == [
        "Partition:0\tafter",
        "Partition:0\tmore",
        "Partition:2\tafter",
        "Partition:2\tmore",
    ]


def test_follow_from_the_beginning_stops_after_the_timeout(sparklog: Sparklog, lines_file: LinesFile) -> None:
    sparklog("topics", "create", "t")
    sparklog("produce", "t", "--file", lines_file("v\n"))
    assert sparklog("consume", "t", "--follow", "--from-beginning", "--timeout-ms", 50).lines == ["v"]


def test_following_a_topic_that_is_created_again_is_an_error(
    sparklog: Sparklog, root: Path, while_it_waits: WhileItWaits
) -> None:
    sparklog("topics", "create", "t")

    def again() -> None:
        log = library.open(str(root))
        log.delete_topic("t")
        log.create_topic("t")

    while_it_waits(again)
    outcome = sparklog("consume", "t", "--follow", "--timeout-ms", 120_000, code=1)
    assert "SPARKLOG_" in outcome.err
    assert "t" in outcome.err


def test_deleted_records_are_not_printed(sparklog: Sparklog, lines_file: LinesFile, root: Path) -> None:
    sparklog("topics", "create", "t")
    sparklog("produce", "t", "--file", lines_file("a\nb\nc\n"))
    library.open(str(root)).topic("t").delete_records({0: 2})
    assert sparklog("consume", "t").lines == ["c"]
    assert sparklog("offsets", "t", "--time", -2).lines == ["t:0:2"]
    assert "out of range" in sparklog("consume", "t", "-p", 0, "-o", 1, code=1).err


def _rows(values: list[str], partition: int) -> object:
    import pyarrow as pa

    return pa.table(
        {
            "value": pa.array([value.encode() for value in values], pa.binary()),
            "partition": pa.array([partition] * len(values), pa.int32()),
        }
    )
