"""Test imported groups and transactions against the output of Kafka's commands for the fixtures."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from sparklog.errors import Corrupt
from sparklog.format.control import end_txn_marker
from sparklog.groups.group_state import CommittedOffset
from sparklog.groups.lag import Groups
from sparklog.kafka.importing import run as importing
from sparklog.kafka.importing.run import ImportOptions, import_log_dir
from sparklog.kafka.messages.coordinator_records import (
    TRANSACTIONS as TRANSACTION_RECORDS,
)
from sparklog.kafka.messages.coordinator_records import (
    GroupKey,
    GroupValue,
    OffsetKey,
    OffsetValue,
    Status,
    encode_group_key,
    encode_group_value,
    encode_offset_key,
    encode_offset_value,
)
from sparklog.kafka.messages.message_codec import encode_versioned
from sparklog.kafka.messages.message_schema import Fields, record_types
from sparklog.log.read.skipped import Skipped
from sparklog.log.state.view import READ_COMMITTED
from sparklog.log.topic.root import Root
from sparklog.testing.faulty_store import Call, Crash, Fault, FaultKind, FaultyStore
from sparklog.testing.world import World
from tests.kafka.logs import FIRST, HOUR_MS, batch, keyed_batch, marker, write_partition
from tests.support.seeds import thinned

TRANSACTIONS = ("transactions", "transactions-tv0")


def committed(root: Root, group: str) -> dict[str, int]:
    found = Groups(root).group(group).committed()
    return {f"{topic}-{partition}": each.offset for (topic, partition), each in found.items()}


# ---------------------------------------------------------------- Kafka's fixtures


@pytest.mark.parametrize("fixture", TRANSACTIONS)
def test_groups_match_kafka_consumer_groups(fixtures: Path, root: Root, fixture: str) -> None:
    report = import_log_dir(root, fixtures / fixture / "data")
    expected = json.loads((fixtures / fixture / "expected/consumer-group-offsets.json").read_text())
    groups = Groups(root)
    assert (
        groups.names() == [each.group for each in report.groups] == sorted(name for name in expected if expected[name])
    )
    for name, offsets in expected.items():
        found = groups.group(name).committed() if offsets else {}
        assert {f"{topic}-{partition}": _told(each) for (topic, partition), each in found.items()} == offsets
        assert all(each.topic_id == root.topic(each.topic).log.state().topic_id for each in found.values())
        assert all(each.time_ms > 1_700_000_000_000 for each in found.values())


def _told(offset: CommittedOffset) -> dict[str, object]:
    return {"offset": offset.offset, "leaderEpoch": offset.leader_epoch, "metadata": offset.metadata}


@pytest.mark.parametrize("fixture", TRANSACTIONS)
def test_open_transactions_match_kafka_transactions(fixtures: Path, root: Root, fixture: str) -> None:
    import_log_dir(root, fixtures / fixture / "data")
    told = json.loads((fixtures / fixture / "expected/transactions.json").read_text())["transactions"]
    ongoing = {each["producerId"]: each for each in told if each["state"] == "Ongoing"}
    assert len(ongoing) == 1
    found = {
        f"{name}-{each.partition}": each for name in root.topics() for each in root.topic(name).log.state().kafka_open
    }
    for each in found.values():
        own = ongoing[each.producer]
        assert (each.transactional_id, each.timeout_ms) == (own["transactionalId"], own["timeoutMs"])
        assert each.start_ms is not None
        assert each.decided is None
    (one,) = ongoing.values()
    assert set(one["partitions"]) >= set(found)


def test_only_offsets_of_selected_topics_are_imported(fixtures: Path, root: Root) -> None:
    report = import_log_dir(root, fixtures / "transactions/data", ImportOptions(topics=["txn-b"]))
    assert [each.group for each in report.groups] == ["g-classic", "g-consumer"]
    assert committed(root, "g-classic") == {"txn-b-0": 32, "txn-b-1": 19}
    import_log_dir(root, fixtures / "transactions/data")
    assert committed(root, "g-classic") == {"txn-a-0": 62, "txn-a-1": 35, "txn-b-0": 32, "txn-b-1": 19}
    version = Groups(root).group("g-classic").log.refresh().number
    import_log_dir(root, fixtures / "transactions/data")
    assert Groups(root).group("g-classic").log.refresh().number == version


def test_groups_and_transactions_are_imported_only_if_requested(fixtures: Path, root: Root) -> None:
    report = import_log_dir(root, fixtures / "transactions/data", ImportOptions(groups=False, transactions=False))
    assert (report.groups, Groups(root).names()) == ((), [])
    assert {each.transactional_id for each in root.topic("txn-a").log.state().kafka_open} == {None}
    # A later import reads the transactional ids.
    import_log_dir(root, fixtures / "transactions/data")
    assert {each.transactional_id for each in root.topic("txn-a").log.state().kafka_open} == {"tx-open"}
    import_log_dir(root, fixtures / "transactions/data", ImportOptions(transactions=False))
    assert {each.transactional_id for each in root.topic("txn-a").log.state().kafka_open} == {"tx-open"}


# ---------------------------------------------------------------- handwritten groups


def messages(
    base: int, items: Mapping[bytes, bytes | None] | list[tuple[bytes, bytes | None]], producer: int = -1
) -> bytes:
    """Return a batch of records with these keys and values."""
    pairs = items.items() if isinstance(items, Mapping) else items
    return keyed_batch(base, list(pairs), producer=producer)


def key(topic: str = "t", group: str = "g", partition: int = 0) -> bytes:
    return encode_offset_key(OffsetKey(group, topic, partition))


def value(offset: int, time_ms: int = HOUR_MS, expires_ms: int | None = None) -> bytes:
    return encode_offset_value(OffsetValue(offset, None, "m", time_ms, expires_ms))


def write_groups(directory: Path, *batches: bytes) -> None:
    write_partition(directory, "__consumer_offsets-0", {0: b"".join(batches)})


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    write_partition(tmp_path, "t-0", {0: FIRST})
    write_partition(tmp_path, "u-0", {0: FIRST})
    return tmp_path


def test_latest_record_wins_and_tombstone_deletes(root: Root, directory: Path) -> None:
    write_groups(
        directory,
        messages(0, [(key(), value(1)), (key("u"), value(1)), (key(), value(2)), (key(group="h"), value(3))]),
        messages(
            4,
            [
                (key("u"), None),
                (encode_group_key(GroupKey("g")), encode_group_value(GroupValue("consumer", 7, None, None, 5))),
            ],
        ),
        messages(6, [(key(group="h"), None), (key("gone"), value(9)), (key(partition=4), value(9))]),
    )
    report = import_log_dir(root, directory)
    assert [(each.group, each.offsets, each.left_out) for each in report.groups] == [("g", 1, 2)]
    assert committed(root, "g") == {"t-0": 2}
    assert Groups(root).group("g").description().generation == 7


def test_transactional_offsets_apply_at_commit(root: Root, directory: Path) -> None:
    """The log continues after an open transaction, for producers without transactions."""
    write_groups(
        directory,
        messages(0, {key(): value(1)}),
        messages(1, {key(): value(2), key("u"): value(2)}, producer=7),
        messages(3, {key(): value(3)}, producer=8),
        messages(4, {key("u"): value(1)}),
        marker(5, 7, commit=True),
        messages(6, {key(group="h"): value(3)}),
        messages(7, {key(group="h"): value(4)}, producer=9),
        marker(8, 9, commit=False),
    )
    import_log_dir(root, directory)
    # The commit at 4 was written later than the offset that the marker at 5 commits.
    assert committed(root, "g") == {"t-0": 2, "u-0": 1}
    assert committed(root, "h") == {"t-0": 3}


def test_expired_offsets_are_skipped(root: Root, directory: Path) -> None:
    now = root.env.wall_ms()
    write_groups(directory, messages(0, {key(): value(1, expires_ms=now), key("u"): value(1, expires_ms=now + 10**9)}))
    import_log_dir(root, directory)
    assert committed(root, "g") == {"u-0": 1}


def test_next_import_adds_newer_offsets(root: Root, directory: Path) -> None:
    write_groups(directory, messages(0, {key(): value(1, 1000), key("u"): value(1, 1000)}))
    import_log_dir(root, directory)
    Groups(root).group("g").alter({"u": {0: 3}})
    write_groups(directory, messages(0, {key(): value(2, 2000), key("u"): value(2, 2000)}))
    import_log_dir(root, directory)
    assert committed(root, "g") == {"t-0": 2, "u-0": 3}


def test_group_with_members_is_not_changed(root: Root, directory: Path) -> None:
    write_groups(directory, messages(0, {key(): value(1)}))
    import_log_dir(root, directory)
    member = Groups(root).group("g").join("worker")
    write_groups(directory, messages(0, {key(): value(2, 2 * HOUR_MS)}))
    report = import_log_dir(root, directory)
    assert report.groups[0].in_use
    member.commit({"t": {0: 3}})
    assert committed(root, "g") == {"t-0": 3}
    # The member may come back. Kafka's consumers have read records that the member has not read.
    member.leave()
    write_groups(directory, messages(0, {key(): value(4, root.env.wall_ms() + HOUR_MS)}))
    assert import_log_dir(root, directory).groups[0].in_use
    assert committed(root, "g") == {"t-0": 3}


def test_undecodable_record(root: Root, directory: Path) -> None:
    write_groups(directory, messages(0, {key(): value(1), b"\0\1\0\xffgarbage": b"x", key("u"): b"\0\x63"}))
    with pytest.raises(Corrupt, match=r"record at offset 1 of __consumer_offsets-0: .* without groups"):
        import_log_dir(root, directory)
    assert root.topics() == []
    said: list[Skipped] = []
    import_log_dir(root, directory, ImportOptions(corrupt_records="skip"), on_skipped=said.append)
    assert [(each.topic, each.start) for each in said] == [("__consumer_offsets", 1), ("__consumer_offsets", 2)]
    assert committed(root, "g") == {"t-0": 1}


def test_damaged_group_log(root: Root, directory: Path) -> None:
    good, bad = messages(0, {key(): value(1)}), bytearray(messages(1, {key(): value(2)}))
    bad[-1] ^= 1
    write_groups(directory, good, bytes(bad), messages(2, {key("u"): value(3)}))
    with pytest.raises(Corrupt) as caught:
        import_log_dir(root, directory)
    assert (caught.value.position, caught.value.offset) == (len(good), 1)
    said: list[Skipped] = []
    import_log_dir(root, directory, ImportOptions(corrupt_records="truncate"), on_skipped=said.append)
    assert committed(root, "g") == {"t-0": 1}
    import_log_dir(root, directory, ImportOptions(corrupt_records="skip"), on_skipped=said.append)
    assert committed(root, "g") == {"t-0": 1, "u-0": 3}
    assert [each.start for each in said] == [1, 1]


# ---------------------------------------------------------------- handwritten transactions


def write_transactions(directory: Path, *states: tuple[str, Fields]) -> None:
    write_partition(directory, "__transaction_state-0", {0: messages(0, [state_record(*each) for each in states])})


def state_record(name: str, fields: Fields) -> tuple[bytes, bytes]:
    schemas = record_types(TRANSACTION_RECORDS)[0]
    return encode_versioned(schemas.key, 0, {"transactionalId": name}), encode_versioned(schemas.value, 0, fields)


def transaction(producer: int, status: Status, *partitions: tuple[str, int]) -> Fields:
    return {
        "producerId": producer,
        "transactionTimeoutMs": 60_000,
        "transactionStatus": int(status),
        "transactionPartitions": [{"topic": topic, "partitionIds": [number]} for topic, number in partitions],
        "transactionLastUpdateTimestampMs": HOUR_MS,
        "transactionStartTimestampMs": HOUR_MS - 5,
    }


def read(root: Root, topic: str) -> list[bytes]:
    values: list[bytes] = root.topic(topic).scan(isolation_level=READ_COMMITTED).to_table()["value"].to_pylist()
    return values


@pytest.fixture
def decided(tmp_path: Path) -> Path:
    """Write three open transactions in t: of producer 7, which has committed and has a marker in u, and of producers 8
    and 9.
    """
    data = [
        batch(at, [name], producer=producer) for at, (name, producer) in enumerate(((b"a", 7), (b"b", 8), (b"c", 9)))
    ]
    write_partition(tmp_path, "t-0", {0: b"".join(data)})
    write_partition(tmp_path, "u-0", {0: batch(0, [b"a"], producer=7) + marker(1, 7, commit=True)})
    write_transactions(
        tmp_path,
        ("commits", transaction(7, Status.PREPARE_COMMIT, ("t", 0), ("u", 0))),
        ("aborts", transaction(8, Status.PREPARE_ABORT, ("t", 0))),
        ("goes-on", transaction(9, Status.ONGOING, ("t", 0))),
    )
    return tmp_path


def test_decision_is_imported_and_preserved(root: Root, decided: Path) -> None:
    import_log_dir(root, decided)
    found = root.topic("t").log.state().kafka_open
    assert [(each.transactional_id, each.decided, each.start_ms, each.timeout_ms) for each in found] == [
        ("commits", "commit", HOUR_MS - 5, 60_000),
        ("aborts", "abort", HOUR_MS - 5, 60_000),
        ("goes-on", None, HOUR_MS - 5, 60_000),
    ]
    assert (read(root, "t"), read(root, "u")) == ([], [b"a"])
    assert "('commits') in partition 0, from offset 0, decided: commit" in str(found[0])
    assert World(root.store, seed=3).root().topic("t").log.state().kafka_open == found
    # The next import contains the markers.
    ends = marker(3, 7, commit=True) + marker(4, 8, commit=False) + marker(5, 9, commit=True)
    write_partition(decided, "t-0", {3: ends})
    write_transactions(decided, ("commits", transaction(7, Status.COMPLETE_COMMIT)))
    import_log_dir(root, decided)
    assert root.topic("t").log.state().kafka_open == ()
    assert read(root, "t") == [b"a", b"c"]


def test_decision_made_during_the_copy_is_ignored(root: Root, decided: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The broker continues. Its earlier decision does not belong to the transaction that is open in the copy."""
    whole = importing.copy_partition

    def copied(*args: Any) -> Any:
        pairs = [state_record("commits", transaction(7, Status.PREPARE_COMMIT, ("t", 0), ("u", 0)))]
        with (decided / "__transaction_state-0" / f"{0:020}.log").open("ab") as log:
            log.write(messages(3, pairs))
        return whole(*args)

    monkeypatch.setattr(importing, "copy_partition", copied)
    import_log_dir(root, decided, ImportOptions(topics=["t"]))
    assert [each.decided for each in root.topic("t").log.state().kafka_open] == [None, "abort", None]
    monkeypatch.setattr(importing, "copy_partition", whole)
    import_log_dir(root, decided, ImportOptions(topics=["t"]))
    assert [each.decided for each in root.topic("t").log.state().kafka_open] == ["commit", "abort", None]


@pytest.mark.parametrize("way", ["append", "abort", "by hand"])
def test_decided_transaction_ends_as_decided(
    root: Root, decided: Path, way: str, caplog: pytest.LogCaptureFixture
) -> None:
    import_log_dir(root, decided, ImportOptions(open_transactions="abort" if way == "abort" else "keep"))
    topic = root.topic("t")
    new = []
    if way == "append":
        topic.append(pa.table({"value": [b"new"]}))
        new = [b"new"]
        assert (
            "before the first append to topic t: committed the open Kafka transaction of producer 7 ('commits')"
            in caplog.text
        )
    elif way == "by hand":
        topic.end_kafka_transactions(commit=True)
        new = [b"c"]
    assert read(root, "t") == [b"a", *new]
    assert topic.log.state().kafka_open == ()


@pytest.mark.parametrize("step", thinned(4))
def test_interrupted_import_that_ends_transactions_is_completed(root: Root, decided: Path, step: int) -> None:
    """The import is killed at any request.

    A topic whose transactions it has already ended does not prevent its completion.
    """
    write_partition(decided, "v-0", {0: batch(0, [b"x"], producer=9)})
    write_groups(decided, messages(0, {key(): value(1)}))
    whole = {}
    for at in range(0, 1000, step):
        world = World(seed=at)
        store = world.store
        world.root()
        calls = []

        def decide(call: Call, at: int = at, calls: list[Call] = calls) -> Fault | None:
            calls.append(call)
            return Fault(FaultKind.CRASH_AFTER) if call.number == at else None

        with contextlib.suppress(Crash):
            import_log_dir(
                World(FaultyStore(store, decide), seed=at).root(), decided, ImportOptions(open_transactions="abort")
            )
        after = World(store, seed=at + 1000).root()
        import_log_dir(after, decided, ImportOptions(open_transactions="abort"))
        whole = {name: read(after, name) for name in after.topics()}
        assert whole == {"t": [b"a"], "u": [b"a"], "v": []}
        assert all(not after.topic(name).log.state().kafka_open for name in whole)
        assert committed(after, "g") == {"t-0": 1}
        if len(calls) <= at:
            break
    assert 50 < at < 1000 - step


def test_decision_of_another_transaction_is_ignored(root: Root, tmp_path: Path) -> None:
    """Partition t-0 is not part of the transaction that is being committed, so its open transaction is another one."""
    write_partition(tmp_path, "t-0", {0: batch(0, [b"a"], producer=7)})
    write_transactions(tmp_path, ("x", transaction(7, Status.PREPARE_COMMIT, ("u", 0))))
    import_log_dir(root, tmp_path)
    (found,) = root.topic("t").log.state().kafka_open
    assert (found.transactional_id, found.decided, found.start_ms) == ("x", None, None)


def test_markers_of_both_kinds_in_one_commit(root: Root, decided: Path) -> None:
    import_log_dir(root, decided)
    topic = root.topic("t")
    assert [each.producer for each in topic.end_kafka_transactions(producers=[7, 8])] == [7, 8]
    slices = topic.log.snapshot().slices.all()
    data = root.store.get(f"t/{slices.path(1)}", 0, int(slices.size[1]))
    stamp = int.from_bytes(data[27:35], "big")
    expected = [
        end_txn_marker(
            commit=commit, offset=at, timestamp=stamp, producer_id=7 + at, producer_epoch=1, coordinator_epoch=0
        )
        for at, commit in enumerate((True, False))
    ]
    assert data == b"".join(expected)
    topic.end_kafka_transactions(producers=[9])
    assert read(root, "t") == [b"a"]
