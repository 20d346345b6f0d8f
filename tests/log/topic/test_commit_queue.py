"""The requests of each kind of append, as in the table of the module, and appends of threads that share a commit."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import sparklog
from sparklog.errors import BadRequest, Unavailable
from sparklog.log.state.append_offsets import AppendIntent
from sparklog.log.state.slices import FileSlices
from sparklog.log.state.writer_runs import WriterKey
from sparklog.log.topic.appending import write_rows
from sparklog.log.topic.topic import Topic
from sparklog.log.write.append_target import AppendOutcome
from sparklog.log.write.arrow_data import write_files
from sparklog.testing.wrapper_stores import WrapperStore
from tests.support.counted_root import CountedRoot

SMALL = pa.table({"value": [b"v"] * 3})
REQUESTS = (("get", "commit"), ("get", "root"), ("create", "commit"), ("writer", "append"))
"""`next` and `before`, `root`, `create`, `file`: the columns below."""


def by_table(topic: Topic) -> None:
    topic.append(SMALL)


def by_rows(topic: Topic) -> None:
    topic.append([{"value": b"v"}])


def by_files(topic: Topic) -> None:
    """Append files for the cached state, like Spark, transactions and the server. No request reads the state."""
    target = topic.log.append_target(refresh=False)
    topic.log.commit_append(write_files(SMALL, target, topic.log.env, options=None, writer=None), target)


IN_COMMIT: dict[str, object] = {}
IN_FILES: dict[str, object] = {"inline.records.bytes": 0}


@pytest.mark.parametrize(
    ("append", "configs", "on_disk", "in_bucket"),
    [
        (by_table, IN_COMMIT, (2, 1, 1, 0), (2, 1, 1, 0)),
        (by_table, IN_FILES, (2, 2, 1, 1), (2, 1, 1, 1)),
        (by_rows, IN_COMMIT, (2, 1, 1, 0), (2, 1, 1, 0)),
        (by_rows, IN_FILES, (2, 2, 1, 1), (2, 1, 1, 1)),
        (by_files, IN_COMMIT, (1, 1, 1, 0), (2, 1, 1, 0)),
        (by_files, IN_FILES, (1, 2, 1, 1), (2, 2, 1, 1)),
    ],
)
@pytest.mark.parametrize("kind", ["local", "bucket"])
def test_requests_of_an_append(
    append: Callable[[Topic], None],
    configs: dict[str, object],
    on_disk: tuple[int, ...],
    in_bucket: tuple[int, ...],
    kind: str,
    tmp_path: Path,
) -> None:
    counted_root = CountedRoot(kind, tmp_path / "root")
    topic = counted_root.topic(configs=configs)
    topic.append(SMALL)
    counted_root.reopened().append(SMALL)
    # This append meets another writer, so the next append reads the state first.
    topic.append(SMALL)
    counted_root.store.reset()
    append(topic)
    expected = on_disk if kind == "local" else in_bucket
    assert counted_root.store.by_kind == {
        request: count for request, count in zip(REQUESTS, expected, strict=True) if count
    }


class Gate(WrapperStore):
    """Delays the next create of a commit until the gate is opened. If `is_down` is set, all creates then fail."""

    def __init__(self, inner: Any) -> None:
        super().__init__(inner)
        self.reached, self.opened = threading.Event(), threading.Event()
        self.is_down = False

    def request(self, verb: str, key: str, send: Callable[[], Any]) -> Any:
        if verb == "create" and key.startswith("t/_log/"):
            self.reached.set()
            assert self.opened.wait(60)
            if self.is_down:
                raise Unavailable("the store is down")
        return send()


Outcome = AppendOutcome | BaseException


def while_one_is_in_flight(
    counted_root: CountedRoot, topic: Topic, appends: list[Callable[[Topic], Any]], is_down: bool = False
) -> list[Any]:
    """Append while another append is in flight. Return the results in the order of submission."""
    gate = Gate(counted_root.inner)
    counted_root.store.inner = gate
    outcomes = dict[int, Any]()

    def run(number: int, append: Callable[[Topic], Any]) -> None:
        try:
            outcomes[number] = append(topic)
        except BaseException as error:  # noqa: BLE001
            outcomes[number] = error

    threads = [threading.Thread(target=run, args=(-1, lambda topic: topic.append(SMALL)))]
    threads[0].start()
    assert gate.reached.wait(60)
    pending = topic.log.queue._group._pending
    for number, append in enumerate(appends):
        threads.append(threading.Thread(target=run, args=(number, append)))
        threads[-1].start()
        while len(pending) <= number and number not in outcomes:
            pass
    counted_root.store.reset()
    gate.is_down = is_down
    gate.opened.set()
    for thread in threads:
        thread.join(60)
    counted_root.store.inner = counted_root.inner
    return [outcomes[number] for number in range(len(appends))]


def values_at(topic: Topic, outcome: Outcome) -> dict[int, list[bytes]]:
    """Return the values at the offsets of an append, by partition."""
    assert isinstance(outcome, AppendOutcome)
    rows = topic.scan().to_table().to_pylist()
    return {
        partition: [
            row["value"]
            for row in rows
            if row["partition"] == partition and base <= row["offset"] < outcome.end[partition]
        ]
        for partition, base in outcome.base.items()
    }


def of(values: list[bytes], partitions: list[int]) -> Callable[[Topic], AppendOutcome]:
    rows = pa.table({"value": values, "partition": pa.array(partitions, pa.int32())})
    return lambda topic: topic.append(rows)


@pytest.fixture(params=["local", "bucket"])
def counted_root(request: pytest.FixtureRequest, tmp_path: Path) -> CountedRoot:
    return CountedRoot(request.param, tmp_path / "root")


@pytest.mark.parametrize("max_inline", [128 << 10, 250, 0])
def test_pending_appends_share_a_commit_and_get_their_own_offsets(counted_root: CountedRoot, max_inline: int) -> None:
    """This also applies if the records are too large together for the commit, or are in files."""
    topic = counted_root.topic(3, configs={"inline.records.bytes": max_inline})
    topic.append(SMALL)
    appends = [of([b"%d-%d" % (n, row) for row in range(3)], [n % 3, (n + 1) % 3, n % 3]) for n in range(6)]
    outcomes = while_one_is_in_flight(counted_root, topic, appends)
    assert counted_root.store.by_kind["create", "commit"] == 1, "of all six: the one in flight was counted before"
    assert {outcome.version for outcome in outcomes if isinstance(outcome, AppendOutcome)} == {3}
    for n, outcome in enumerate(outcomes):
        own = [b"%d-%d" % (n, row) for row in range(3)]
        assert values_at(topic, outcome) == {n % 3: [own[0], own[2]], (n + 1) % 3: [own[1]]}
        assert isinstance(outcome, AppendOutcome)
        assert outcome.records == 3


def test_a_rejected_append_does_not_fail_other_appends(counted_root: CountedRoot) -> None:
    topic, other = counted_root.topic(1), counted_root.world.root(counted_root.inner).topic("t")
    topic.append(SMALL)
    tables = {"keyed": pa.table({"key": [b"k"], "value": [b"v"]}), "keyless": SMALL}
    prepared = {name: write_rows(topic.log, rows) for name, rows in tables.items()}

    def compact_and_append(topic: Topic) -> AppendOutcome:
        other.alter(configs={"cleanup.policy": "compact"}, force=True)
        return topic.log.queue.publish(prepared["keyed"])

    outcomes = while_one_is_in_flight(
        counted_root,
        topic,
        [
            compact_and_append,
            lambda topic: topic.log.queue.publish(prepared["keyless"]),
            lambda topic: topic.log.queue.publish(prepared["keyed"]),
        ],
    )
    assert [type(outcome) for outcome in outcomes] == [AppendOutcome, BadRequest, AppendOutcome]
    assert topic.count().records == 3 + 2


def test_an_unknown_result_applies_to_all_appends_of_the_commit(counted_root: CountedRoot) -> None:
    topic = counted_root.topic(1)
    topic.append(SMALL)
    outcomes = while_one_is_in_flight(counted_root, topic, [lambda topic: topic.append(SMALL)] * 3, is_down=True)
    for outcome in outcomes:
        assert isinstance(outcome, Unavailable)
        assert outcome.is_unknown
    assert len({id(outcome) for outcome in outcomes}) == 3, "raising an error changes it"
    assert topic.append(SMALL).records == 3


def test_appends_with_their_own_fields_need_their_own_commit(counted_root: CountedRoot) -> None:
    topic = counted_root.topic(1)
    topic.append(SMALL)

    def batch(number: int) -> Callable[[Topic], AppendOutcome]:
        return lambda topic: topic.append(SMALL, writer=WriterKey("w", number))

    def nothing(topic: Topic) -> AppendOutcome:
        return topic.append(pa.table({"value": pa.array([], pa.binary())}))

    def plain(topic: Topic) -> AppendOutcome:
        return topic.append(SMALL)

    outcomes = while_one_is_in_flight(counted_root, topic, [plain, plain, batch(0), batch(1), nothing, batch(0), plain])
    assert [one.version if isinstance(one, AppendOutcome) else type(one).__name__ for one in outcomes] == [
        *(3, 3, 4, 5),
        *(5, "Conflict", 6),
    ]
    assert topic.count().records == 3 * 7


def test_the_offsets_of_an_append_with_a_file_and_inline_records_are_contiguous(counted_root: CountedRoot) -> None:
    topic = counted_root.topic(1)
    topic.append(SMALL)
    target = topic.log.append_target()

    def files(value: bytes, inline_bytes: int) -> list[FileSlices]:
        rows = pa.table({"value": [value]})
        return write_files(rows, replace(target, inline_bytes=inline_bytes), topic.log.env, options=None, writer=None)

    both = [*files(b"file", 0), *files(b"inline", target.inline_bytes)]
    outcomes = while_one_is_in_flight(
        counted_root, topic, [of([b"one"], [0]), lambda topic: topic.log.commit_append(both, target), of([b"two"], [0])]
    )
    found = [sorted(values_at(topic, outcome)[0]) for outcome in outcomes]
    assert found == [[b"one"], [b"file", b"inline"], [b"two"]]


def test_an_unexpected_error_applies_only_to_its_own_commit(
    counted_root: CountedRoot, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = counted_root.topic(1)
    topic.append(SMALL)
    commit = topic.log.commit

    def failing(intent: AppendIntent, *arguments: Any, **options: Any) -> Any:
        if intent.key is not None:
            raise OSError("unexpected")
        return commit(intent, *arguments, **options)

    monkeypatch.setattr(topic.log, "commit", failing)

    def batch(topic: Topic) -> AppendOutcome:
        return topic.append(SMALL, writer=WriterKey("w", 0))

    outcomes = while_one_is_in_flight(counted_root, topic, [of([b"one"], [0]), batch, of([b"two"], [0])])
    assert [type(outcome) for outcome in outcomes] == [AppendOutcome, OSError, AppendOutcome]
    assert [values_at(topic, outcomes[n]) for n in (0, 2)] == [{0: [b"one"]}, {0: [b"two"]}]


@pytest.mark.parametrize("writer", [WriterKey("", 1), WriterKey("w", "1")])  # type: ignore[arg-type]
def test_an_invalid_writer_is_rejected_before_files_are_written(counted_root: CountedRoot, writer: WriterKey) -> None:
    topic = counted_root.topic(1, configs=IN_FILES)
    counted_root.store.reset()
    with pytest.raises(BadRequest, match="writer"):
        topic.append(SMALL, writer=writer)
    assert not counted_root.store.by_kind["writer", "append"]


def test_producers_share_commits_with_each_other_and_with_appends(counted_root: CountedRoot) -> None:
    topic = counted_root.topic(1)
    topic.append(SMALL)
    with (
        sparklog.producer(counted_root.root, linger_ms=0) as one,
        sparklog.producer(counted_root.root, linger_ms=0) as two,
    ):

        def by(producer: sparklog.Producer, value: bytes) -> Callable[[Topic], Any]:
            return lambda topic: producer.send("t", value).result(60)

        outcomes = while_one_is_in_flight(counted_root, topic, [by(one, b"1"), by(two, b"2"), of([b"3"], [0])])
    assert counted_root.store.by_kind["create", "commit"] == 1
    offsets = [one.base[0] if isinstance(one, AppendOutcome) else one.offset for one in outcomes]
    rows = {row["offset"]: row["value"] for row in topic.scan().to_table().to_pylist()}
    assert [rows[offset] for offset in offsets] == [b"1", b"2", b"3"]
