"""`sparklog perf`: options and output of Kafka's performance tools. Sent records are stored exactly once."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

import sparklog as library
from tests.cli.conftest import Sparklog

WINDOW = re.compile(
    r"(\d+) records sent, [\d.]+ records/sec \([\d.]+ MB/sec\), [\d.]+ ms avg latency, [\d.]+ ms max latency\."
)
TOTAL = re.compile(
    r"(\d+) records sent, [\d.]+ records/sec \([\d.]+ MB/sec\), [\d.]+ ms avg latency, [\d.]+ ms max latency, "
    r"\d+ ms 50th, \d+ ms 95th, \d+ ms 99th, \d+ ms 99\.9th\."
)
FIGURES = r"[\d.]+, [\d.]+, (\d+), [\d.]+, \d+, \d+, [\d.]+, [\d.]+"
TIME = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d:\d{3}"


def values(root: Path, topic: str = "t") -> list[bytes]:
    return library.open(root).topic(topic).scan().to_table()["value"].to_pylist()  # type: ignore[no-any-return]


def test_perf_produce_counts_records_like_kafka(sparklog: Sparklog, root: Path) -> None:
    library.open(root, create=True)
    lines = sparklog(
        *("perf", "produce", "--topic", "t", "--num-records", 300, "--payload-monotonic", "--throughput", 1500),
        *("--reporting-interval", 50, "--producer-props", "linger.ms=5", "compression.type=lz4"),
    ).lines
    assert values(root) == [b"%d" % number for number in range(300)]
    windows = [WINDOW.fullmatch(line) for line in lines[:-1]]
    assert windows
    assert all(windows), lines
    total = TOTAL.fullmatch(lines[-1])
    assert total
    assert total[1] == "300"
    # 299 records at 1,500 per second.
    rate = float(lines[-1].split("sent, ")[1].split()[0])
    assert rate < 1_650


def test_values_have_a_size_or_come_from_a_file(sparklog: Sparklog, root: Path, tmp_path: Path) -> None:
    library.open(root, create=True)
    sparklog("perf", "produce", "--topic", "t", "--num-records", 50, "--record-size", 20)
    letters = values(root)
    assert {len(value) for value in letters} == {20}
    assert len(set(letters)) > 40
    assert all(re.fullmatch(rb"[A-Z]+", value) for value in letters)
    file = tmp_path / "values.txt"
    file.write_text("a;bb;ccc")
    sparklog(
        *("perf", "produce", "--topic", "u", "--num-records", 60),
        *("--payload-file", file, "--payload-delimiter", ";"),
    )
    assert set(values(root, "u")) == {b"a", b"bb", b"ccc"}


def test_transactions_are_committed_periodically(sparklog: Sparklog, root: Path) -> None:
    library.open(root, create=True)
    sparklog(
        *("perf", "produce", "--topic", "t", "--num-records", 120, "--payload-monotonic", "--throughput", 1200),
        *("--transactional-id", "bench", "--transaction-duration-ms", 20),
    )
    assert values(root) == [b"%d" % number for number in range(120)]
    assert "bench" in sparklog("transactions", "list").out
    assert library.open(root).topic("t").log.state().version > 2, "several transactions"


def test_commit_intervals_are_compared_in_a_table(sparklog: Sparklog, root: Path) -> None:
    library.open(root, create=True)
    lines = sparklog(
        *("perf", "produce", "--topic", "t", "--num-records", 300, "--record-size", 10, "--throughput", 1000),
        *("--commit-intervals", "1,1000"),
    ).lines
    at = next(number for number, line in enumerate(lines) if line.startswith("INTERVAL-MS"))
    often, seldom = (line.split() for line in lines[at + 1 :])
    assert (often[0], seldom[0]) == ("1", "1000")
    assert int(often[5]) > int(seldom[5]) == 1
    assert len(values(root)) == 600


def test_results_are_json_and_progress_is_on_stderr(sparklog: Sparklog, root: Path) -> None:
    library.open(root, create=True)
    words = ("perf", "produce", "--topic", "t", "--num-records", 10, "--record-size", 10, "--commit-intervals", "1,9")
    said = sparklog(*words, "--output", "json")
    assert [(row["intervalMs"], row["commits"] > 0) for row in json.loads(said.out)] == [(1.0, True), (9.0, True)]
    assert said.err.count("10 records sent, ") == 2


def test_perf_consume_counts_records_like_kafka(sparklog: Sparklog, root: Path) -> None:
    topic = library.open(root, create=True).create_topic("t", partitions=2)
    topic.append({"key": [b"k"] * 100, "value": [b"v" * 9] * 100})
    header, line = sparklog("perf", "consume", "--topic", "t", "--messages", 100).lines
    assert header.startswith("start.time, end.time, data.consumed.in.MB, MB.sec, data.consumed.in.nMsg, nMsg.sec, ")
    assert (match := re.fullmatch(rf"{TIME}, {TIME}, {FIGURES}", line))
    assert match[1] == "100"
    assert line.split(", ")[2] == f"{1000 / 2**20:.4f}"
    options = ("--hide-header", "--show-detailed-stats", "--reporting-interval", 100)
    result = sparklog(
        *("perf", "consume", "--topic", "t", "--messages", 200, "--timeout", 400, "--group", "g"), *options
    )
    last = re.fullmatch(rf"{TIME}, 0, {FIGURES}", result.lines[-1])
    assert last
    assert last[1] == "100"
    assert "read 100 of 200 records" in result.err
    committed = library.Groups(library.open(root)).group("g").committed()
    assert sum(position.offset for position in committed.values()) == 100


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--record-size", 5, "--payload-monotonic"), "specify one of --record-size, --payload-file"),
        ((), "specify one of --record-size, --payload-file"),
        (("--record-size", 5, "--producer-props", "lingerms=5"), "expected NAME=VALUE with one of the names"),
        (
            ("--record-size", 5, "--producer-props", "linger.ms=x"),
            "linger_ms must be a non-negative number of milliseconds, found 'x'",
        ),
        (("--record-size", 5, "--commit-intervals", "5,x"), "expected milliseconds separated by commas"),
        (("--payload-file", __file__, "--payload-delimiter", ""), "expected at least one character"),
    ],
)
def test_invalid_options_are_one_line_errors(
    sparklog: Sparklog, root: Path, words: tuple[object, ...], message: str
) -> None:
    library.open(root, create=True)
    result = sparklog("perf", "produce", "--topic", "t", "--num-records", 1, *words, code=2)
    assert message in result.err
    assert result.err.count("\n") == 1
    assert library.open(root).topics() == []


def test_payload_file_must_be_text(sparklog: Sparklog, root: Path, tmp_path: Path) -> None:
    library.open(root, create=True)
    file = tmp_path / "payload"
    file.write_bytes(b"\xff\n")
    result = sparklog("perf", "produce", "--topic", "t", "--num-records", 1, "--payload-file", file, code=1)
    assert "is not UTF-8 text" in result.err
    assert result.err.count("\n") == 1
