"""The idempotency registry: which batches are written, skipped or rejected, and which run may write."""

from __future__ import annotations

import pytest

from sparklog.errors import BadRequest, Conflict, Fenced
from sparklog.log.journal.documents import Fields
from sparklog.log.state.commit import WriterBatch
from sparklog.log.state.writer_runs import ENTRY_JSON, WriterEntry, WriterKey, advance, decide
from sparklog.log.topic.topic import Topic
from sparklog.testing.world import World
from tests.log.topics import file_of

NOW_MS = 1_700_000_000_000
ENTRY = WriterEntry(batch=7, count=100, version=40, time_ms=900, run="r2", earlier_runs=("r1", "r0"))


def test_a_batch_of_an_unknown_writer_is_written() -> None:
    assert decide(None, WriterKey("q", 0), 5, "topic 't'", NOW_MS).write


@pytest.mark.parametrize("batch", [8, 9, 1000])
def test_a_newer_batch_is_written(batch: int) -> None:
    assert decide(ENTRY, WriterKey("q", batch, "r2"), 5, "topic 't'", NOW_MS).write


def test_a_replay_of_the_same_size_is_skipped() -> None:
    verdict = decide(ENTRY, WriterKey("q", 7, "r2"), 100, "topic 't'", NOW_MS)
    assert (verdict.write, verdict.take_over) == (False, False)


@pytest.mark.parametrize("count", [99, 0, 101])
def test_a_replay_of_another_size_is_an_error(count: int) -> None:
    with pytest.raises(Conflict, match=f"^replay mismatch: batch 7 .* has {count} records.*replayMismatch=accept"):
        decide(ENTRY, WriterKey("q", 7, "r2"), count, "topic 't'", NOW_MS)
    assert not decide(ENTRY, WriterKey("q", 7, "r2", replay_mismatch="accept"), count, "topic 't'", NOW_MS).write


def test_a_lower_batch_is_an_error() -> None:
    with pytest.raises(Conflict, match=r"^the checkpoint is older than the log: writer 'q' sent batch 6"):
        decide(ENTRY, WriterKey("q", 6, "r2", replay_mismatch="accept"), 100, "topic 't'", NOW_MS)


def test_a_replay_by_a_new_run_takes_over() -> None:
    verdict = decide(ENTRY, WriterKey("q", 7, "r3"), 100, "topic 't'", NOW_MS)
    assert (verdict.write, verdict.take_over) == (False, True)


@pytest.mark.parametrize("batch", [6, 7, 8])
@pytest.mark.parametrize("run", ["r0", "r1"])
def test_a_superseded_run_is_fenced(batch: int, run: str) -> None:
    with pytest.raises(Fenced, match=rf"^run {run} of writer 'q' was superseded by run r2"):
        decide(ENTRY, WriterKey("q", batch, run), 100, "topic 't'", NOW_MS)


def test_a_writer_without_a_run_is_not_fenced() -> None:
    assert decide(ENTRY, WriterKey("q", 8), 1, "topic 't'", NOW_MS).write


@pytest.mark.parametrize("version", [0, 6, 7])
def test_txn_versions_up_to_the_latest_are_skipped(version: int) -> None:
    verdict = decide(ENTRY, WriterKey("q", version, mode="txn"), 3, "topic 't'", NOW_MS)
    assert not verdict.write
    assert "already" in verdict.note


def test_later_txn_versions_are_written() -> None:
    assert decide(ENTRY, WriterKey("q", 8, mode="txn"), 3, "topic 't'", NOW_MS).write


def test_advancing_remembers_four_earlier_runs() -> None:
    entry = None
    for number in range(7):
        entry = advance(entry, WriterBatch("stream", "q", number, f"r{number}", 10), 100 + number, 1000 + number)
    assert entry == WriterEntry(6, 10, 106, 1006, "r6", ("r5", "r4", "r3", "r2"))


def test_a_takeover_keeps_batch_and_count_and_renews_the_entry() -> None:
    entry = advance(ENTRY, WriterBatch("stream", "q", 7, "r3", 1), 50, 950)
    assert entry == WriterEntry(7, 100, 40, 950, "r3", ("r2", "r1", "r0"))


def test_a_writer_without_run_keeps_the_run() -> None:
    assert advance(ENTRY, WriterBatch("stream", "q", 8, None, 1), 50, 950) == WriterEntry(
        8, 1, 50, 950, "r2", ("r1", "r0")
    )


@pytest.mark.parametrize(
    "key",
    [
        WriterKey("", 1),
        WriterKey("x" * 1025, 1),
        WriterKey("q", 1, run="r" * 1025),
        WriterKey("q", -1),
        WriterKey("q", 2**63),
        WriterKey("q", 1, epoch=-1),
        WriterKey("q", 1, mode="batch"),  # type: ignore[arg-type]
        WriterKey("q", 1, replay_mismatch="skip"),  # type: ignore[arg-type]
    ],
)
def test_invalid_writer_keys_are_rejected(key: WriterKey) -> None:
    with pytest.raises(BadRequest):
        key.check()


def counted(runs: int) -> WriterEntry:
    """Return the entry after runs r0, r1, … have written."""
    entry: WriterEntry | None = None
    for number in range(runs):
        key = WriterKey("q", number, f"r{number}")
        entry = advance(entry, key.writer(10, entry), 100 + number, 1000)
    assert entry is not None
    return entry


def test_a_run_with_a_lower_epoch_is_fenced_after_any_number_of_runs() -> None:
    entry = counted(50)
    assert (entry.run, entry.epoch) == ("r49", 50)
    for epoch in (1, 49):
        with pytest.raises(Fenced, match="was superseded by run r49"):
            decide(entry, WriterKey("q", 60, "r0", epoch=epoch), 5, "topic 't'", NOW_MS)
    assert decide(entry, WriterKey("q", 60, "r49", epoch=50), 5, "topic 't'", NOW_MS).write
    assert WriterKey("q", 60, "r49").writer(5, entry).epoch == 50
    assert WriterKey("q", 60, "new").writer(5, entry).epoch == 51


def test_a_given_epoch_orders_runs() -> None:
    entry = advance(None, WriterKey("q", 1, "r1", epoch=NOW_MS).writer(5), 1, 1)
    assert entry.epoch == NOW_MS
    with pytest.raises(Fenced):
        decide(entry, WriterKey("q", 2, "zombie", epoch=NOW_MS - 1), 5, "topic 't'", NOW_MS)
    later = WriterKey("q", 2, "r2", epoch=NOW_MS + 5)
    assert decide(entry, later, 5, "topic 't'", NOW_MS).write
    assert advance(entry, later.writer(5, entry), 2, 2).epoch == NOW_MS + 5


def test_an_epoch_far_ahead_of_the_clock_does_not_fence() -> None:
    """A run wrote while the clock was a year ahead."""
    entry = advance(None, WriterKey("q", 1, "wrong", epoch=NOW_MS + 365 * 86_400_000).writer(5), 1, 1)
    key = WriterKey("q", 2, "right", epoch=NOW_MS)
    assert decide(entry, key, 5, "topic 't'", NOW_MS).write
    entry = advance(entry, key.writer(5, entry), 2, 2)
    assert (entry.run, entry.epoch, entry.earlier_runs) == ("right", NOW_MS, ("wrong",))


def test_entries_of_the_first_release_have_four_earlier_runs() -> None:
    assert decide(ENTRY, WriterKey("q", 8, "r3", epoch=1), 5, "topic 't'", NOW_MS).write
    entry = advance(ENTRY, WriterKey("q", 8, "r3").writer(5, ENTRY), 50, 950)
    assert (entry.epoch, entry.earlier_runs) == (1, ("r2", "r1", "r0"))
    assert advance(ENTRY, WriterBatch("stream", "q", 8, "r3", 5), 50, 950).epoch is None
    stored = ENTRY_JSON.to_json(ENTRY)
    assert set(stored) == {"batch", "count", "version", "timeMs", "run", "earlierRuns"}
    assert ENTRY_JSON.from_json(Fields(stored, "k", "w")) == ENTRY
    assert ENTRY_JSON.from_json(Fields(ENTRY_JSON.to_json(entry), "k", "w")) == entry


def test_a_topic_fences_a_run_after_any_number_of_others() -> None:
    world = World()
    store = world.store
    topic = world.root(store).create_topic("t")

    def write(topic: Topic, run: str, batch: int) -> bool:
        target = topic.log.append_target()
        file = file_of([(0, 1)], read_version=target.read_version, name=f"{run}-{batch}")
        return topic.log.commit_append([file], target, writer=WriterKey("q", batch, run)).skipped

    live = world.root(store).topic("t")
    write(topic, "zombie", 0)
    for number in range(1, 8):
        write(live, f"r{number}", number)
    with pytest.raises(Fenced, match="run zombie of writer 'q' was superseded by run r7"):
        write(topic, "zombie", 8)
    assert not write(live, "r7", 8)
