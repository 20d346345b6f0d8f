"""Every pass of Kafka's cleaner is repeated: a stage that is imported and cleaned once equals Kafka's next stage.

Empty segments are ignored on both sides, because Kafka leaves an empty segment if no record of a group is retained, and
sparklog does not. Therefore, if a group starts with empty segments, the resulting segment has their base offset in
Kafka, and the base offset of the first segment with data in sparklog.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from sparklog.compaction.clean_plan import plan_cleaning
from sparklog.compaction.clean_work import CleanResult
from sparklog.format.batch_scan import scan_headers
from sparklog.format.decode import decode
from sparklog.format.record_batch import BatchHeaders
from sparklog.format.transaction_index import parse
from sparklog.kafka.importing.run import ImportOptions, import_log_dir
from sparklog.log.journal.names import file_key
from sparklog.log.state.commit_intents import LogStartIntent
from sparklog.log.state.rewrites import RewriteIntent
from sparklog.log.state.segments import RollRule, segments_of
from sparklog.log.topic.topic import Topic
from sparklog.maintenance.work_items import Settings
from sparklog.retention.expiry_plan import Expiry, plan_expiry
from sparklog.storage.store import Store
from tests.compaction.fixture_stages import Pass, Stage, all_passes
from tests.support.counted_root import CountedRoot

PASSES = {each.name: each for each in all_passes()}
HEADER_FIELDS = (
    *("base_offset", "leader_epoch", "attributes", "last_offset_delta", "base_timestamp", "max_timestamp"),
    *("producer_id", "producer_epoch", "base_sequence", "count"),
)


@dataclass(frozen=True)
class Found:
    """A segment in a root or in a log directory."""

    base: int
    data: bytes
    transactions: bytes

    @property
    def headers(self) -> BatchHeaders:
        return scan_headers(self.data)


def imported(counted_root: CountedRoot, stage: Stage) -> Topic:
    names = import_log_dir(
        counted_root.root, stage.folder, ImportOptions(configs=dict(stage.configs.explicit), force=True)
    ).names
    assert names == ["compacted"]
    return counted_root.root.topic("compacted")


def cleaned_once(topic: Topic, each: Pass) -> CleanResult | None:
    """Run and commit one pass with Kafka's clock and map. Return None if no pass was due."""
    settings = Settings(now_ms=each.now_ms)
    works = plan_cleaning(topic.store, topic.log.snapshot(), settings, slots=each.after.cleaner.get("offsetMapSlots"))
    assert len(works) <= 1
    if not works:
        return None
    done = works[0].run()
    if not done.rewrites:
        return None
    state = topic.log.state()
    outcome = topic.log.commit(RewriteIntent(works[0].op, state.topic_id, done.rewrites, done.files))
    assert outcome.commit is not None
    assert not outcome.dropped
    return done


def segments(topic: Topic) -> list[Found]:
    """Return all slices: the sealed segments and the active segment."""
    found = []
    slices = topic.log.snapshot().slices.all()
    for row in range(len(slices)):
        key = file_key(topic.name, slices.path(row))
        data = topic.store.get(key, int(slices.position[row]), int(slices.size[row]))
        assert int(slices.shift[row]) == 0
        found.append(Found(int(slices.base[row]), data, beside(topic.store, key)))
    return found


def beside(store: Store, key: str) -> bytes:
    other = key.removesuffix(".log") + ".txnindex"
    return store.get(other) if key.endswith(".log") and store.stat(other) is not None else b""


def base_here(each: Pass, base: int) -> int:
    """Return the base offset in sparklog of a segment with the offset `base` in Kafka after the pass."""
    later = [file for file in each.before.files if file.base >= base]
    empty = later and later[0].base == base and not later[0].data
    return next(file.base for file in later if file.data) if empty else base


def expected_segments(each: Pass) -> list[Found]:
    stage = each.after
    last = len(stage.files) - 1
    return [
        Found(base_here(each, file.base), file.data, b"" if at == last else file.transaction_index)
        for at, file in enumerate(stage.files)
        if file.data
    ]


def assert_same_segment(found: Found, expected: Found) -> None:
    """Compare all bytes of uncompressed segments, and the headers and records of compressed segments."""
    assert found.base == expected.base
    ours, theirs = found.headers, expected.headers
    for name in HEADER_FIELDS:
        assert getattr(ours, name).tolist() == getattr(theirs, name).tolist(), name
    plain = theirs.codec == 0
    for row in np.flatnonzero(plain):
        at, to = int(ours.position[row]), int(theirs.position[row])
        size = int(theirs.size[row])
        assert found.data[at : at + size] == expected.data[to : to + size]
    if plain.all():
        assert found.data == expected.data
    wanted = ("offset", "timestamp", "key", "value", "headers")
    mine, other = decode(found.data, ours, columns=wanted), decode(expected.data, theirs, columns=wanted)
    for column in ("offset", "timestamp"):
        assert getattr(mine, column).tolist() == getattr(other, column).tolist()
    for column in ("key", "value", "headers"):
        assert getattr(mine, column).to_pylist() == getattr(other, column).to_pylist()
    assert found.transactions == expected.transactions
    if found.transactions:
        assert len(parse(found.transactions, found.base))


def expired(topic: Topic, each: Pass) -> Expiry:
    """Delete expired segments, with Kafka's clock."""
    snapshot = topic.log.snapshot()
    state, configs = snapshot.state, each.before.configs
    log_end = int(state.log_end[0])
    expiry = plan_expiry(
        segments_of(snapshot.slices.all(), 0, log_end, RollRule.of(configs, state.topic_id)),
        partition=0,
        log_start=int(state.log_start[0]),
        log_end=log_end,
        high_watermark=log_end,
        configs=configs,
        now_ms=each.now_ms,
    )
    topic.log.commit(LogStartIntent(state.topic_id, {0: expiry.log_start}))
    return expiry


def expire(topic: Topic, each: Pass) -> int:
    """Delete expired segments, as at the end of a round for a topic with `delete`. Return the expected log start.

    Kafka also moves the log start past expired empty segments. In sparklog, there are no empty segments, and the log
    start does not move.
    """
    expiry = expired(topic, each)
    told = each.after.cleaner
    deleted = told["segmentsAfterCleaning"][: told["deletedSegments"]]
    assert [item.segment.base for item in expiry.expired] == [item["baseOffset"] for item in deleted if item["size"]]
    only_empty = bool(deleted) and not any(item["size"] for item in deleted)
    return each.before.log_start if only_empty else each.after.log_start


@pytest.mark.parametrize("name", sorted(PASSES))
def test_a_stage_cleaned_once_is_the_next_stage(name: str, tmp_path: Path) -> None:
    assert_pass(PASSES[name], CountedRoot("memory", tmp_path))


def assert_pass(each: Pass, counted_root: CountedRoot) -> None:
    """Assert that a pass has the same result as Kafka's pass."""
    topic = imported(counted_root, each.before)
    done = cleaned_once(topic, each)
    told = each.after.cleaner
    assert (done is not None) == told["chosen"]
    if done is not None:
        assert_told(topic, done, each)
    log_start = expire(topic, each)
    state = topic.log.state()
    assert state.log_start.tolist() == [log_start]
    assert state.log_end.tolist() == [each.after.log_end]
    found, expected = segments(topic), expected_segments(each)
    assert [segment.base for segment in found] == [segment.base for segment in expected]
    for mine, other in zip(found, expected, strict=True):
        assert_same_segment(mine, other)


def assert_told(topic: Topic, done: CleanResult, each: Pass) -> None:
    """Compare the output of Kafka's cleaner: the new checkpoint, the segments before retention, and the statistics."""
    told = each.after.cleaner
    cleaned = done.cleaned
    assert cleaned is not None
    assert topic.log.state().first_dirty_offset.tolist() == [told["endOffset"]]
    assert cleaned.plan.first_uncleanable == told["firstUncleanableOffset"]
    assert done.more == (told["endOffset"] < told["firstUncleanableOffset"])
    after = [(item["baseOffset"], item["size"], item["largestTimestamp"]) for item in told["segmentsAfterCleaning"]]
    slices = topic.log.snapshot().slices.all()
    assert slices.base.tolist() == [base_here(each, base) for base, size, _ in after if size]
    assert slices.max_ts.tolist() == [greatest for _, size, greatest in after if size]
    counts = cleaned.counts
    assert counts.bytes_read == told["bytesRead"]
    assert counts.messages_read == told["messagesRead"]
    assert counts.messages_written == told["messagesWritten"]
    assert counts.keyless_dropped == told["invalidMessagesRead"]
    packed = any(segment.headers.codec.any() for segment in segments(topic))
    if not packed:
        assert slices.size.tolist() == [size for _, size, _ in after if size]
        assert counts.bytes_written == told["bytesWritten"]
