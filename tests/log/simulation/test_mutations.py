"""Does the simulation notice a broken protocol? Each rule is taken away in turn, and some seed must fail."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from sparklog.errors import Unavailable
from sparklog.log.journal import journal, numbered_objects
from sparklog.log.journal.names import is_commit
from sparklog.log.journal.numbered_objects import NumberedObjects
from sparklog.log.state import (
    append_offsets,
    checkpoint,
    commit_intents,
    commit_log,
    commit_object,
    embedded_commits,
    rewrites,
)
from sparklog.log.state.commit import CREATE, Commit, RemovedSlices
from sparklog.log.state.topic_state import TopicState
from sparklog.log.state.writer_runs import BatchDecision, WriterEntry, WriterKey
from sparklog.testing import faulty_store
from tests.log.simulation.seeds import LOG
from tests.support.simulation.sweeps import BrokenRule, Patch, broken_rules

pytestmark = pytest.mark.sweep

FOREVER = 10**15


def no_commit_id(patch: Patch) -> None:
    """A lost answer is taken for a lost race."""
    real = commit_log.decode_commit

    def nobodys(*given: Any, **named: Any) -> Commit:
        return replace(real(*given, **named), commit_id="somebody else's")

    patch.setattr(commit_log, "decode_commit", nobodys)
    for module in (journal, numbered_objects):
        patch.setattr(module, "peek_commit_id", lambda data: "somebody else's")


def registry_on_first_attempt_only(patch: Patch) -> None:
    """The registry is asked before the first attempt, not when an attempt is re-based."""
    real = append_offsets.decide
    known: dict[int, tuple[WriterKey, BatchDecision]] = {}

    def once(entry: WriterEntry | None, key: WriterKey, count: int, topic: str, now_ms: int) -> BatchDecision:
        if id(key) not in known:
            known[id(key)] = key, real(entry, key, count, topic, now_ms)
        return known[id(key)][1]

    patch.setattr(append_offsets, "decide", once)


def no_age_test_on_the_answer(patch: Patch) -> None:
    """A create that succeeded counts, however long ago the newest version was seen."""
    patch.setattr(numbered_objects, "STALE_MS", FOREVER)


def no_age_test_for_readers(patch: Patch) -> None:
    """A reader that slept goes on probing the next number."""
    patch.setattr(journal, "STALE_MS", FOREVER)


def gaps_end_the_log(patch: Patch) -> None:
    """What is above a missing number is not looked for."""
    patch.setattr(NumberedObjects, "listed", lambda self, after: [])
    patch.setattr(NumberedObjects, "_check_next", lambda self, number, data: None)


def no_topic_id(patch: Patch) -> None:
    """Appends to a topic that was created again are let through."""
    real = commit_intents.check_topic

    def any_topic(topic: str, base: TopicState, topic_id: str) -> None:
        real(topic, base, base.topic_id)

    for module in (append_offsets, commit_intents, rewrites):
        patch.setattr(module, "check_topic", any_topic)


def no_upload_floor(patch: Patch) -> None:
    """Files that the vacuum may have deleted are let through."""
    for module in (append_offsets, commit_intents, rewrites):
        patch.setattr(module, "check_floor", lambda topic, files, floor: None)


def edits_always_stand(patch: Patch) -> None:
    """A rewrite is not compared with what came since it was planned: its outputs go in whatever is there."""

    def what_is_left(rewrite: Any, base: TopicState, table: Any) -> list[Any]:
        def lies_there(item: Any) -> bool:
            removal = RemovedSlices(item.path, (rewrite.edit.partition,), (item.base,), (item.position,))
            return bool(table.find(removal)[0] >= 0)

        return [item for item in rewrite.inputs if lies_there(item)]

    patch.setattr(rewrites, "_inputs_to_remove", what_is_left)


def offsets_not_assigned_again(patch: Patch) -> None:
    """A loser keeps the offsets of its first attempt."""
    real = append_offsets.assign_offsets
    known: dict[int, tuple[object, object]] = {}

    def once(topic: str, files: Any, base: TopicState) -> Any:
        key = id(files[0])
        if key not in known:
            known[key] = files, real(topic, files, base)
        return known[key][1]

    patch.setattr(append_offsets, "assign_offsets", once)
    patch.setattr(commit_log, "check_commit", lambda before, commit, after: None)


def commit_time_is_the_clock(patch: Patch) -> None:
    """Commit time follows the writer's clock, also backwards."""
    real = commit_intents.Draft.commit

    def clock(self: commit_intents.Draft, base: TopicState, commit_id: str, now_ms: int, store_ms: int) -> Commit:
        return replace(real(self, base, commit_id, now_ms, store_ms), time_ms=now_ms, clock_ms=None)

    patch.setattr(commit_intents.Draft, "commit", clock)
    patch.setattr(commit_log, "check_commit", lambda before, commit, after: None)


def head_of_another_version(patch: Patch) -> None:
    """A checkpoint's table lacks its newest slices."""
    real = checkpoint.encode_table

    def short(table: Any) -> Any:
        table.all()
        cut = type(table)(table.version, tuple(part[: len(part) - 1] for part in table.parts()), *table.texts)
        return real(cut)

    patch.setattr(checkpoint, "encode_table", short)


def features_are_forgotten(patch: Patch) -> None:
    """A commit with records in it does not say so: older software would take it for damage."""
    real = commit_intents.features_of
    patch.setattr(commit_intents, "features_of", lambda changes, op: real(changes, op) if op == CREATE else ())


def a_lost_race_keeps_the_path(patch: Patch) -> None:
    """Records in a commit are named by the number of the first attempt."""
    paths: dict[tuple[int, ...], str] = {}
    real = commit_object._locate_inline_file

    def first(commit: Commit) -> None:
        real(commit)
        (inline,) = [file for file in commit.files if is_commit(file.path)]
        inline.path = paths.setdefault(inline.crc, inline.path)

    patch.setattr(commit_object, "_locate_inline_file", first)


def positions_count_from_the_tail(patch: Patch) -> None:
    """Slices in a commit are looked for where its document is."""
    real = commit_object._locate_inline_file

    def shifted(commit: Commit) -> None:
        real(commit)
        (inline,) = [file for file in commit.files if is_commit(file.path)]
        inline.position = tuple(position - commit.inline_start for position in inline.position)

    patch.setattr(commit_object, "_locate_inline_file", shifted)


def what_a_listing_shows(patch: Patch) -> None:
    """A log ends where its listing ends."""

    def listed(self: NumberedObjects, number: int, ahead: bool = False) -> list[bytes]:
        shown = {info.key for info in self.store.list(f"{self.prefix}/_log/0")}
        found = []
        while self.key(number) in shown and (data := self.read(number)) is not None:
            found.append(data)
            number += 1
        return found

    patch.setattr(NumberedObjects, "read_forward", listed)


def no_feature_for_copies(patch: Patch) -> None:
    """A commit that carries documents does not say so: older software would take it for damage."""
    patch.setattr(Commit, "embed", lambda commit, embedded: setattr(commit, "embedded", embedded))
    real = commit_intents.features_of
    patch.setattr(commit_intents, "features_of", lambda changes, op: real(changes, op) if op == CREATE else ())


def copies_in_another_order(patch: Patch) -> None:
    """The newest of the documents that a commit carries comes first."""
    real = embedded_commits.encode_embedded
    patch.setattr(embedded_commits, "encode_embedded", lambda documents: real(documents[::-1]))


def copies_of_lost_races(patch: Patch) -> None:
    """A loser carries what it drafted for the number that it has lost."""
    real = embedded_commits.RecentDocuments.add

    def first(self: embedded_commits.RecentDocuments, made: Commit, data: bytes, most_bytes: int) -> None:
        if made.version not in self._commits:
            real(self, made, data, most_bytes)

    def unchained(self: embedded_commits.RecentDocuments, number: int, crc: Any, most: int, most_bytes: int) -> Any:
        lines = [
            self._commits[at].document
            for at in range(number - embedded_commits.embedded_count(number), number)
            if at in self._commits
        ]
        return embedded_commits.encode_embedded(lines) if lines else None

    patch.setattr(embedded_commits.RecentDocuments, "add", first)
    patch.setattr(embedded_commits.RecentDocuments, "copies_for", unchained)


def every_error_is_definite(patch: Patch) -> None:
    """A failed request counts as one that had no effect, although it may take effect later."""
    patch.setattr(faulty_store, "Unavailable", partial(Unavailable, is_denied=True))


INLINE = {"inline": 700}
CARRIED = "carries other documents"


@broken_rules(
    BrokenRule(no_commit_id, "answers", range(20)),
    BrokenRule(no_commit_id, "answers", range(20), settings={"bucket": True}),
    BrokenRule(registry_on_first_attempt_only, "calm", range(60)),
    BrokenRule(no_age_test_on_the_answer, "collector", range(6, 100), 16),
    BrokenRule(no_age_test_for_readers, "collector", range(180, 260), 202),
    BrokenRule(gaps_end_the_log, "lost", range(30, 60), 31),
    BrokenRule(no_topic_id, "calm", range(640, 700), 640),
    BrokenRule(no_upload_floor, "calm", range(72, 200), 119),
    BrokenRule(edits_always_stand, "calm", range(200)),
    BrokenRule(offsets_not_assigned_again, "calm", range(20)),
    BrokenRule(commit_time_is_the_clock, "calm", range(20)),
    BrokenRule(head_of_another_version, "calm", range(20)),
    BrokenRule(features_are_forgotten, "calm", range(30), settings=INLINE),
    BrokenRule(a_lost_race_keeps_the_path, "calm", range(30), settings=INLINE),
    BrokenRule(positions_count_from_the_tail, "calm", range(30), settings=INLINE),
    BrokenRule(no_feature_for_copies, "calm", range(20), message="does not say in"),
    BrokenRule(copies_in_another_order, "calm", range(20), message=CARRIED),
    BrokenRule(copies_of_lost_races, "calm", range(20), message=CARRIED),
    BrokenRule(what_a_listing_shows, "answers", range(20), settings={"bucket": True}),
    BrokenRule(every_error_is_definite, "errors", range(40), message="without an unknown outcome"),
)
def test_some_seed_fails_without_the_rule(rule: BrokenRule, monkeypatch: Patch) -> None:
    LOG.assert_fails(rule, monkeypatch)


def test_commits_carry_documents() -> None:
    assert LOG.run(0, "calm").counters["carried documents"] > 0


def test_a_late_listing_does_no_harm_on_a_disk(monkeypatch: Patch) -> None:
    what_a_listing_shows(monkeypatch)
    for seed in range(20):
        assert LOG.run(seed, "answers").counters
