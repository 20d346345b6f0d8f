"""Commands on directories written by Kafka have the same output as Kafka's tools."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sparklog import open as open_place
from sparklog.kafka.importing.run import import_log_dir
from tests.cli.conftest import Sparklog
from tests.fixture_data import expected_records

FIXTURES = ("transactions", "timestamps", "segments")


def expected_offsets(fixture: Path) -> dict[str, Any]:
    offsets: dict[str, Any] = json.loads((fixture / "expected" / "offsets.json").read_text())
    return {name: said for name, said in offsets.items() if not name.startswith("__")}


def printed(fixture: Path, sparklog: Sparklog, *arguments: str) -> dict[str, int]:
    """Return the offset of each topic-partition from the output of `offsets`."""
    lines = sparklog("offsets", "--root", fixture / "data", *arguments).lines
    rows = [line.rsplit(":", 2) for line in lines if not line.startswith("__")]
    return {f"{topic}-{partition}": int(offset) for topic, partition, offset in rows}


@pytest.mark.parametrize("name", FIXTURES)
@pytest.mark.parametrize(("time", "field"), [("-1", "highWatermark"), ("-2", "logStartOffset")])
def test_latest_and_earliest(fixtures: Path, sparklog: Sparklog, name: str, time: str, field: str) -> None:
    expected = {partition: said[field] for partition, said in expected_offsets(fixtures / name).items()}
    assert printed(fixtures / name, sparklog, "--time", time) == expected


@pytest.mark.parametrize("name", FIXTURES)
def test_the_record_with_the_largest_timestamp(fixtures: Path, sparklog: Sparklog, name: str) -> None:
    said = {
        partition: said["maxTimestamp"]["read_uncommitted"]["offset"]
        for partition, said in expected_offsets(fixtures / name).items()
    }
    expected = {partition: offset for partition, offset in said.items() if offset >= 0}
    assert printed(fixtures / name, sparklog, "--time", "-3") == expected


def test_read_committed_ends_at_the_last_stable_offset(fixtures: Path, sparklog: Sparklog) -> None:
    fixture = fixtures / "transactions"
    expected = {partition: said["lastStableOffset"] for partition, said in expected_offsets(fixture).items()}
    assert printed(fixture, sparklog, "--isolation-level", "read_committed") == expected
    assert expected["txn-a-0"] < expected_offsets(fixture)["txn-a-0"]["highWatermark"]


def test_offsets_are_sorted_as_strings_like_kafkas(fixtures: Path, sparklog: Sparklog) -> None:
    lines = sparklog("offsets", "--root", fixtures / "segments" / "data").lines
    assert [line.rsplit(":", 1)[0].replace(":", "-") for line in lines] == sorted(
        line.rsplit(":", 1)[0].replace(":", "-") for line in lines
    )


@pytest.mark.parametrize("isolation", ["read_committed", "read_uncommitted"])
def test_consume_prints_what_kafkas_consumer_returned(fixtures: Path, sparklog: Sparklog, isolation: str) -> None:
    fixture = fixtures / "transactions"
    flags = ("--print-offset", "--print-timestamp", "--print-key", "--key-separator", "|")
    for partition in (0, 1):
        place = ("--root", fixture / "data", "--partition", partition)
        lines = sparklog("consume", "txn-a", *place, "--isolation-level", isolation, *flags).lines
        assert lines == [
            f"CreateTime:{record.timestamp}|Offset:{record.offset}|{_text(record.key)}|{_text(record.value)}"
            for record in expected_records(fixture, f"txn-a-{partition}", isolation)
        ]


def _text(data: bytes | None) -> str:
    return "null" if data is None else data.decode()


def test_a_partition_directory_can_be_read(fixtures: Path, sparklog: Sparklog) -> None:
    folder = fixtures / "transactions" / "data" / "txn-a-1"
    outcome = sparklog("consume", "--root", folder, "--print-partition", "-n", 1)
    assert outcome.lines[0].startswith("Partition:1\t")
    assert outcome.err == "Processed a total of 1 messages\n"


def test_a_directory_of_several_topics_requires_a_topic(fixtures: Path, sparklog: Sparklog) -> None:
    outcome = sparklog("consume", "--root", fixtures / "transactions" / "data", code=2)
    assert "expected a topic" in outcome.err
    assert "txn-a, txn-b" in outcome.err


def test_kafkas_directory_is_listed_and_described(fixtures: Path, sparklog: Sparklog) -> None:
    place = ("--root", fixtures / "transactions" / "data")
    assert {"txn-a", "txn-b"} <= set(json.loads(sparklog("topics", "list", *place, "--json").out))
    described = json.loads(sparklog("topics", "describe", "txn-a", *place, "--json").out)[0]
    assert (described["topic"], described["partitionCount"], described["configs"]) == ("txn-a", 2, None)
    assert described["partitions"][0]["lastStable"] == 62


@pytest.mark.parametrize(
    "arguments", [("produce", "txn-a"), ("topics", "create", "new"), ("topics", "delete", "txn-a")]
)
def test_kafkas_directory_is_read_only(fixtures: Path, sparklog: Sparklog, arguments: tuple[str, ...]) -> None:
    outcome = sparklog(*arguments, "--root", fixtures / "transactions" / "data", code=1)
    assert "read-only" in outcome.err
    assert outcome.err.count("\n") == 1


def test_consume_stops_at_damage(fixtures: Path, sparklog: Sparklog) -> None:
    damaged = fixtures / "damaged/bit-flipped/data"
    consume = ("consume", "--root", damaged, "--print-offset", "--no-print-value", "--isolation-level=read_uncommitted")
    good = [record.offset for record in expected_records(fixtures / "damaged/good", "damaged-0")]

    def printed_offsets(lines: list[str]) -> list[int]:
        return [int(line.removeprefix("Offset:")) for line in lines]

    failed = sparklog(*consume, code=1)
    assert printed_offsets(failed.lines) == [offset for offset in good if offset < 226]
    assert "position 3395, offset 226) [SPARKLOG_CORRUPT]" in failed.err
    assert "skip the damage with corruptRecords=skip" in failed.err
    skipping = sparklog(*consume, "--corrupt-records", "skip")
    assert printed_offsets(skipping.lines) == [offset for offset in good if not 226 <= offset < 232]
    said, count = skipping.err.splitlines()
    assert said.startswith("sparklog: skipped corrupt offsets 226 to 231 of damaged-0: ")
    assert count == f"Processed a total of {len(skipping.lines)} messages"
    cut = sparklog(*consume, "--corrupt-records", "truncate")
    assert printed_offsets(cut.lines) == [offset for offset in good if offset < 226]
    assert cut.err.count("skipped corrupt offsets 226 and later of damaged-0") == 3
    assert "damaged-0" not in sparklog(*consume, "--corrupt-records", "ignore", code=2).out


def test_damage_in_a_root_is_skipped(sparklog: Sparklog, root: Path, lines_file: Callable[[str], Path]) -> None:
    sparklog("topics", "create", "orders", "-c", "inline.records.bytes=0")
    for value in ("first", "second"):
        sparklog("produce", "orders", "--compression-codec", "none", "--file", lines_file(f"{value}\n"))
    refused = sparklog("consume", "orders", "--corrupt-records", "truncate", code=1)
    assert "applies only to Kafka directories" in refused.err
    (file,) = (path for path in (root / "orders" / "append").iterdir() if b"first" in path.read_bytes())
    file.chmod(0o644)
    file.write_bytes(file.read_bytes().replace(b"first", b"worst"))
    failed = sparklog("consume", "orders", code=1)
    assert "the batch's CRC-32C does not match its bytes; restore the file" in failed.err
    skipping = sparklog("consume", "orders", "--corrupt-records", "skip")
    assert skipping.lines == ["second"]
    assert skipping.err.startswith("sparklog: skipped corrupt offsets 0 to 0 of orders-0: the batch's CRC-32C does")
    grouped = sparklog("consume", "orders", "--group", "g", "--corrupt-records", "skip", code=2)
    assert "specify --group or --corrupt-records" in grouped.err


@pytest.mark.parametrize("isolation", ["read_committed", "read_uncommitted"])
def test_an_imported_topic_prints_the_same(fixtures: Path, sparklog: Sparklog, root: Path, isolation: str) -> None:
    fixture = fixtures / "transactions"
    import_log_dir(open_place(str(root), create=True), fixture / "data")
    for partition in (0, 1):
        found = [
            json.loads(line)
            for line in sparklog("consume", "txn-a", "-p", partition, "--json", "--isolation-level", isolation).lines
        ]
        wanted = expected_records(fixture, f"txn-a-{partition}", isolation)
        assert [record["offset"] for record in found] == [record.offset for record in wanted]
    described = json.loads(sparklog("topics", "describe", "txn-a", "--json").out)[0]
    facts = expected_offsets(fixture)
    assert {f"txn-a-{own['partition']}": own["lastStable"] for own in described["partitions"]} == {
        name: said["lastStableOffset"] for name, said in facts.items() if name.startswith("txn-a-")
    }
    (said,) = described["openTransactions"]
    stable = facts["txn-a-0"]["lastStableOffset"]
    assert said.startswith("the open Kafka transaction of producer ")
    assert said.endswith(f" in partition 0, from offset {stable}")
