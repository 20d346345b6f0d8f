"""The plain model of the cleaner has the same results as Kafka's cleaner, so other tests can use it."""

from __future__ import annotations

import random
import zlib

import pytest

from sparklog.format import compression
from tests.compaction.fixture_stages import OLD_FORMATS, Pass, all_passes
from tests.compaction.histories import History
from tests.compaction.plain_cleaner import PlainConfigs, clean, decoded, last_stable

TOLD = {
    "first_dirty": "firstDirtyOffset",
    "first_uncleanable": "firstUncleanableOffset",
    "clean_bytes": "cleanBytes",
    "cleanable_bytes": "cleanableBytes",
    "ratio": "cleanableRatio",
    "end": "endOffset",
    "messages_read": "messagesRead",
    "messages_written": "messagesWritten",
    "keyless": "invalidMessagesRead",
}


@pytest.mark.parametrize(
    "one", [each for each in all_passes() if each.before.fixture != OLD_FORMATS], ids=lambda each: each.name
)
def test_the_plain_cleaner_agrees_with_kafka(one: Pass, monkeypatch: pytest.MonkeyPatch) -> None:
    # Index positions are equal to Kafka's if its gzip batches have the size of zlib's.
    monkeypatch.setattr(compression, "_isal", lambda: zlib)
    log, after = one.before.plain, one.after.plain
    told = clean(log, one.plain_configs, now_ms=one.now_ms)
    cleaner = one.after.cleaner
    assert told.chosen == cleaner["chosen"]
    if told.chosen:
        assert {theirs: getattr(told, ours) for ours, theirs in TOLD.items()} == {
            theirs: cleaner[theirs] for theirs in TOLD.values()
        }
        assert log.first_dirty_offset == one.after.first_dirty_offset
    assert [each.base for each in log.segments] == [each["baseOffset"] for each in cleaner["segmentsAfterCleaning"]]
    assert last_stable(log) == one.after.last_stable
    # A round ends with retention, which removes segments at the start.
    mine = log.segments[-len(after.segments) :]
    for segment, theirs in zip(mine, after.segments, strict=True):
        assert segment.batches == theirs.batches
        plain = [batch.to_bytes() for batch in segment.batches if not batch.codec]
        assert plain == [batch.raw for batch in theirs.batches if not batch.codec]
        assert segment.aborted == theirs.aborted
        assert (segment.index, segment.time_index) == (theirs.index, theirs.time_index)
        assert segment.largest_ts == one.after.files[after.segments.index(theirs)].largest_ts


@pytest.mark.parametrize("seed", range(5))
def test_the_latest_value_of_every_key_survives_random_histories(seed: int) -> None:
    history = History(random.Random(seed), codecs=(0, 2, 4), append_time=0.2)
    history.write(120)
    history.end_transactions()
    history.roll()
    aborted = {entry.first: entry for segment in history.log.segments for entry in segment.aborted}
    newest = {}
    for batch in (batch for segment in history.log.segments for batch in segment.batches):
        dead = any(e.producer_id == batch.producer_id and e.first <= batch.base <= e.last for e in aborted.values())
        if not batch.control and not dead:
            newest.update({record.key: record for record in batch.records})
    configs = PlainConfigs(segment_bytes=600, min_cleanable_dirty_ratio=0.0, keep_empty_segments=False)
    assert clean(history.log, configs, now_ms=history.now_ms).chosen
    left = [
        record
        for segment in history.log.segments
        for batch in segment.batches
        for record in next(decoded(batch.to_bytes())).records
        if not batch.control
    ]
    assert left == sorted(newest.values(), key=lambda record: record.offset)
    assert all(segment.batches for segment in history.log.segments[:-1])
