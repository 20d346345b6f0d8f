"""Test times in seconds where milliseconds are expected: each entry point that accepts a time warns, and continues."""

from __future__ import annotations

import logging
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import sparklog
from sparklog.common.times import seconds_warning
from tests.support.command_line import invoke

SECONDS, MS = 1_795_449_600, 1_795_449_600_000
IS = (
    f": {SECONDS} means 1970-01-21T18:44:09.600Z, because times are in milliseconds; if the time is in seconds, use"
    f" {MS} or "
)


@pytest.fixture
def root(tmp_path: Path) -> sparklog.Root:
    root = sparklog.open(tmp_path / "log", create=True)
    root.create_topic("t").append(pa.table({"key": ["a"], "value": ["1"]}))
    return root


def rows(time: object) -> pa.Table:
    return pa.table({"key": ["a"], "value": ["1"], "timestamp": pa.array([time], pa.int64())})


def in_transaction(root: sparklog.Root, time: int) -> None:
    with sparklog.transactional(root, "etl").begin() as transaction:
        transaction.append("t", rows(time))


CALLS: dict[str, Callable[[sparklog.Root, Any, Path], object]] = {
    "topic.offset_for_timestamp": lambda root, time, _: root.topic("t").offset_for_timestamp(time),
    "numpy": lambda root, time, _: root.topic("t").offset_for_timestamp(np.int64(time)),
    "view": lambda root, time, _: sparklog.open_view(root.location).topic("t").offset_for_timestamp(time),
    "topic.table": lambda root, time, _: root.topic("t").table(as_of=time),
    "table": lambda root, time, _: sparklog.table(root, "t", as_of=str(time)),
    "append": lambda root, time, _: root.topic("t").append(rows(time)),
    "transaction": lambda root, time, _: in_transaction(root, time),
    "retain": lambda root, time, _: sparklog.retain(root, now_ms=time),
    "compact": lambda root, time, _: sparklog.compact(root, now_ms=time),
    "clone": lambda root, time, _: sparklog.clone(root, "t", "u", time_ms=time, dry_run=True),
    "restore": lambda root, time, to: sparklog.restore(root.location, to / "new", time_ms=time, dry_run=True),
    "export": lambda root, time, to: sparklog.export_kafka(root, ["t"], to / "kafka", start_ms=time),
    "export to": lambda root, time, to: sparklog.export_kafka(root, ["t"], to / "kafka", end_ms=time),
}


@pytest.mark.parametrize("name", CALLS)
def test_calls_warn_and_continue(
    root: sparklog.Root, tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    warnings = []
    for time in (MS, SECONDS):
        try:
            CALLS[name](root, time, tmp_path)
        except (sparklog.NotFound, sparklog.Conflict):
            # There were no records in 1970, and the target of the export already exists.
            assert name in ("clone", "restore", "export", "export to")
        warnings.append([text for text in caplog.messages if "because times are in milliseconds" in text])
    assert warnings[0] == []
    assert [IS in text for text in warnings[1]] == [True]


@pytest.mark.parametrize(
    "line",
    [
        "consume t u --from-timestamp {time}",
        "consume t u --to-timestamp {time}",
        "offsets t --time {time}",
        "table t --as-of {time}",
        "groups reset g --topic t --to-datetime {time}",
        "retain --now-ms {time} --dry-run",
        "compact --now-ms {time} --dry-run",
        "report --json --now {time}",
        "export t --to {to} --from-timestamp {time}",
        "export t --to {to} --to-timestamp {time}",
    ],
)
def test_options_warn_once_and_continue(root: sparklog.Root, tmp_path: Path, line: str) -> None:
    root.create_topic("u")
    for time, count in ((MS, 0), (SECONDS, 1)):
        result = invoke(shlex.split(line.format(time=time, to=tmp_path / str(time))), {"SPARKLOG_ROOT": root.location})
        assert (result.exit_code, result.stderr.count("because times are in milliseconds")) == (0, count), result.output
        assert (IS in result.stderr) == (count == 1)


def test_records_of_1970_deleted_by_retention_can_be_restored(
    root: sparklog.Root, caplog: pytest.LogCaptureFixture
) -> None:
    topic = root.create_topic("old", configs={"retention.ms": 1000})
    topic.append(rows(SECONDS))
    topic.append(rows(SECONDS))
    assert sum("appended to topic old" in text for text in caplog.messages) == 1
    caplog.clear()
    sparklog.retain(root, topics=["old"])
    assert topic.scan().to_table().num_rows == 0
    (said,) = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert said.startswith(f"a timestamp that expires in topic old{IS}")
    assert said.endswith("sparklog clone old NAME --as-of 2 restores the records that expire now")
    sparklog.clone(root, "old", "again", version=2)
    assert root.topic("again").scan().to_table().num_rows == 2
    caplog.clear()
    # These times are old, but they are in milliseconds.
    root.create_topic("older", configs={"retention.ms": 1000}).append(rows(915_148_800_000))
    sparklog.retain(root, topics=["older"])
    assert [text for text in caplog.messages if "because times are in milliseconds" in text] == []


def test_broker_times_do_not_warn(root: sparklog.Root, caplog: pytest.LogCaptureFixture) -> None:
    root.create_topic("l", configs={"message.timestamp.type": "LogAppendTime"}).append(rows(SECONDS))
    assert caplog.messages == []


def test_range_of_seconds_does_not_overlap_likely_milliseconds() -> None:
    assert [seconds_warning("x", time) is None for time in (0, 978_307_199, 10**10, MS)] == [True] * 4
    assert [seconds_warning("x", time) is None for time in (978_307_200, 10**10 - 1)] == [False] * 2
