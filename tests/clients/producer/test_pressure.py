"""A producer under pressure: full memory, rejected records, failing stores, threads and processes."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import pytest

import sparklog
from sparklog.clients.producer.accumulator import Batch
from sparklog.clients.producer.futures import RecordFuture
from sparklog.clients.producer.sender import Sender
from sparklog.errors import BadRequest, Fenced, NotFound, Unavailable
from sparklog.log.topic.root import Root, open_root
from sparklog.testing import Fault, FaultKind, FaultyStore, Script, World
from tests.clients.producer.test_producer import LATER, records, root_with
from tests.support.interrupts import repeat_until_interrupted


class Gate:
    """Blocks calls that create commits until it is opened."""

    def __init__(self) -> None:
        self.world = World()
        self.root = root_with(1, self.world)
        self.opened, self.reached = threading.Event(), threading.Event()
        append = self.root.engine.log("t").commit_append

        def wait(*args: object, **kwargs: object) -> object:
            self.reached.set()
            assert self.opened.wait(20)
            return append(*args, **kwargs)  # type: ignore[arg-type]

        self.root.engine.log("t").commit_append = wait  # type: ignore[assignment, method-assign]


@pytest.mark.parametrize("max_block_ms", [60_000, 2**63 - 1])
def test_send_blocks_until_memory_is_free(max_block_ms: int) -> None:
    gate = Gate()
    with sparklog.producer(gate.root, linger_ms=LATER, buffer_memory=2000, max_block_ms=max_block_ms) as producer:
        futures = [producer.send("t", b"x" * 100) for _ in range(6)]
        threading.Timer(0.2, gate.opened.set).start()
        begun = time.monotonic()
        # There is no flush and the linger is long, so waiting for memory must make the batch due.
        futures.append(producer.send("t", b"y" * 100))
        assert time.monotonic() - begun > 0.1
    assert [future.result().offset for future in futures] == list(range(7))


def test_send_fails_after_max_block_ms() -> None:
    gate = Gate()
    with sparklog.producer(gate.root, buffer_memory=2000, max_block_ms=50) as producer:
        futures = [producer.send("t", b"x" * 100) for _ in range(6)]
        with pytest.raises(Unavailable, match=r"buffer_memory \(2000 bytes\) is full for max_block_ms \(50 ms\)"):
            producer.send("t", b"y" * 100)
        gate.opened.set()
        producer.flush()
        futures.append(producer.send("t", b"z" * 100))
        with pytest.raises(BadRequest, match="a record of 3000 bytes does not fit in buffer_memory"):
            producer.send("t", b"x" * 3000)
    assert [future.result().offset for future in futures] == list(range(7))


def test_records_accumulate_during_a_commit() -> None:
    gate = Gate()
    version = gate.root.topic("t").log.state().version
    with sparklog.producer(gate.root, linger_ms=0) as producer:
        producer.send("t", b"0")
        assert gate.reached.wait(10)
        for number in range(1, 100):
            producer.send("t", b"%d" % number)
        time.sleep(0.05)
        gate.opened.set()
    assert gate.root.topic("t").log.state().version == version + 2
    assert [row["value"] for _, row in sorted(records(gate.root).items())] == [b"%d" % n for n in range(100)]


def test_flush_and_close_time_out() -> None:
    gate = Gate()
    producer = sparklog.producer(gate.root, linger_ms=LATER)
    future = producer.send("t", "a")
    with pytest.raises(Unavailable, match=r"not committed within 0\.05 s"):
        producer.flush(0.05)
    producer.close(0.05)
    with pytest.raises(Unavailable, match=r"closed with a timeout of 0\.05 s.*unknown"):
        future.result(0)
    gate.opened.set()
    # The commit may still succeed, as the message says. The result of the future does not change.
    producer._thread.join(10)
    assert isinstance(future.exception(), Unavailable)


@pytest.mark.parametrize("name", ["result", "flush", "close"])
def test_a_timeout_can_be_infinite(name: str) -> None:
    gate = Gate()
    with sparklog.producer(gate.root, linger_ms=0) as producer:
        future = producer.send("t", "a")
        threading.Timer(0.2, gate.opened.set).start()
        getattr(future if name == "result" else producer, name)(float("inf"))
        assert future.done()


class InterruptedOnce(list[Any]):
    """A list whose first `append` is interrupted at its end, when Python runs signal handlers."""

    is_interrupted = False

    def append(self, cell: object) -> None:
        super().append(cell)
        if not self.is_interrupted:
            self.is_interrupted = True
            raise KeyboardInterrupt


CELLS = ("key_rows", "keys", "values", "times_ns")
HEADERS = [("h", b"1")]


@pytest.mark.parametrize(
    ("cells", "headers"),
    [*((name, None) for name in CELLS), *((name, HEADERS) for name in (*CELLS, "detail_rows", "details"))],
)
def test_an_interrupted_send_does_not_affect_other_records(cells: str, headers: list[tuple[str, bytes]] | None) -> None:
    root = root_with(1)
    with sparklog.producer(root, linger_ms=LATER) as producer:
        futures = list(producer.send_many("t", {"value": ["0", "1"]}))
        futures.append(producer.send("t", b"2", b"k", headers))
        batch = producer._accumulator.batches["t"]
        setattr(batch.cells, cells, InterruptedOnce(getattr(batch.cells, cells)))
        with pytest.raises(KeyboardInterrupt):
            producer.send("t", b"interrupted", b"k", headers)
        futures.append(producer.send("t", b"3"))
    assert [future.result().offset for future in futures] == [0, 1, 2, 3]
    rows = [(row["key"], row["value"], len(row["headers"] or ())) for _, row in sorted(records(root).items())]
    assert rows == [(None, b"0", 0), (None, b"1", 0), (b"k", b"2", len(headers or ())), (None, b"3", 0)]


def test_an_interrupted_send_releases_the_lock() -> None:
    root, futures = root_with(1), list[RecordFuture]()
    with sparklog.producer(root, linger_ms=LATER, buffer_memory=1 << 30) as producer:
        for _ in range(100):
            repeat_until_interrupted(lambda: futures.append(producer.send("t", b"x", b"k")))
            is_released = producer._accumulator.lock.acquire(timeout=5)
            # If the lock was not released, `close` would not end.
            producer._accumulator.lock.release()
            assert is_released
    # An interrupted call may have accepted its record.
    assert 0 <= root.topic("t").count().records - len(futures) <= 100


def test_a_batch_whose_only_record_was_interrupted_is_not_committed(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(_: Batch) -> NoReturn:
        raise KeyboardInterrupt

    root = root_with(1)
    with sparklog.producer(root, linger_ms=LATER) as producer:
        with monkeypatch.context() as patch:
            # The size is read after the batch was opened.
            patch.setattr(Batch, "nbytes", property(interrupt))
            with pytest.raises(KeyboardInterrupt):
                producer.send("t", b"interrupted")
        assert "t" in producer._accumulator.batches
        producer.flush(10)
        future = producer.send("t", b"0")
    assert future.result().offset == 0
    assert root.topic("t").log.state().version == 1


def test_only_the_rejected_record_fails() -> None:
    world = World()
    root = root_with(2, world, max_message_bytes=1000)
    root.topic("t").alter(configs={"message.timestamp.before.max.ms": 3_600_000})
    with sparklog.producer(root, linger_ms=LATER) as producer:
        futures = []
        for number in range(40):
            value = os.urandom(1500) if number in (7, 8, 30) else b"%d" % number
            timestamp = 5 if number == 20 else None
            futures.append(producer.send("t", value, timestamp=timestamp))
    there = records(root)
    assert len(there) == 36
    for number, future in enumerate(futures):
        error = future.exception()
        if number in (7, 8, 30, 20):
            assert isinstance(error, BadRequest)
            assert ("timestamp 5" if number == 20 else "a batch with a single record has") in str(error)
        else:
            assert there[future.result()[1:3]]["value"] == b"%d" % number


def test_a_compacted_topic_rejects_keyless_records() -> None:
    root = root_with(2, cleanup_policy="compact")
    with sparklog.producer(root, linger_ms=LATER) as producer:
        futures = [producer.send("t", "x", key=None if number == 3 else "k") for number in range(6)]
    assert [future.exception() is None for future in futures] == [True] * 3 + [False] + [True] * 2
    with pytest.raises(BadRequest, match="rejects records without a key"):
        futures[3].result()


def test_a_topic_that_was_deleted() -> None:
    world = World()
    root = root_with(1, world)
    with sparklog.producer(root, linger_ms=1) as producer:
        producer.send("t", "a").result(10)
        world.root().delete_topic("t")
        with pytest.raises(NotFound, match="does not exist"):
            producer.send("t", "b").result(10)


def faulty(script: Script, world: World) -> Root:
    root_with(1, world)
    return world.root(FaultyStore(world.store, script, world.sleep))


@pytest.mark.usefixtures("records_in_files")
def test_a_failed_write_publishes_nothing() -> None:
    script, world = Script(), World()
    with sparklog.producer(faulty(script, world), linger_ms=LATER) as producer:
        producer.send("t", "0")
        producer.flush()
        script.faults["close:append"] = Fault(FaultKind.ERROR_BEFORE)
        failed = [producer.send("t", str(number)) for number in range(3)]
        told: list[int] = []
        for number, future in enumerate(failed):
            future.add_errback(lambda _, number=number: told.append(number))
        producer.flush()
        script.faults.clear()
        good = [producer.send("t", str(number)) for number in range(3)]
    for future in failed:
        with pytest.raises(
            Unavailable, match=r"none of the records in this commit \(3\) was published: send the records again"
        ):
            future.result()
    assert told == [0, 1, 2]
    assert [future.result().offset for future in good] == [1, 2, 3]
    assert len({id(future.exception()) for future in failed}) == 3 or failed[0].exception() is not failed[1].exception()


def test_a_commit_with_unknown_result_is_reported() -> None:
    script, world = Script(), World()
    root = faulty(script, world)
    with sparklog.producer(root, linger_ms=LATER) as producer:
        producer.send("t", "0")
        producer.flush()
        script.faults["create:commit"] = Fault(FaultKind.ERROR_BEFORE)
        failed = producer.send("t", "1")
        producer.flush()
        script.faults.clear()
    with pytest.raises(Unavailable, match=r"whether the records in this commit \(1\) were published: check"):
        failed.result()


@pytest.mark.parametrize("cause", ["clock", "right"])
def test_a_commit_rejected_before_writing_is_reported(monkeypatch: pytest.MonkeyPatch, cause: str) -> None:
    def denied(store: FaultyStore, key: str, data: bytes) -> bool:
        raise Unavailable(f"cannot create {key}", is_denied=True)

    script, world = Script(), World()
    root_with(1, world)
    hour = 3_600_000 if cause == "clock" else 0
    env = replace(world.env(), wall_ms=lambda: world.clock() + hour)
    with sparklog.producer(open_root(FaultyStore(world.store, script), env=env), linger_ms=LATER) as producer:
        if cause == "right":
            monkeypatch.setattr(FaultyStore, "create", denied)
        failed = producer.send("t", "1")
        producer.flush()
    with pytest.raises(
        Unavailable, match=r"none of the records in this commit \(1\) was published: send the records again"
    ) as raised:
        failed.result()
    assert "unknown" not in str(raised.value)
    assert not records(world.root())


def test_a_lost_response_does_not_duplicate_records() -> None:
    script, world = Script(), World()
    root = faulty(script, world)
    futures = []
    with sparklog.producer(root, linger_ms=LATER) as producer:
        for number in range(30):
            futures.append(producer.send("t", str(number)))
            if number % 3 == 2:
                script.fail("create:commit", (FaultKind.ERROR_AFTER, FaultKind.TWICE)[number % 2])
                producer.flush()
    assert [future.result().offset for future in futures] == list(range(30))
    assert [row["value"] for _, row in sorted(records(world.root()).items())] == [b"%d" % n for n in range(30)]
    assert len(script.struck) == 10


def test_a_dead_sender_thread_fails_pending_records(monkeypatch: pytest.MonkeyPatch) -> None:
    def die(*_: object) -> None:
        raise MemoryError("no memory")

    monkeypatch.setattr("threading.excepthook", lambda _: None)
    monkeypatch.setattr(Sender, "_commit", die)
    producer = sparklog.producer(root_with(), linger_ms=1)
    with pytest.raises(
        Unavailable, match=r"the sender thread of this producer failed \(MemoryError: no memory\).*unknown"
    ):
        producer.send("t", "a").result(10)
    with pytest.raises(Unavailable, match="the sender thread of this producer failed"):
        producer.send("t", "b")
    producer.flush(1)
    producer.close()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_forked_process_gets_an_error(tmp_path: Path) -> None:
    sparklog.open(tmp_path, create=True).create_topic("t")
    program = f"""
        import os, sparklog
        producer = sparklog.producer({str(tmp_path)!r}, linger_ms=1000)
        waiting = producer.send("t", "a")
        child = os.fork()
        if child == 0:
            try:
                producer.send("t", "b")
            except sparklog.BadRequest as error:
                print(error, flush=True)
                # No thread of the child ends it: waiting for it would take for ever.
                print(type(waiting.exception(20)).__name__, flush=True)
                with sparklog.producer({str(tmp_path)!r}) as other:
                    print(other.send("t", "c").result(20).partition, flush=True)
                producer.close()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        print(producer.send("t", "d").result(20).partition)
    """
    answer = run(program)
    assert "this process was forked" in answer[0]
    assert answer[1:] == ["BadRequest", "0", "0"]
    values = sparklog.open(tmp_path).topic("t").scan().to_table().column("value").to_pylist()
    assert sorted(values) == [b"a", b"c", b"d"]


def test_interpreter_exit_sends_pending_records(tmp_path: Path) -> None:
    sparklog.open(tmp_path, create=True).create_topic("t")
    run(
        f"""
        import sparklog
        producer = sparklog.producer({str(tmp_path)!r}, linger_ms=100_000)
        producer.send("t", "a")
        """
    )
    assert sparklog.open(tmp_path).topic("t").count().records == 1


def test_a_garbage_collected_producer_sends_and_stops() -> None:
    root = root_with()
    future = sparklog.producer(root, linger_ms=LATER).send("t", "a")
    assert future.result(10).offset == 0


def run(program: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_a_newer_run_of_a_transactional_id_fences() -> None:
    root = root_with()
    old = sparklog.producer(root, transactional_id="job")
    old.begin_transaction()
    future = old.send("t", "a")
    new = sparklog.producer(root, transactional_id="job")
    new.begin_transaction()
    new.send("t", "b")
    new.commit_transaction()
    with pytest.raises(Fenced):
        old.commit_transaction()
    with pytest.raises(Fenced):
        future.result(0)
    old.close()
    new.close()
    assert [row["value"] for row in records(root).values()] == [b"b"]
