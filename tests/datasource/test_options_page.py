"""docs/reference/spark-options.md has every option, in the order of the code, and the code's defaults."""

from __future__ import annotations

import re
from pathlib import Path

from sparklog.datasource.option_names import READ, SHARED, WRITE
from sparklog.datasource.options import parse_options
from sparklog.log.topic.root_view import LOCAL_POLL_MS

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "spark-options.md").read_text()
NAME = re.compile(r"^\| `([\w.]+)`", re.MULTILINE)


def test_the_page_of_options_has_every_option() -> None:
    shared, rest = PAGE.split("\n## Reads\n")
    reads, writes = rest.split("\n## Writes\n")
    assert NAME.findall(shared) == list(SHARED)
    assert NAME.findall(reads) == list(READ)
    assert NAME.findall(writes) == list(WRITE)


def test_defaults_on_the_page_of_options_are_the_codes() -> None:
    shown = dict(re.findall(r"^\| `([\w.]+)` \| `?([^|`]+)`? \|", PAGE, re.MULTILINE))
    options = parse_options({})
    read, write = options.read, options.write
    minutes = {
        "maxTriggerDelay": (read.max_trigger_delay_ms, "15m"),
        "metadata.max.age.ms": (read.metadata_max_age_ms, "5 minutes"),
        "kafka.session.timeout.ms": (read.session_timeout_ms, "5 minutes"),
        "transaction.timeout.ms": (write.transaction_timeout_ms, "1 minute"),
    }
    for name, (milliseconds, words) in minutes.items():
        assert milliseconds == int(re.match(r"\d+", words)[0]) * 60_000
        assert shown[name] == words
    assert write.buffer_bytes == 64 << 20
    assert shown["write.buffer.bytes"] == "64 MiB"
    assert shown["poll.interval.ms"] == str(LOCAL_POLL_MS)
    assert shown["num.partitions"] == str(write.partitions)
    assert shown["kafka.isolation.level"] == read.isolation
    assert shown["corruptRecords"] == read.corrupt_records
    assert shown["replayMismatch"] == write.replay_mismatch
    assert shown["failOnDataLoss"] == str(read.fail_on_data_loss).lower()
    assert shown["includeHeaders"] == str(read.include_headers).lower()
    assert shown["auto.create.topics.enable"] == str(write.auto_create).lower()
