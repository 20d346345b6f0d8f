"""Timestamps in the future delay retention, as in Kafka; retain, doctor and the report show where and until when."""

from __future__ import annotations

import pyarrow as pa
import pytest

from sparklog.doctor.job_checks import check_jobs
from sparklog.log.topic.root import RootView
from sparklog.maintenance.report import FutureRecord
from sparklog.maintenance.work_items import Settings
from sparklog.retention.backlog import expiry_backlog
from sparklog.retention.retain import retain_topic, summary
from sparklog.testing.world import DAY_MS, HOUR_MS, World
from sparklog.tools.report.gather import gather
from sparklog.tools.report.report_data import health

FAR = {"message.timestamp.after.max.ms": 2**63 - 1, "segment.bytes": 1024, "compression.type": "uncompressed"}


@pytest.mark.parametrize("policy", ["delete", "compact"])
@pytest.mark.parametrize("ahead_ms", [HOUR_MS, HOUR_MS + 1, 1000 * DAY_MS, 2**60])
def test_future_record_is_reported(policy: str, ahead_ms: int) -> None:
    world = World()
    root = world.root()
    topic = root.create_topic("t", partitions=2, configs={**FAR, "cleanup.policy": policy, "retention.ms": DAY_MS})
    now = world.now_ms
    for time in (now, now + ahead_ms, now):
        rows = {"key": ["k"] * 2, "value": ["v" * 900] * 2, "timestamp": [now, time], "partition": [1, 1]}
        topic.append(pa.table({**rows, "partition": pa.array([1, 1], pa.int32())}))
    settings = Settings(now)
    is_named = policy == "delete" and ahead_ms > HOUR_MS
    expected = (FutureRecord(1, 3, now + ahead_ms, now + ahead_ms + DAY_MS),) if is_named else ()
    assert expiry_backlog(topic.log.snapshot(), settings).future == expected
    report = retain_topic(topic, settings)
    assert report.future == expected
    text = "partition 1 has a record with a future timestamp (offset 3, "
    assert (f"t: {text}" in summary([report])) is is_named
    assert any(text in check.found for check in check_jobs(root)) is is_named
    notes = [note.text for note in health(gather(RootView(root), settings)).notes]
    assert any(text in note for note in notes) is is_named
