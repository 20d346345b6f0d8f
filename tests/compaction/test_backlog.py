"""The backlog of `compact` equals the work of the next run, and is empty after the run."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa
import pytest

from sparklog.compaction.backlog import compaction_backlog
from sparklog.compaction.run import CompactOptions
from sparklog.log.topic.topic import Topic
from sparklog.maintenance.report import MAX_WAIT_MS, Backlog
from sparklog.maintenance.work_items import InProcess, Settings
from sparklog.testing.world import DAY_MS, HOUR_MS, World
from tests.support.compaction import compact_topic

CLEANED = {"cleanup.policy": "compact", "segment.ms": HOUR_MS}


class Filled:
    """A topic with one partition, to which records are appended at the time of the world."""

    def __init__(self, configs: Mapping[str, object]) -> None:
        self.world = World()
        self.topic: Topic = self.world.root().create_topic("t", configs=configs)

    def append(self, *keys: str) -> None:
        now_ms = self.world.now_ms
        self.topic.append(pa.table({"key": list(keys), "value": ["v"] * len(keys), "timestamp": [now_ms] * len(keys)}))

    def backlog(self, defaults: Mapping[str, str] | None = None) -> Backlog:
        return compaction_backlog(self.topic.log.snapshot(), Settings(self.world.now_ms, defaults or {}))

    def compact(self, *, seal_only: bool = False) -> Backlog:
        options = CompactOptions(seal_only=seal_only)
        report = compact_topic(self.topic, Settings(self.world.now_ms), InProcess(), options)
        assert not report.failures
        assert report.backlog == self.backlog()
        return report.backlog


def test_an_open_segment_is_not_in_the_backlog() -> None:
    filled = Filled({"segment.ms": HOUR_MS})
    assert filled.backlog() == Backlog(unsealed_bytes=0)
    filled.append("a")
    backlog = filled.backlog()
    assert backlog.unsealed_bytes
    assert backlog.due == ()
    assert backlog.dirty_ratio is None


def test_a_closed_segment_is_in_the_backlog_since_its_closing() -> None:
    filled = Filled({"segment.ms": 3 * HOUR_MS})
    filled.append("a")
    closed_ms = filled.world.now_ms + 3 * HOUR_MS
    filled.world.now_ms = closed_ms + 5
    (due,) = filled.backlog().due
    assert (due.job, due.since_ms, due.allowed_ms, due.sealing) == ("compact", closed_ms, 3 * HOUR_MS, True)
    assert "1 closed segment " in due.why
    assert filled.compact(seal_only=True) == Backlog(unsealed_bytes=0)


def test_segments_closed_by_size_are_in_the_backlog_since_their_latest_record() -> None:
    filled = Filled({"segment.bytes": 1024, "compression.type": "uncompressed"})
    filled.append(*("k" * 700 + str(number) for number in range(2)))
    newest_ms = filled.world.now_ms
    filled.world.now_ms += HOUR_MS
    filled.append(*("k" * 700 + str(number) for number in range(2)))
    (due,) = filled.backlog().due
    assert (due.since_ms, due.allowed_ms) == (newest_ms, MAX_WAIT_MS)


def test_segments_with_an_open_transaction_are_not_in_the_backlog() -> None:
    from sparklog.transactions.producer import transactional

    filled = Filled({"segment.ms": HOUR_MS})
    transaction = transactional(filled.topic.root, "job").begin()
    transaction.append("t", pa.table({"value": ["a"]}))
    transaction.prepare()
    filled.world.now_ms += 2 * HOUR_MS
    assert filled.backlog().due == ()


def test_a_dirty_log_is_in_the_backlog() -> None:
    filled = Filled(CLEANED)
    filled.append("a", "b", "a")
    filled.world.now_ms += 2 * HOUR_MS
    backlog = filled.backlog()
    assert backlog.dirty_ratio == 1.0
    assert [(due.sealing, due.since_ms > 0) for due in backlog.due] == [(True, True), (False, False)]
    assert backlog.due[1].why == "dirty ratio 1.00, above min.cleanable.dirty.ratio 0.50"
    sealed = filled.compact(seal_only=True)
    assert [due.sealing for due in sealed.due] == [False]
    assert filled.compact() == Backlog(unsealed_bytes=0, dirty_ratio=0.0)


def test_max_compaction_lag_determines_the_start_of_the_backlog() -> None:
    filled = Filled({**CLEANED, "min.cleanable.dirty.ratio": "0.9", "max.compaction.lag.ms": 12 * HOUR_MS})
    filled.append(*map(str, range(50)))
    filled.world.now_ms += DAY_MS
    filled.compact()
    filled.append("1")
    dirty_ms = filled.world.now_ms
    filled.world.now_ms += 6 * HOUR_MS
    assert [due.sealing for due in filled.backlog().due] == [True]
    filled.world.now_ms += 7 * HOUR_MS
    due = filled.backlog().due[-1]
    assert (due.since_ms, due.allowed_ms) == (dirty_ms + 12 * HOUR_MS, 12 * HOUR_MS)
    assert due.why == "uncompacted records older than max.compaction.lag.ms"
    assert filled.compact().due == ()


@pytest.mark.parametrize("keyless", [False, True])
def test_the_backlog_uses_run_defaults_and_skips_keyless_records(keyless: bool) -> None:
    """Keyless records of a topic that is only compacted by default are not due, because each run would report them."""
    filled = Filled({"segment.ms": HOUR_MS})
    if keyless:
        filled.topic.append(pa.table({"value": ["v"], "timestamp": [filled.world.now_ms]}))
    else:
        filled.append("a")
    filled.world.now_ms += 2 * HOUR_MS
    backlog = filled.backlog({"cleanup.policy": "compact"})
    assert [due.sealing for due in backlog.due] == [True] if keyless else [True, False]
    assert (backlog.dirty_ratio is None) == keyless
