"""Documents embedded in commits: what is written, how few objects opening a log takes, and damage of every kind."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any
from unittest import mock

import pytest
from _pytest.mark import ParameterSet

from sparklog.errors import BadRequest, Corrupt, SparklogError
from sparklog.log.journal import documents
from sparklog.log.journal.documents import CARRIED_COMMITS, check_stored, document_of, peek_commit_id
from sparklog.log.journal.names import checkpoint_key, commit_key
from sparklog.log.journal.numbered_objects import NumberedObjects
from sparklog.log.state import commit_log, embedded_commits
from sparklog.log.state.commit import Commit
from sparklog.log.state.commit_object import decode_commit, encode_commit
from sparklog.log.state.embedded_commits import commits_to_read, decode_embedded, embedded_count, encode_embedded
from sparklog.log.state.history import History
from sparklog.log.state.topic_state import TopicState
from sparklog.log.topic.topic import Topic
from sparklog.testing.faulty_store import Call, Crash, Fault, FaultKind, FaultyStore
from sparklog.testing.world import World
from sparklog.testing.wrapper_stores import CountingStore, HookedStore
from sparklog.tools.verification.findings import Finding
from sparklog.tools.verification.run import verify_root
from tests.log.protocol import other, publish
from tests.support.counted_root import Bucket
from tests.support.seeds import first_of
from tests.support.small_limits import small_limits


@pytest.fixture
def world() -> World:
    world = World()
    world.store = Bucket(world.clock)
    return world


def written(world: World, commits: int, configs: dict[str, object] | None = None) -> Topic:
    """Create a topic in a bucket with this many commits after the first one, without threads."""
    with mock.patch.object(Bucket, "parallel_reads", 1):
        topic = world.root(world.store).create_topic("t", partitions=2, configs=configs)
        for _ in range(commits):
            publish(topic, 1)
    return topic


def stored(world: World, number: int) -> bytes:
    return world.store.get(commit_key("t", number))


def replaced(world: World, number: int, data: bytes) -> None:
    world.store.delete(commit_key("t", number))
    assert world.store.create(commit_key("t", number), data)


def of_log(world: World) -> list[Finding]:
    """Return the findings of verify about the log. The data files in the commits of these tests do not exist."""
    return [finding for finding in verify_root(world.store).findings if finding.kind != "missing"]


def flipped(data: bytes, place: int) -> bytes:
    return data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]


def carried_by(world: World, number: int) -> list[bytes]:
    data = stored(world, number)
    return decode_embedded(embedded_commits.embedded_in(decode_commit(data, commit_key("t", number), number), data))


def bases(topic: Topic) -> list[int]:
    return [int(base) for base in topic.log.snapshot().slices.all().base]


def test_number_of_embedded_commits() -> None:
    assert [embedded_count(number) for number in range(17)] == [0, 1, 0, 3, 0, 5, 0, 7, 0, 1, 0, 3, 0, 5, 0, 15, 0]
    assert (embedded_count(63), embedded_count(127), embedded_count(255), embedded_count(2**20 - 1)) == (
        63,
        127,
        127,
        127,
    )
    for first in (0, 5, 128, 200):
        for last in range(first, first + 128):
            numbers = commits_to_read(first, last)
            got = [
                number for carrier in numbers for number in range(carrier, carrier - embedded_count(carrier) - 1, -1)
            ]
            assert [number for number in got if number >= first] == list(range(last, first - 1, -1))


def test_a_commit_embeds_the_documents_of_earlier_commits(world: World) -> None:
    written(world, 20)
    for number in range(21):
        data = stored(world, number)
        before = [document_of(stored(world, earlier)) for earlier in range(number - embedded_count(number), number)]
        assert carried_by(world, number) == before
        commit = decode_commit(data, commit_key("t", number), number)
        assert (CARRIED_COMMITS in commit.read_features) == (CARRIED_COMMITS in commit.write_features)
        assert CARRIED_COMMITS in commit.read_features or not before
        assert peek_commit_id(data) == commit.commit_id
        check_stored(data, "t")
    assert of_log(world) == []


def test_inline_records_follow_the_embedded_commits(world: World) -> None:
    topic = world.root(world.store).create_topic("t")
    for number in range(7):
        topic.append([{"value": f"value {number}"}])
    data = stored(world, 7)
    commit = decode_commit(data, commit_key("t", 7), 7)
    assert commit.embedded is not None
    assert commit.inline is not None
    assert commit.files[0].size == len(data)
    assert commit.files[0].starts[0] == commit.inline_start == len(document_of(data)) + commit.embedded.nbytes
    assert topic.scan(columns=["value"]).to_table().num_rows == 7
    assert other(world, world.store).scan(columns=["value"]).to_table().num_rows == 7
    assert of_log(world) == []


def test_every_damaged_byte_and_length_is_detected(world: World) -> None:
    written(world, 3)
    data, key = stored(world, 3), commit_key("t", 3)
    for place in range(0, len(data), 3):
        with pytest.raises((Corrupt, BadRequest)):
            decode_commit(flipped(data, place), key, 3)
    for wrong in (data[:-1], data + b"\0", document_of(data)):
        assert peek_commit_id(wrong) is None
        for check in (lambda: decode_commit(wrong, key, 3), lambda: check_stored(wrong, key)):  # noqa: B023
            with pytest.raises(Corrupt):
                check()
    with pytest.raises(Corrupt):
        check_stored(flipped(data, len(data) - 1), key)


def test_opening_takes_at_most_twelve_requests_at_any_version(world: World) -> None:
    """The root's id, two listings, the checkpoint and its table, commits, and the next commit, which does not exist."""
    topic = written(world, 127)
    counts = {}
    for number in range(128, 255):
        with mock.patch.object(Bucket, "parallel_reads", 1):
            publish(topic, 1)
        if number not in (128, 190, 250, 252, 253, 254):
            continue
        store = CountingStore(world.store)
        opened = world.root(store).topic("t")
        assert opened.log.snapshot(refresh=False).state == topic.log.state()
        counts[number] = sum(store.counts.values())
        assert store.counts["list"] == 2
    assert bases(opened) == list(range(254))
    assert max(counts.values()) == counts[253] == counts[254] == 12
    assert counts[128] == 7


@pytest.mark.sweep
@pytest.mark.parametrize("checkpoint", first_of([3, 126, 127, 60, 100], 3))
def test_opening_with_a_checkpoint_at_any_version(world: World, checkpoint: int) -> None:
    """After a mebibyte of commits, or as the latest commit of a race."""
    topic = written(world, checkpoint)
    topic.log.write_checkpoint()
    most = 0
    for _ in range(checkpoint, checkpoint + 127):
        publish(topic, 1)
        store = CountingStore(world.store)
        assert world.root(store).topic("t").log.snapshot(refresh=False).state == topic.log.state()
        most = max(most, sum(store.counts.values()))
    assert most <= 12


@pytest.mark.sweep
def test_a_process_with_a_single_commit_embeds_the_commits_it_has_read(world: World) -> None:
    written(world, 0)
    for _ in range(255):
        publish(other(world, world.store), 1)
    for number in range(1, 256):
        # After a checkpoint, a new process has only read the commits since the checkpoint.
        assert len(carried_by(world, number)) == min(
            embedded_count(number), number if number < 128 else number - 128
        ), number
    assert of_log(world) == []


def test_a_writer_that_loses_a_race_embeds_the_winners_commit(world: World) -> None:
    written(world, 3)
    hooked = HookedStore(world.store)
    loser, winner = other(world, hooked), other(world, world.store)
    for _ in range(4):
        hooked.before_next("create:commit", lambda: publish(winner, 2))
        publish(loser, 1)
    for number in range(4, 12):
        earlier = range(number - embedded_count(number), number)
        assert carried_by(world, number) == [document_of(stored(world, item)) for item in earlier]
    assert bases(other(world, world.store)) == bases(loser)


def damages() -> list[ParameterSet]:
    def deleted(world: World, number: int) -> None:
        world.store.delete(commit_key("t", number))

    def in_document(world: World, number: int) -> None:
        replaced(world, number, flipped(stored(world, number), 40))

    def after_document(world: World, number: int) -> None:
        data = stored(world, number)
        replaced(world, number, flipped(data, len(data) - 1))

    def cut(world: World, number: int) -> None:
        replaced(world, number, stored(world, number)[:-2])

    hows = (deleted, after_document, in_document, cut)
    return [pytest.param(how, marks=() if how in hows[:2] else pytest.mark.sweep, id=how.__name__) for how in hows]


def outcome(world: World) -> object:
    try:
        topic = other(world, world.store)
        return topic.log.state().version, bases(topic)
    except SparklogError as error:
        return type(error), str(error), getattr(error, "file", None)


@pytest.mark.parametrize("damage", damages())
def test_damage_of_any_commit_does_not_lose_other_commits(
    world: World, damage: Callable[[World, int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Opening yields what was written, or the error that reading the commits one by one reports."""
    written(world, 154)
    whole = outcome(world)
    undamaged = {number: stored(world, number) for number in range(128, 155)}
    opened = 0
    for number, data in undamaged.items():
        damage(world, number)
        found = outcome(world)
        with monkeypatch.context() as patch:
            patch.setattr(Bucket, "lists_after", False)
            one_by_one = outcome(world)
        assert found in (whole, one_by_one), number
        opened += found == whole
        if damage.__name__ == "deleted":
            # A log ends at its first gap, even if later commits embed the missing one.
            assert found == one_by_one
        world.store.delete(commit_key("t", number))
        assert world.store.create(commit_key("t", number), data)
    assert outcome(world) == whole
    assert opened > 10 or damage.__name__ == "deleted"


def forged(world: World, number: int, change: Callable[[Commit], Commit]) -> None:
    """Embed other documents than those of the log in a commit, and create all later commits after this commit."""
    key, crc = commit_key("t", number), None
    lines = [change(decode_commit(line, key, at, check_sections=False)) for at, line in lines_before(world, number)]
    data = stored(world, number)
    commit = replace(decode_commit(data, key, number), embedded=None)
    commit.embed(encode_embedded([encode_commit(replace(line, embedded=None)) for line in lines]))
    data = encode_commit(commit)
    replaced(world, number, data)
    crc = decode_commit(data, key, number).crc
    later = number + 1
    while world.store.stat(commit_key("t", later)):
        after = replace(decode_commit(stored(world, later), "", later), embedded=None, prev_crc=crc)
        replaced(world, later, encode_commit(after))
        crc = decode_commit(stored(world, later), "", later).crc
        later += 1


def lines_before(world: World, number: int) -> list[tuple[int, bytes]]:
    return [(at, document_of(stored(world, at))) for at in range(number - embedded_count(number), number)]


def never_wrong(commits: dict[int, Commit], first: int, last: int, crc: int | None) -> list[Commit]:
    return [commits[number] for number in range(first, last + 1)]


def test_a_copy_outside_the_chain_is_ignored(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = written(world, 12)
    truth = topic.log.snapshot()
    forged(world, 7, lambda line: replace(line, time_ms=line.time_ms + 1))
    opened = other(world, world.store)
    assert bases(opened) == bases(topic)
    assert opened.log.state().time_ms == truth.state.time_ms
    history = History(world.store, "t").at(6)
    assert history.state.time_ms == truth.state.time_ms - 0
    assert decode_commit(carried_by(world, 7)[3], "", 3, check_sections=False).time_ms != truth.state.time_ms
    with monkeypatch.context() as patch:
        # The verification of the chain excludes it.
        for module in (commit_log, embedded_commits):
            patch.setattr(module, "verified_chain", never_wrong)
        with pytest.raises(Corrupt, match="chain of commits is broken"):
            other(world, world.store)


@pytest.mark.parametrize("checked", [True, False])
def test_a_commit_of_a_deleted_log_is_ignored(world: World, checked: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A writer that continues after a restore withdraws its commit. Until then, the commit must not add the old log."""
    written(world, 130)
    before = {number: stored(world, number) for number in range(128, 131)}
    stale = other(world, world.store)
    assert stale.log.state().version == 130
    for number in before:
        world.store.delete(commit_key("t", number))
    restored = other(world, world.store)
    world.advance(1)
    for _ in before:
        publish(restored, 5)
    hooked = HookedStore(world.store)
    seen: list[object] = []
    hooked.after_next("create:commit", lambda: seen.append(outcome(world)))
    if not checked:
        monkeypatch.setattr(commit_log, "OWN_OBJECTS", 1)
    late = world.root(hooked).topic("t")
    late.log._latest = stale.log._latest
    late.log._documents = stale.log._documents
    with pytest.raises(SparklogError):
        publish(late, 1)
    assert seen
    assert seen[0][0] == (Corrupt if checked else 131)  # type: ignore[index]


@pytest.mark.parametrize("hidden", [(140,), (139, 140), (128, 129), (133,), tuple(range(128, 141))])
def test_a_listing_may_be_outdated(world: World, hidden: Sequence[int], monkeypatch: pytest.MonkeyPatch) -> None:
    topic = written(world, 140)
    late = {commit_key("t", number) for number in hidden}

    def hide(verb: str, prefix: str, result: Any) -> Any:
        return (info for info in result if info.key not in late) if verb == "list" else result

    # A bucket whose listings do not contain some commits yet.
    store = HookedStore(world.store, after=hide)
    assert world.root(store).topic("t").log.state(refresh=False) == topic.log.state()
    real = NumberedObjects.read_some
    monkeypatch.setattr(NumberedObjects, "read_some", lambda self, numbers: real(self, numbers[:-1]))
    newest = world.root(store).topic("t").log.state(refresh=False).version
    # Commits after a hidden commit are requested although the listing contains them. The latest commit is found by
    # requesting the next number.
    assert (newest < 140) == (140 in hidden), "it must be looked for the next number"


def test_an_uncommitted_draft_is_not_embedded(world: World) -> None:
    topic = written(world, 6)
    data = stored(world, 6)
    landed = decode_commit(data, commit_key("t", 6), 6)
    recent = embedded_commits.RecentDocuments()
    recent.add(replace(landed, crc=landed.crc ^ 1), data, 1 << 20)
    assert recent.copies_for(7, landed.crc, 127, 1 << 20) is None
    recent.add(landed, data, 1 << 20)
    assert decode_embedded(recent.copies_for(7, landed.crc, 127, 1 << 20)) == [document_of(data)]
    assert topic.log.state().crc == landed.crc


def test_topics_with_and_without_embedded_commits(world: World) -> None:
    """A topic of an older release does not embed commits until the config is set, and its existing commits are
    readable.
    """
    topic = written(world, 20, {"carried.commits": 0})
    topic.alter(configs={"retention.ms": -1})
    publish(topic, 1)
    assert {len(carried_by(world, number)) for number in range(23)} == {0}
    assert topic.log.state().read_features == ("inlineRecords",)
    described = {config.name: config.value for config in topic.describe().configs}
    assert described["carried.commits"] == "0"
    topic.alter(configs={"carried.commits": 3})
    for _ in range(20):
        publish(topic, 1)
    assert [len(carried_by(world, number)) for number in range(23, 33)] == [0, 0, 1, 0, 3, 0, 3, 0, 3, 0]
    assert CARRIED_COMMITS in topic.log.state().read_features
    topic.alter(configs={"carried.commits": 0})
    for _ in range(20):
        publish(topic, 1)
    assert {len(carried_by(world, number)) for number in range(45, 65)} == {0}
    assert other(world, world.store).log.state() == topic.log.state()
    assert bases(other(world, world.store)) == bases(topic)
    assert History(world.store, "t").at(64).state == topic.log.state()
    assert of_log(world) == []


@pytest.mark.parametrize("value", [None, 127])
def test_a_reset_config_has_its_default(world: World, value: int | None) -> None:
    topic = written(world, 20, {"carried.commits": 0})
    topic.alter(configs={"carried.commits": value})
    assert topic.log.state().carried_commits == 127
    for _ in range(20):
        publish(topic, 1)
    assert len(carried_by(world, 31)) > 0


def test_carried_commits_has_no_root_default(world: World) -> None:
    root = world.root(world.store)
    for pattern in ({}, {"pattern": "t.*"}):
        with pytest.raises(BadRequest, match=r"'carried.commits' cannot be a root default; set it on each topic"):
            root.alter_defaults({"carried.commits": 0}, **pattern)


def test_embedded_documents_are_limited_in_total_size(world: World) -> None:
    with small_limits(checkpoint_bytes=4_000):
        topic = written(world, 31)
        assert [len(carried_by(world, number)) for number in (3, 7, 15)] != [3, 7, 15]
        assert all(sum(map(len, carried_by(world, number))) <= 4_000 for number in range(32))
        assert len(topic.log._documents._commits) < 12
    assert bases(other(world, world.store)) == bases(topic)


def test_cached_documents_are_those_that_opening_reads(world: World) -> None:
    topic = written(world, 300)
    assert len(topic.log._documents._commits) <= 8
    off = world.root(world.store).create_topic("off", configs={"carried.commits": 0})
    for _ in range(20):
        publish(off, 1)
    assert not off.log._documents._commits


def test_opening_without_the_latest_checkpoint(world: World) -> None:
    topic = written(world, 270)
    for damaged in (255, 127):
        key = checkpoint_key("t", damaged)
        data = world.store.get(key)
        world.store.delete(key)
        assert world.store.create(key, flipped(data, 30))
        store = CountingStore(world.store)
        assert world.root(store).topic("t").log.state() == topic.log.state()
        world.store.delete(key)
        store = CountingStore(world.store)
        assert bases(world.root(store).topic("t")) == bases(topic)
        assert sum(store.counts.values()) <= 14


def test_an_older_release_rejects_the_feature_in_one_line(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    written(world, 3)
    older = documents.KNOWN_READ_FEATURES - {CARRIED_COMMITS}
    monkeypatch.setattr(documents, "KNOWN_READ_FEATURES", older)
    with pytest.raises(BadRequest, match="requires the sparklog features carriedCommits") as raised:
        other(World(world.store), world.store)
    assert "\n" not in str(raised.value)


def test_a_history_reads_few_objects_per_block(world: World) -> None:
    newest = 400
    topic = written(world, newest)
    store = CountingStore(world.store)
    snapshot = History(store, "t").at(newest)
    assert snapshot.state == topic.log.state()
    for start in (0, 5, 128, 300):
        base = History(world.store, "t").at(start).state
        store.reset()
        commits = [commit for _, commit in History(store, "t").walk(base, newest)]
        assert [commit.version for commit in commits] == list(range(start + 1, newest + 1))
        assert [commit.crc for commit in commits] == [
            decode_commit(stored(world, number), "", number).crc for number in range(start + 1, newest + 1)
        ]
        assert store.by_kind["get", "commit"] <= newest // 128 - start // 128 + 6


@pytest.mark.parametrize("damage", damages())
def test_a_history_with_damaged_commits(world: World, damage: Callable[[World, int], None]) -> None:
    """A damaged commit affects the reads of its block. A damaged copy has no effect. A missing commit is reported."""
    topic = written(world, 300)
    begin = History(world.store, "t").at(128).state
    for number in (200, 255, 299):
        before = stored(world, number)
        damage(world, number)
        walked: list[int] | str
        try:
            walked = [commit.version for _, commit in History(world.store, "t").walk(begin, 300)]
        except SparklogError as error:
            walked = str(error)
        fits = walked == list(range(129, 301))
        assert fits or (number != 200 and damage.__name__ in ("deleted", "in_document")), (number, walked)
        world.store.delete(commit_key("t", number))
        assert world.store.create(commit_key("t", number), before)
    assert History(world.store, "t").at(300).state == topic.log.state()


def test_verify_reports_a_damaged_bit_in_embedded_commits(world: World) -> None:
    written(world, 8)
    place = len(document_of(stored(world, 7))) + 9
    replaced(world, 7, flipped(stored(world, 7), place))
    findings = of_log(world)
    assert [(finding.file, finding.position, finding.bit) for finding in findings] == [(commit_key("t", 7), place, 0)]


def test_verify_reports_an_invalid_copy(world: World) -> None:
    written(world, 12)
    forged(world, 7, lambda line: replace(line, time_ms=line.time_ms + 1))
    (finding,) = of_log(world)
    assert finding.file == commit_key("t", 7)
    assert "the embedded copy of commit 0 differs from the commit" in finding.message


@pytest.mark.sweep
@pytest.mark.parametrize("kind", [FaultKind.CRASH_BEFORE, FaultKind.CRASH_AFTER, FaultKind.ERROR_AFTER])
def test_a_crash_at_every_step(world: World, kind: FaultKind) -> None:
    """A process writes seven commits and crashes at its n-th request. The next process continues, and all embedded
    copies are correct.
    """
    with small_limits(checkpoint_commits=5):
        point = 0
        while True:
            world = World()
            world.store = Bucket(world.clock)
            written(world, 3)
            died = [False]

            def decide(call: Call, point: int = point, died: list[bool] = died) -> Fault | None:
                died[0] = died[0] or call.number == point
                return Fault(kind) if call.number == point else None

            store = FaultyStore(world.store, decide, world.sleep)
            try:
                dying = world.root(store).topic("t")
                for _ in range(7):
                    publish(dying, 1)
            except (Crash, SparklogError):
                pass
            topic = other(world, world.store)
            while topic.log.state().version < 14:
                publish(topic, 1)
            check_carried(world, 15)
            assert bases(other(world, world.store)) == list(range(14))
            if not died[0]:
                break
            point += 1
        assert point > 20


def check_carried(world: World, commits: int) -> None:
    texts = [document_of(stored(world, number)) for number in range(commits)]
    for number in range(commits):
        lines: Sequence[bytes] = carried_by(world, number)
        assert lines == texts[number - len(lines) : number]
        assert len(lines) <= embedded_count(number)


def test_the_topic_state_has_the_limit_of_embedded_commits() -> None:
    assert TopicState().carried_commits == 0
