"""The idempotency registry: which batches are written, skipped or refused, and which run may write."""

from __future__ import annotations

import pytest

from sparklog.errors import BadRequest, Conflict, Fenced
from sparklog.log.commit import Writer
from sparklog.log.registry import Entry, WriterKey, advance, decide

ENTRY = Entry(batch=7, count=100, version=40, time_ms=900, run="r2", earlier_runs=("r1", "r0"))


def test_an_unknown_writer_writes() -> None:
    assert decide(None, WriterKey("q", 0), 5, "topic 't'").write


@pytest.mark.parametrize("batch", [8, 9, 1000])
def test_a_newer_batch_is_written(batch: int) -> None:
    assert decide(ENTRY, WriterKey("q", batch, "r2"), 5, "topic 't'").write


def test_a_replay_of_the_same_size_is_skipped() -> None:
    verdict = decide(ENTRY, WriterKey("q", 7, "r2"), 100, "topic 't'")
    assert (verdict.write, verdict.take_over) == (False, False)


@pytest.mark.parametrize("count", [99, 0, 101])
def test_a_replay_of_another_size_is_an_error(count: int) -> None:
    with pytest.raises(Conflict, match=f"^replay mismatch: batch 7 .* has {count} records.*replayMismatch=accept"):
        decide(ENTRY, WriterKey("q", 7, "r2"), count, "topic 't'")
    assert not decide(ENTRY, WriterKey("q", 7, "r2", replay_mismatch="accept"), count, "topic 't'").write


def test_a_lower_batch_is_an_error() -> None:
    with pytest.raises(Conflict, match=r"^checkpoint older than the log: writer 'q' sends batch 6"):
        decide(ENTRY, WriterKey("q", 6, "r2", replay_mismatch="accept"), 100, "topic 't'")


def test_a_skipped_replay_of_a_new_run_takes_over() -> None:
    verdict = decide(ENTRY, WriterKey("q", 7, "r3"), 100, "topic 't'")
    assert (verdict.write, verdict.take_over) == (False, True)


@pytest.mark.parametrize("batch", [6, 7, 8])
@pytest.mark.parametrize("run", ["r0", "r1"])
def test_a_superseded_run_is_fenced(batch: int, run: str) -> None:
    with pytest.raises(Fenced, match=rf"^run {run} of writer 'q' was taken over by run r2"):
        decide(ENTRY, WriterKey("q", batch, run), 100, "topic 't'")


def test_without_a_run_nobody_is_fenced() -> None:
    assert decide(ENTRY, WriterKey("q", 8), 1, "topic 't'").write


@pytest.mark.parametrize("version", [0, 6, 7])
def test_txn_versions_at_or_below_the_newest_are_skipped(version: int) -> None:
    verdict = decide(ENTRY, WriterKey("q", version, mode="txn"), 3, "topic 't'")
    assert not verdict.write
    assert "already" in verdict.note


def test_txn_versions_above_are_written() -> None:
    assert decide(ENTRY, WriterKey("q", 8, mode="txn"), 3, "topic 't'").write


def test_advancing_remembers_four_earlier_runs() -> None:
    entry = None
    for number in range(7):
        entry = advance(entry, Writer("stream", "q", number, f"r{number}", 10), 100 + number, 1000 + number)
    assert entry == Entry(6, 10, 106, 1006, "r6", ("r5", "r4", "r3", "r2"))


def test_a_take_over_keeps_batch_and_count_and_is_a_sign_of_life() -> None:
    entry = advance(ENTRY, Writer("stream", "q", 7, "r3", 1), 50, 950)
    assert entry == Entry(7, 100, 40, 950, "r3", ("r2", "r1", "r0"))


def test_a_writer_without_run_keeps_the_run() -> None:
    assert advance(ENTRY, Writer("stream", "q", 8, None, 1), 50, 950) == Entry(8, 1, 50, 950, "r2", ("r1", "r0"))


@pytest.mark.parametrize(
    "key",
    [
        WriterKey("", 1),
        WriterKey("x" * 1025, 1),
        WriterKey("q", 1, run="r" * 1025),
        WriterKey("q", -1),
        WriterKey("q", 2**63),
        WriterKey("q", 1, mode="batch"),  # type: ignore[arg-type]
        WriterKey("q", 1, replay_mismatch="skip"),  # type: ignore[arg-type]
    ],
)
def test_keys_that_are_none(key: WriterKey) -> None:
    with pytest.raises(BadRequest):
        key.check()
