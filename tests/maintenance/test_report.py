"""Results of a run: totals per partition, the table, the JSON document and progress lines."""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from io import StringIO

import pytest

from sparklog import output
from sparklog.common.units import size_text
from sparklog.errors import Corrupt
from sparklog.log.journal.clocks import SYSTEM
from sparklog.maintenance.report import Failure, Planned, Size, TopicReport, document, summary
from sparklog.maintenance.work_items import Meter, WorkReport, WorkResult, log_result
from sparklog.output import StatusLine, interrupted, say, table

NOON_MS = 1_769_860_800_000
SEALED = WorkReport("seal", "orders", 3, 100, 90, 1000, 900, seconds=1.0)
CLEANED = WorkReport(
    "compact", "orders", 3, 1000, 400, 50_000, 20_000, 7, 2, keyless_dropped=5, dirty_ratio=0.75, seconds=2.0
)
AGAIN = replace(
    CLEANED, records_before=400, records_after=300, bytes_before=20_000, bytes_after=15_000, dirty_ratio=0.6
)
LOST = Failure.of("orders", (1,), "compact orders-1", Corrupt("bad CRC", file="orders/x.log", position=7))
REPORT = TopicReport(
    "orders",
    {0: Size(5, 50), 1: Size(6, 60), 3: Size(1500, 60_000)},
    (SEALED, CLEANED, replace(AGAIN, tombstones_kept=6, tombstones_dropped=1)),
    failures=(LOST,),
    notes=("something to know",),
    seconds=4.0,
)


def test_totals_cover_entire_partitions() -> None:
    lost, cleaned = REPORT.totals()
    assert (lost.partition, lost.failed, lost.actions) == (1, True, {})
    assert (lost.records_before, lost.bytes_before, lost.records_after, lost.bytes_after) == (6, 60, 6, 60)
    assert cleaned.actions == {"seal": 1, "compact": 2}
    assert (cleaned.records_before, cleaned.bytes_before) == (1500, 60_000)
    assert (cleaned.records_after, cleaned.bytes_after) == (1500 - 10 - 600 - 100, 60_000 - 100 - 35_000)
    assert (cleaned.tombstones_kept, cleaned.tombstones_dropped, cleaned.keyless_dropped) == (6, 3, 10)
    assert (cleaned.dirty_ratio, cleaned.seconds) == (0.75, 5.0)
    assert REPORT.failed
    assert not replace(REPORT, failures=()).failed


def test_summary_lists_all_processed_partitions() -> None:
    lines = summary([REPORT]).splitlines()
    assert [re.sub(" +", " ", line) for line in lines[:4]] == [
        "PARTITION DONE RECORDS RECORDS AFTER BYTES BYTES AFTER TOMBSTONES KEPT TOMBSTONES DROPPED DIRTY SECONDS",
        "orders-1 FAILED 6 6 60 B 60 B - - - 0.0",
        "orders-3 seal, compact x2 1,500 790 60.0 kB 24.9 kB 6 3 0.75 5.0",
        "all 1,506 796 60.1 kB 25.0 kB 6 3 0.75 5.0",
    ]
    assert lines[4:] == [
        "1 partition needed nothing",
        "orders: something to know",
        "orders-3: 10 records without a key were dropped, as Kafka's cleaner does",
        "orders-3: 10 records of aborted transactions were dropped",
    ]


def test_summary_of_an_idle_run() -> None:
    assert summary([TopicReport("t", {0: Size(1, 1), 1: Size(1, 1)})]) == "2 partitions needed nothing"
    assert summary([]) == ""


def test_dry_run_reports_planned_work_and_reasons() -> None:
    sizes = {0: Size(1, 1), 1: Size(1, 1)}
    report = TopicReport("t", sizes, planned=(Planned("t", 0, "compact", 2_500_000, "dirty ratio 0.71 > 0.50"),))
    assert summary([report], dry_run=True).splitlines() == [
        "PARTITION  WOULD     BYTES  WHY",
        "t-0        compact  2.5 MB  dirty ratio 0.71 > 0.50",
        "1 partition needs nothing",
    ]


def test_document_is_json_with_exact_numbers() -> None:
    found = json.loads(json.dumps(document([REPORT], root="/data/log", now_ms=5, dry_run=False)))
    assert (found["root"], found["nowMs"], found["dryRun"], found["failed"]) == ("/data/log", 5, False, True)
    (topic,) = found["topics"]
    assert topic["failures"] == [
        {
            "partitions": [1],
            "what": "compact orders-1",
            "code": "SPARKLOG_CORRUPT",
            "message": "bad CRC (file orders/x.log, position 7)",
        }
    ]
    assert topic["partitions"][1] == {
        "partition": 3,
        "actions": {"seal": 1, "compact": 2},
        "recordsBefore": 1500,
        "recordsAfter": 790,
        "bytesBefore": 60_000,
        "bytesAfter": 24_900,
        "tombstonesKept": 6,
        "tombstonesDropped": 3,
        "keylessDropped": 10,
        "abortedDropped": 10,
        "dirtyRatio": 0.75,
        "seconds": 5.0,
        "failed": False,
    }


def test_table_columns_are_as_wide_as_their_contents() -> None:
    assert (
        table(("A", "N"), (("long name", "1"), ("b", "1,000")))
        == "A              N\nlong name      1\nb          1,000"
    )


def test_sizes_are_human_readable() -> None:
    sizes = [size_text(n) for n in (0, 999, 1_500, 153_100_000, 7_200_000_000, 3e12)]
    assert sizes == ["0 B", "999 B", "1.5 kB", "153.1 MB", "7.2 GB", "3.0 TB"]


def test_meter_logs_totals_every_few_seconds(capsys: pytest.CaptureFixture[str]) -> None:
    ticks: Iterator[int] = iter((0, 1000, 5000, 5500, 10_000))
    meter = Meter("compact t-0", replace(SYSTEM, boot_ms=lambda: next(ticks), wall_ms=lambda: NOON_MS))
    for _ in range(4):
        meter(2_500_000, 500_000_000)
    assert (meter.records, meter.nbytes) == (10_000_000, 2_000_000_000)
    assert capsys.readouterr().err.splitlines() == [
        "2026-01-31T12:00:00.000Z compact t-0: 5,000,000 records, 1.0 GB so far (1.00 M records/s, 200.0 MB/s)",
        "2026-01-31T12:00:00.000Z compact t-0: 10,000,000 records, 2.0 GB so far (1.00 M records/s, 200.0 MB/s)",
    ]


class Titled:
    title = "compact orders-3"


def test_result_of_a_work_item_is_logged(capsys: pytest.CaptureFixture[str]) -> None:
    log_result(Titled(), WorkResult((), (), (CLEANED,)))  # type: ignore[arg-type]
    log_result(Titled(), Corrupt("bad CRC"))  # type: ignore[arg-type]
    log_result(Titled(), WorkResult((), (), ()))  # type: ignore[arg-type]
    printed = capsys.readouterr()
    assert printed.out == ""
    assert [re.sub(r"^\d{4}(-\d\d){2}T[\d:.]{12}Z ", "", line) for line in printed.err.splitlines()] == [
        "compact orders-3: done in 2.0 s: 1,000 -> 400 records, 50.0 kB -> 20.0 kB (0.00 M records/s, 25.0 kB/s)",
        "compact orders-3: failed: bad CRC [SPARKLOG_CORRUPT]",
        "compact orders-3: nothing to do",
    ]


class Terminal(StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("stream", "quiet"), [(StringIO, False), (Terminal, True)], ids=["no terminal", "quiet"])
def test_status_line_requires_a_terminal(
    stream: type[StringIO], quiet: bool, monkeypatch: pytest.MonkeyPatch, status_at_once: None
) -> None:
    monkeypatch.setattr(sys, "stderr", err := stream())
    with StatusLine("import", quiet=quiet) as status:
        status("1,000 records")
        time.sleep(0.05)
    assert err.getvalue() == ""


@pytest.fixture
def status_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "STATUS_SECONDS", 0.001)


def test_status_line_is_replaced_and_removed(monkeypatch: pytest.MonkeyPatch, status_at_once: None) -> None:
    monkeypatch.setattr(sys, "stderr", err := Terminal())
    status = StatusLine("backup")
    status.files(12, 40, 1_200_000_000, 5_120_000_000)
    with status:
        while "GB" not in err.getvalue():
            time.sleep(0.01)
    shown = err.getvalue().split("\r")
    assert shown[1].rstrip() == "backup: 12 of 40 files, 1.2 GB of 5.1 GB (0 s)"
    assert {len(line) for line in shown if line} == {79}
    assert shown[-2].strip() == ""


def test_interrupt_message_contains_the_status() -> None:
    status, stop = StatusLine("import", quiet=True), KeyboardInterrupt()
    status("1,000 records")
    status.__exit__(KeyboardInterrupt, stop, None)
    assert interrupted(stop) == "interrupted: 1,000 records"
    assert interrupted(KeyboardInterrupt()) == "interrupted"


def test_progress_goes_to_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    say("here")
    assert capsys.readouterr() == ("", "here\n")
