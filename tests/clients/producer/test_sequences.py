"""Sequences prevent duplicates across restarts, including crashes at each request. Broken rules are detected."""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

import sparklog
from sparklog.clients.producer.sequences import TopicSequences
from sparklog.errors import BadRequest, Conflict, Fenced, SparklogError, Unavailable
from sparklog.log.topic.appending import write_rows
from sparklog.log.topic.engine import TopicLog
from sparklog.log.topic.root import Root
from sparklog.testing import Call, Crash, Fault, FaultKind, FaultyStore, Script, Seeded, World
from tests.clients.producer.test_producer import LATER, records, root_with
from tests.support.seeds import first_of

MESSAGES = 40
KINDS = (
    *(FaultKind.ERROR_BEFORE, FaultKind.ERROR_AFTER, FaultKind.LATE, FaultKind.TWICE, FaultKind.FALSE_EXISTS),
    *(FaultKind.CRASH_BEFORE, FaultKind.CRASH_AFTER),
)


def numbers(root: Root) -> list[int]:
    return [int(row["value"]) for _, row in sorted(records(root).items())]


def open_producer(root: Root) -> sparklog.Producer:
    return sparklog.producer(root, producer_id="p", linger_ms=LATER)


def test_a_restarted_program_resumes_after_the_last_sequence() -> None:
    world = World()
    root_with(1, world)
    for stop in (5, 9, 9, 20):
        with open_producer(world.root()) as producer:
            last = producer.last_sequence("t")
            futures = [producer.send("t", str(number), sequence=number) for number in range(last + 1, stop + 1)]
        assert [future.result().offset for future in futures] == list(range(last, stop))
    assert numbers(world.root()) == list(range(1, 21))


def test_a_repeated_record_is_dropped_and_reported() -> None:
    world = World()
    root_with(2, world)
    with open_producer(world.root()) as producer:
        first = [producer.send("t", str(number), sequence=number) for number in (3, 5, 5, 4, 8)]
    with open_producer(world.root()) as producer:
        again = [producer.send("t", str(number), sequence=number) for number in (3, 8)]
        producer.flush()
        mixed = [producer.send("t", str(number), key="k", sequence=number) for number in (8, 9, 2, 12)]
        producer.flush()
        assert producer.last_sequence("t") == 12
    assert [future.result().is_repeat for future in first] == [False, False, True, True, False]
    assert [future.result()[1:] for future in again] == [(-1, -1, -1, True)] * 2
    assert [future.result().is_repeat for future in mixed] == [True, False, True, False]
    there = records(world.root())
    assert there[mixed[3].result()[1:3]]["value"] == b"12"
    assert sorted(numbers(world.root())) == [3, 5, 8, 9, 12]


def test_an_older_producer_with_the_same_id_is_fenced() -> None:
    world = World()
    root_with(1, world)
    old = open_producer(world.root())
    old.send("t", "1", sequence=1)
    old.flush()
    old.send("t", "2", sequence=2)
    with open_producer(world.root()) as new:
        assert new.last_sequence("t") == 1
        old.flush()
        new.send("t", "2", sequence=2)
    late = old.send("t", "3", sequence=3)
    old.flush()
    with pytest.raises(Fenced):
        late.result(0)
    with pytest.raises(Fenced):
        old.last_sequence("t")
    old.close()
    assert numbers(world.root()) == [1, 2]


def test_concurrent_producers_do_not_duplicate_records() -> None:
    for seed in range(10):
        world = World(seed=1000 * seed)
        root_with(1, world)
        start = threading.Barrier(2)

        def write(root: Root, start: threading.Barrier = start) -> None:
            start.wait()
            with open_producer(root) as producer:
                for number in range(1, 20):
                    producer.send("t", str(number), sequence=number)
                    if number % 4 == 0:
                        producer.flush()

        threads = [threading.Thread(target=write, args=(world.root(),)) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        seen = numbers(world.root())
        assert seen == sorted(set(seen))


@pytest.mark.usefixtures("records_in_files")
def test_a_failed_commit_blocks_sends_until_last_sequence() -> None:
    world, script = World(), Script()
    root_with(1, world)
    with open_producer(world.root(FaultyStore(world.store, script, world.sleep))) as producer:
        producer.send("t", "1", sequence=1)
        producer.flush()
        script.faults["close:append"] = Fault(FaultKind.ERROR_BEFORE)
        lost = producer.send("t", "2", sequence=2)
        producer.flush()
        script.faults.clear()
        after = producer.send("t", "3", sequence=3)
        producer.flush()
        assert isinstance(lost.exception(0), Unavailable)
        with pytest.raises(Conflict, match=r"call last_sequence\('t'\) and resend the records after this sequence"):
            after.result(0)
        assert producer.last_sequence("t") == 1
        for number in (2, 3):
            producer.send("t", str(number), sequence=number)
    assert numbers(world.root()) == [1, 2, 3]


def test_sequences_require_a_producer_id() -> None:
    with sparklog.producer(root_with()) as producer, pytest.raises(BadRequest, match="no producer_id"):
        producer.last_sequence("t")
    with open_producer(root_with()) as producer:
        assert producer.last_sequence("t") == 0
        for sequence in (None, 0, "1", True, 2**63):
            with pytest.raises(BadRequest, match="integer from 1 that increases"):
                producer.send("t", "x", sequence=sequence)  # type: ignore[arg-type]


def run_once(root: Root, source: random.Random, acknowledged: set[int], end: int = MESSAGES) -> bool:
    """Run the program once, from the last sequence to the end. Return True if it completed. An error or a crash ends
    the run.
    """
    producer = open_producer(root)
    futures: dict[int, sparklog.RecordFuture] = {}
    try:
        for number in range(producer.last_sequence("t") + 1, end + 1):
            futures[number] = producer.send("t", str(number), sequence=number)
            if source.random() < 0.3:
                producer.flush()
                if any(future.exception(0) for future in futures.values() if future.done()):
                    futures |= again(producer, futures)
        producer.flush()
        return producer.last_sequence("t") == end
    except (SparklogError, Crash):
        return False
    finally:
        producer.close(5)
        acknowledged |= {number for number, future in futures.items() if future.done() and not future.exception()}


def again(producer: sparklog.Producer, futures: dict[int, sparklog.RecordFuture]) -> dict[int, sparklog.RecordFuture]:
    """Send the failed records again, as the errors suggest."""
    last = producer.last_sequence("t")
    return {n: producer.send("t", str(n), sequence=n) for n, _ in futures.items() if n > last}


def simulate(decide: Callable[[random.Random], Callable[[Call], Fault | None]], seed: int) -> list[str]:
    """Run the program until it completes, with faults in most of the runs. Return the errors in the result."""
    world, source = World(seed=seed * 1000), random.Random(seed)
    root_with(1 + seed % 3, world)
    acknowledged: set[int] = set()
    stores = []
    for attempt in range(12):
        store = FaultyStore(world.store, decide(source) if attempt < 8 else Script(), world.sleep)
        stores.append(store)
        try:
            through = run_once(world.root(store), source, acknowledged)
        except (SparklogError, Crash):
            through = False
        if through and attempt >= 3:
            break
    counts = Counter(numbers(world.root()))
    twice = [number for number, count in counts.items() if count > 1]
    lost = sorted(acknowledged - counts.keys())
    missing = sorted(set(range(1, MESSAGES + 1)) - counts.keys())
    faults = {"twice": twice, "acknowledged and not there": lost, "missing": missing}
    return [f"seed {seed}: {text} {wrong}" for text, wrong in faults.items() if wrong]


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """Suppress the output of threads that crash on purpose."""
    monkeypatch.setattr("threading.excepthook", lambda _: None)


def seeded(source: random.Random) -> Callable[[Call], Fault | None]:
    return Seeded(random.Random(source.random()), 0.05, KINDS)


@pytest.mark.parametrize("seed", first_of(range(25), 8))
def test_records_are_published_once_despite_faults(seed: int) -> None:
    assert simulate(seeded, seed) == []


def test_the_simulation_detects_duplicates(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TopicSequences, "new_rows", lambda _, sequences: list(range(len(sequences))))
    monkeypatch.setattr(TopicSequences, "read_last", lambda self: (TopicSequences_read_last(self), 0)[1])
    assert any("twice" in wrong for seed in range(10) for wrong in simulate(seeded, seed))


TopicSequences_read_last = TopicSequences.read_last


NEVER = 1_000_000


def outage(late: int) -> tuple[list[int], int]:
    """Lose all creates until a commit has failed. The first create takes effect `late` calls later, while the program
    continues.

    Return the published records, and the calls from the first create to the failure.
    """
    world, lost = World(seed=late), list[int]()
    root_with(1, world)
    is_down, calls = False, 0

    def decide(call: Call) -> Fault | None:
        nonlocal calls
        calls = call.number
        if not is_down or call.verb != "create":
            return None
        lost.append(call.number)
        return Fault(FaultKind.LATE, late) if len(lost) == 1 else Fault(FaultKind.ERROR_BEFORE)

    with open_producer(world.root(FaultyStore(world.store, decide, world.sleep))) as producer:
        producer.send("t", "1", sequence=1)
        producer.flush()
        is_down = True
        producer.send("t", "2", sequence=2)
        producer.flush()
        is_down = False
        failed_at = calls - lost[0]
        while (last := producer.last_sequence("t")) < 4:
            for number in range(last + 1, 5):
                producer.send("t", str(number), sequence=number)
            producer.flush()
    return numbers(world.root()), failed_at


def test_a_failed_commit_may_succeed_later() -> None:
    seen, failed_at = outage(NEVER)
    assert seen == [1, 2, 3, 4]
    assert [seen for late in range(failed_at, failed_at + 30, 2) if (seen := outage(late)[0]) != [1, 2, 3, 4]] == []


def test_the_simulation_detects_a_missing_new_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def ask(self: TopicSequences) -> int:
        if self._failure is None:
            return TopicSequences_read_last(self)
        self._failure = None
        self.last = self._log.state().registry["p"].batch
        return self.last

    monkeypatch.setattr(TopicSequences, "read_last", ask)
    _, failed_at = outage(NEVER)
    assert any(seen.count(2) > 1 for late in range(failed_at, failed_at + 60) for seen in outage(late)[:1])


def test_a_late_commit_is_fenced() -> None:
    root = root_with(1)
    log = root.engine.log("t")
    sequences = TopicSequences(log, "p")
    sequences.start_run()
    late = sequences.writer_key(5)
    append = write_rows(log, pa.table({"value": ["5"]}))
    files, target = append.files, append.target
    sequences.failed(Unavailable("no answer"))
    assert sequences.read_last() == 0
    with pytest.raises(Fenced):
        log.commit_append(files, target, writer=late)
    log.commit_append(files, target, writer=sequences.writer_key(5))
    assert numbers(root) == [5]


def test_last_sequence_includes_a_commit_with_a_lost_response(monkeypatch: pytest.MonkeyPatch) -> None:
    root = root_with(1)
    append = TopicLog.commit_append

    def lose(*args: Any, **kwargs: Any) -> object:
        append(*args, **kwargs)
        raise Unavailable("no answer")

    with open_producer(root) as producer:
        assert producer.last_sequence("t") == 0
        with monkeypatch.context() as patch:
            patch.setattr(TopicLog, "commit_append", lose)
            unknown = [producer.send("t", str(number), sequence=number) for number in (1, 2)]
            producer.flush()
        assert isinstance(unknown[1].exception(0), Unavailable)
        assert producer.last_sequence("t") == 2
        producer.send("t", "2", sequence=2)
        producer.send("t", "3", sequence=3)
    assert numbers(root) == [1, 2, 3]


@pytest.mark.usefixtures("records_in_files")
@pytest.mark.parametrize("kind", [FaultKind.CRASH_BEFORE, FaultKind.CRASH_AFTER])
def test_a_crash_at_each_request(kind: FaultKind) -> None:
    number = 0
    while True:
        world = World(seed=number)
        root_with(2, world)
        struck: list[Call] = []

        def decide(call: Call, number: int = number, struck: list[Call] = struck) -> Fault | None:
            if call.number != number:
                return None
            struck.append(call)
            return Fault(kind)

        acknowledged: set[int] = set()
        for store in (FaultyStore(world.store, decide, world.sleep), world.store):
            try:
                run_once(world.root(store), random.Random(3), acknowledged, 6)
            except Crash:
                continue
        there = numbers(world.root())
        assert sorted(there) == list(range(1, 7)), (number, struck)
        if not struck:
            break
        number += 1
    assert number >= 25
