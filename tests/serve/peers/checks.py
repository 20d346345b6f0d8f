"""The checks of the client matrix: what one client does at one server.

A check returns a value that must be equal at the server and at a real broker. Topics with existing records come from
the fixtures, whose files a broker wrote: the broker of the matrix runs on these files, and the server serves their
import.
"""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import sparklog
from tests.fixture_data import expected_records, partitions, split_partition
from tests.kafka_broker import Broker
from tests.serve.clients import ISOLATIONS
from tests.serve.peers.peer import Peer, Place, Record, data, text

CODECS = ("gzip", "snappy", "lz4", "zstd")
START_MS = 1_700_000_000_000
STAGES = (
    ("codecs", "data"),
    ("transactions", "data"),
    ("timestamps", "data"),
    ("compaction-by-broker", "after"),
    ("retention/delete-records", "start-moved"),
)
"""The fixtures with the existing topics."""
WAIT_SECONDS = 40.0
READING_SECONDS = 6.0
"""The time in which a member reads the latest records, also if it joins again."""


@dataclass(frozen=True, slots=True)
class Target:
    """A server, and a Java client that prepares it and reads what another client wrote."""

    address: str
    java: Peer
    folder: Path
    counts: Mapping[str, Mapping[Place, int]]
    """The number of records of each existing partition by isolation level."""


class Run:
    """A client at a server. One process of the client runs all checks, unless it ends."""

    def __init__(
        self, start: Callable[[], AbstractContextManager[Peer]], label: str, target: Target, stack: ExitStack
    ) -> None:
        self._start = start
        self._label = re.sub(r"[^a-z0-9.]+", "-", label.lower())
        self._stack = stack
        self._peer: Peer | None = None
        self.target = target
        self.address = target.address

    @contextmanager
    def check(self) -> Iterator[None]:
        """End the other processes of the client at the end of the block."""
        with ExitStack() as self._others:
            yield

    @property
    def peer(self) -> Peer:
        if self._peer is None or not self._peer.is_running:
            self._peer = self._stack.enter_context(self._start())
        return self._peer

    def another(self) -> Peer:
        """Start another process of the client."""
        return self._others.enter_context(self._start())

    def topic(self, name: str, partitions: int = 1) -> str:
        """Create a topic for this client. Return its name."""
        topic = f"{name}-{self._label}"
        create_topic(self.address, topic, partitions)
        return topic

    def existing(self, isolation: str, *prefixes: str) -> tuple[list[Place], int]:
        """Return the existing partitions of topics with these prefixes and the number of their records."""
        counts = self.target.counts[isolation]
        for prefix in prefixes:
            assert any(topic.startswith(prefix) for topic, _ in counts), f"there is no topic {prefix}*"
        places = [place for place in counts if place[0].startswith(prefixes)]
        return places, sum(counts[place] for place in places)

    def group(self, name: str) -> dict[str, Any]:
        """Describe a group with the Java client."""
        answer: dict[str, Any] = self.target.java.ask("group", self.address, group=name)
        return answer

    def append(self, topic: str, values: range, parts: int = 1) -> None:
        """Write numbers with the Java client."""
        rows: list[Record] = [(n % parts, START_MS + n, b"k", b"%d" % n, ()) for n in values]
        self.target.java.produce(self.address, topic, rows)


def create_topic(address: str, topic: str, partitions: int) -> None:
    """Create a topic, and wait until its partitions have leaders.

    Otherwise, a producer that is not idempotent may retry its first batch after the next one.
    """
    from kafka import KafkaConsumer, TopicPartition
    from kafka.admin import KafkaAdminClient, NewTopic

    admin, consumer = KafkaAdminClient(bootstrap_servers=address), KafkaConsumer(bootstrap_servers=address)
    try:
        admin.create_topics([NewTopic(topic, partitions, 1, topic_configs={"retention.ms": "-1"})])
        admin.wait_for_topics([topic])
        consumer.end_offsets([TopicPartition(topic, number) for number in range(partitions)])
    finally:
        consumer.close()
        admin.close()


def sent_records(library: str, codec: str) -> list[Record]:
    """Return records of all kinds for two partitions: several batches, one of them large.

    Clients that cannot send some of the kinds send the others.
    """
    headers = ((), (("a", b"1"), ("a", b""), ("\u00fc", b"\xff")), (("null", None),))
    keys, values = (None, b"", b"anna", "\u00fc".encode()), (b"", b"book", bytes(range(256)), None, b"x" * 5_000)
    rows: list[Record] = [
        (n % 2, START_MS + n * 7 % 50, keys[n % 4], values[n % 5], headers[n % 3]) for n in range(400)
    ]
    if library in ("kafka-python", "aiokafka"):
        rows = [row for row in rows if row[2:4] != (None, None)]
    if library in ("kafka-python", "kafkajs", "rskafka"):
        rows = [row for row in rows if ("null", None) not in row[4]]
    return [*rows, (0, START_MS, codec.encode(), b"y" * 300_000, ())]


def produced(run: Run, name: str, codec: str = "none", acks: str = "all", idempotent: bool = False) -> Any:
    """Return the offsets of produced records as acknowledged, and the records that Java reads."""
    topic = run.topic(f"{name}-{codec}-{acks}", 2)
    options = {"compression.type": codec, "acks": acks, "enable.idempotence": str(idempotent).lower()}
    sent = sent_records(run.peer.library, codec)
    offsets = run.peer.produce(run.address, topic, sent, **options)
    places: list[Place] = [(topic, 0), (topic, 1)]
    deadline = time.monotonic() + WAIT_SECONDS
    while True:
        landed = run.target.java.read(run.address, places, "read_committed")
        # Without acknowledgements, records may arrive after the client's last call.
        if acks != "0" or sum(map(len, landed.values())) >= len(sent) or time.monotonic() > deadline:
            break
    if not sum(map(len, landed.values())):
        raise AssertionError("no record arrived")
    return {"offsets": offsets if acks != "0" else None, "records": landed}


def produces(run: Run) -> Any:
    return produced(run, "produced")


def produces_codecs(run: Run) -> Any:
    return {codec: produced(run, "codec", codec) for codec in CODECS}


def produces_acks(run: Run) -> Any:
    return {acks: produced(run, "acks", acks=acks) for acks in ("0", "1")}


def produces_idempotent(run: Run) -> Any:
    return produced(run, "idempotent", idempotent=True)


def transacts(run: Run) -> Any:
    """Return the values that both isolation levels read. Offsets differ, because a broker's markers take some."""
    topic = run.topic("transacted")
    transactions = [
        {"values": [text(b"%d-%d" % (n, m)) for m in range(n % 4)], "commit": n % 3 != 1, "offset": n} for n in range(9)
    ]
    options = {"transactional.id": topic}
    group = f"group-{topic}"
    run.peer.ask("transact", run.address, topic=topic, group=group, transactions=transactions, options=options)
    places: list[Place] = [(topic, 0)]
    values = {
        isolation: [row.value for row in run.target.java.read(run.address, places, isolation)[topic, 0]]
        for isolation in ISOLATIONS
    }
    return {"values": values, "offsets": run.group(group)["offsets"]}


def reads_all(run: Run) -> Any:
    places, count = run.existing("read_uncommitted", "codec-", "time-append")
    return run.peer.read(run.address, places, "read_uncommitted", count)


def reads_by_time(run: Run) -> Any:
    places, _ = run.existing("read_committed", "codec-zstd", "time-append")
    times = [0, 1_704_153_599_999, 1_704_153_600_500, 1_704_153_602_000, 1_795_257_855_000, 1_900_000_000_000]
    return run.peer.offsets(run.address, places, times)


def reads_committed(run: Run) -> Any:
    found = {}
    for isolation in ISOLATIONS:
        places, count = run.existing(isolation, "txn-", "clean-txn")
        found[isolation] = run.peer.read(run.address, places, isolation, count)
    return found


def reads_below_the_log_start(run: Run) -> Any:
    places, count = run.existing("read_uncommitted", "expiring")
    options = {"auto.offset.reset": "earliest"}
    return run.peer.ask("read", run.address, places=places, count=count, options=options, **{"from": 0})


def reads_compacted(run: Run) -> Any:
    places, count = run.existing("read_uncommitted", "clean-")
    return run.peer.read(run.address, places, "read_uncommitted", count)


def group_options(group: str, seconds: int, more: Mapping[str, str]) -> dict[str, str]:
    timeouts = {} if more.get("group.protocol") == "consumer" else {"session.timeout.ms": f"{seconds}000"}
    return {"group.id": group, "auto.offset.reset": "earliest", **timeouts, **more}


class Member:
    """A member that reads in a thread until `stop`."""

    def __init__(self, peer: Peer, reading: Future[Any], file: Path) -> None:
        self.peer = peer
        self.reading = reading
        self._file = file

    def stop(self) -> list[int]:
        """Let the member commit and leave. Return the values that it has read."""
        self._file.touch()
        return values_of(self.reading.result())


class Members:
    """The members of a group. All of them stop at the end of the block."""

    def __init__(self, run: Run, topic: str, more: Mapping[str, str], session_seconds: int) -> None:
        self._run = run
        self._topic = topic
        self._options = group_options(topic, session_seconds, more)
        self._threads = ThreadPoolExecutor(4)
        self._members: list[Member] = []

    def __enter__(self) -> Members:
        return self

    def __exit__(self, *exception: object) -> None:
        for member in self._members:
            with suppress(Exception):
                member.stop()
        self._threads.shutdown()

    def start(self) -> Member:
        file = self._run.target.folder / f"stop-{time.monotonic_ns()}"
        peer = self._run.another()
        peer.offsets(self._run.address, [(self._topic, 0)], [])  # The process has started when it answers.
        task = {"topic": self._topic, "count": 1_000_000, "seconds": 150, "stop": str(file), "options": self._options}
        self._members.append(Member(peer, self._threads.submit(peer.ask, "join", self._run.address, **task), file))
        return self._members[-1]

    def assigned(self, *counts: int, seconds: float = WAIT_SECONDS) -> list[Any]:
        """Wait until the members have these numbers of partitions. Return the latest state of the members.

        Raises the error of a member that has failed.
        """
        deadline = time.monotonic() + seconds
        while True:
            described = self._run.group(self._topic)
            members = sorted(described["members"], key=str)
            done = described["state"] == "Stable" and sorted(count for _, count in members) == sorted(counts)
            if done or time.monotonic() > deadline:
                return members
            for member in self._members:
                if member.reading.done() and member.peer.is_running:
                    member.reading.result()
            time.sleep(0.2)


def assert_all_read(values: Sequence[int], count: int) -> None:
    """Raise an error if the members of a group have not read all numbers."""
    missing = sorted(set(range(count)) - set(values))
    if missing:
        raise AssertionError(f"records were not read: {missing}")


def values_of(answer: Mapping[str, Any]) -> list[int]:
    return sorted({int(data(row[6]) or b"-1") for row in answer.get("records") or ()})


def shares_partitions(run: Run, more: Mapping[str, str] | None = None, name: str = "shared") -> Any:
    """Join, share partitions, leave, and resume from the committed offsets."""
    topic = run.topic(name, 4)
    found: dict[str, Any] = {}
    run.append(topic, range(40), 4)
    # The session timeout is long: only a request can remove a member.
    with Members(run, topic, more or {}, session_seconds=40) as members:
        first = members.start()
        found["one member"] = members.assigned(4)
        second = members.start()
        found["two members"] = members.assigned(2, 2)
        run.append(topic, range(40, 60), 4)
        values = second.stop()
        found["one member left"] = members.assigned(4, seconds=20)
        run.append(topic, range(60, 80), 4)
        time.sleep(READING_SECONDS)
        values += first.stop()
    assert_all_read(values, 80)
    run.append(topic, range(80, 84), 4)
    task = {"topic": topic, "count": 4, "seconds": 30, "options": group_options(topic, 40, more or {})}
    found["resumed"] = values_of(run.another().ask("join", run.address, **task))
    return found


def survives_a_kill(run: Run) -> Any:
    """Kill a member: another member gets its partitions after the session timeout."""
    topic = run.topic("killed", 4)
    found: dict[str, Any] = {}
    run.append(topic, range(40), 4)
    with Members(run, topic, {}, session_seconds=6) as members:
        first = members.start()
        members.assigned(4)
        second = members.start()
        found["two members"] = members.assigned(2, 2)
        second.peer.kill()
        found["one member"] = members.assigned(4)
        run.append(topic, range(40, 60), 4)
        time.sleep(READING_SECONDS)
        assert_all_read(first.stop(), 60)
    return found


def stays_a_static_member(run: Run) -> Any:
    """A static member keeps its partitions while its client restarts."""
    topic = run.topic("static", 4)
    found: dict[str, Any] = {}
    run.append(topic, range(40), 4)
    with Members(run, topic, {"group.instance.id": "one"}, session_seconds=40) as members:
        member = members.start()
        found["joined"] = members.assigned(4)
        time.sleep(1)
        values = member.stop()
        found["away"] = run.group(topic)["members"]
        run.append(topic, range(40, 60), 4)
        member = members.start()
        time.sleep(READING_SECONDS)
        found["back"] = members.assigned(4)
        assert_all_read([*values, *member.stop()], 60)
    return found


def speaks_the_new_protocol(run: Run) -> Any:
    return shares_partitions(run, {"group.protocol": "consumer"}, "new")


def administers(run: Run) -> Any:
    """Return the result of each step of the admin client."""
    filled = run.topic("filled")
    run.append(filled, range(10))
    group = f"group-{filled}"
    options = {"group.id": group, "auto.offset.reset": "earliest"}
    run.target.java.ask("join", run.address, topic=filled, count=10, seconds=30, options=options)
    topic = filled.replace("filled", "administered", 1)
    answer: dict[str, Any] = run.peer.ask("admin", run.address, topic=topic, filled=filled, group=group)
    return answer["steps"]


CHECKS: Mapping[str, Callable[[Run], Any]] = {
    "Records": produces,
    "Codecs": produces_codecs,
    "acks 0, 1": produces_acks,
    "Idempotent": produces_idempotent,
    "Transactions": transacts,
    "Earliest": reads_all,
    "By time": reads_by_time,
    "Committed": reads_committed,
    "Below start": reads_below_the_log_start,
    "Compacted": reads_compacted,
    "Group": shares_partitions,
    "Killed": survives_a_kill,
    "Static": stays_a_static_member,
    "New protocol": speaks_the_new_protocol,
    "Admin": administers,
}
"""The columns of the page."""


def existing_partitions(fixtures: Path) -> Iterator[tuple[Path, Path, str]]:
    """Return the fixture, the Kafka log directory and the directory name of each existing partition."""
    for fixture, stage in STAGES:
        for name in partitions(fixtures / fixture / stage):
            if not name.startswith("__"):
                yield fixtures / fixture, fixtures / fixture / stage, name


def existing_counts(fixtures: Path) -> dict[str, dict[Place, int]]:
    """Return the number of records in each existing partition by isolation level."""
    return {
        isolation: {
            split_partition(name): len(expected_records(fixture, name, isolation, stage.name))
            for fixture, stage, name in existing_partitions(fixtures)
        }
        for isolation in ISOLATIONS
    }


def fill_root(path: Path, fixtures: Path) -> None:
    """Create a root with the existing topics."""
    sparklog.open(path, create=True)
    for fixture, stage in STAGES:
        sparklog.import_kafka(path, fixtures / fixture / stage, groups=False, open_transactions="keep")


def fill_broker(broker: Broker, fixtures: Path, folder: Path) -> None:
    """Start a broker on the files of the existing topics."""
    found: dict[tuple[Path, str], list[int]] = {}
    for _, stage, name in existing_partitions(fixtures):
        topic, partition = split_partition(name)
        found.setdefault((stage, topic), []).append(partition)
    broker.start()
    ids = {
        topic: broker.create(topic, max(numbers) + 1, {"retention.ms": "-1"}) for (_, topic), numbers in found.items()
    }
    broker.stop()
    for stage in dict.fromkeys(stage for stage, _ in found):
        files = folder / stage.parent.name
        shutil.copytree(stage, files)
        for stage_of, topic in found:
            if stage_of == stage:
                for metadata in files.glob(f"{topic}-[0-9]*/"):
                    if split_partition(metadata.name)[0] == topic:
                        (metadata / "partition.metadata").write_text(f"version: 0\ntopic_id: {ids[topic]}")
                broker.replace(files, topic)
    broker.start()


def unequal(serve: Any, broker: Any) -> str:
    """Describe the first difference of two results."""
    if isinstance(serve, dict) and isinstance(broker, dict):
        for key in dict.fromkeys([*broker, *serve]):
            if serve.get(key) != broker.get(key):
                return f"{key}: {unequal(serve.get(key), broker.get(key))}"
    if isinstance(serve, Sequence) and isinstance(broker, Sequence) and not isinstance(broker, str | bytes):
        if len(serve) != len(broker):
            return f"{len(serve)} instead of {len(broker)}: {serve!r:.80} instead of {broker!r:.80}"
        for number, (one, other) in enumerate(zip(serve, broker, strict=True)):
            if one != other:
                return f"number {number} is {one!r:.100} instead of {other!r:.100}"
    return f"{serve!r:.100} instead of {broker!r:.100}"
