"""The remedies of verify for a Kafka directory, applied to a running broker: consumers read the same as before."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sparklog.log.journal.clocks import SYSTEM, Env
from sparklog.tools.repair.kafka_directory import repair_log_dir
from sparklog.tools.verification.findings import Finding
from sparklog.tools.verification.kafka_directory import verify_log_dir
from sparklog.tools.verification.kafka_partition import CUT_OFF, SNAPSHOT
from sparklog.tools.verification.slice_checks import REBUILD
from tests.kafka_broker import CLEAN_SHUTDOWN_FILE, Broker
from tests.kafka_tools import Missing

pytestmark = pytest.mark.java

ENV = Env(SYSTEM.wall_ms, SYSTEM.boot_ms, lambda seconds: None, random.Random(1))
VALUE = b"v" * 60_000
TOPICS = ("payments", "states", "forgotten")
LEVELS = ("read_committed", "read_uncommitted")


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    try:
        found = Broker(tmp_path / "broker")
    except Missing as missing:
        pytest.skip(str(missing))
    try:
        yield found
    finally:
        found.stop()


def fill(broker: Broker) -> None:
    """Write eight transactions in segments of 1 MiB, every other one aborted, and a last one that remains open."""
    from kafka import KafkaProducer

    for topic in TOPICS:
        broker.create(topic, 1, {"segment.bytes": "1048576"})
    open_: Any = KafkaProducer(
        bootstrap_servers=broker.address, transactional_id="open", transaction_timeout_ms=600_000
    )
    open_.init_transactions()
    open_.begin_transaction()
    made: Any = KafkaProducer(bootstrap_servers=broker.address, transactional_id="job", batch_size=200_000)
    made.init_transactions()
    for number in range(8):
        made.begin_transaction()
        for row in range(10):
            made.send("payments", key=b"%d" % row, value=VALUE, partition=0)
        made.flush()
        (made.abort_transaction if number % 2 else made.commit_transaction)()
    for topic in TOPICS[1:]:
        open_.send(topic, key=b"k", value=b"v", partition=0)
    open_.flush()
    # Closing the producer would abort the transaction.
    broker.stop()
    made.close(0)
    open_.close(0)


def read(broker: Broker) -> dict[tuple[str, str], tuple[int, int]]:
    """Return the end of a reader and its number of records by topic and isolation level."""
    found = {}
    for topic in TOPICS:
        for level in LEVELS:
            _, end, records = broker.consume(topic, 0, level, idle_ms=1500)
            found[topic, level] = end, len(records)
    return found


def findings(folder: Path) -> dict[str, Finding]:
    return {finding.file: finding for finding in verify_log_dir(folder, env=ENV).findings}


def test_consumers_read_the_same_records_after_the_remedy(broker: Broker) -> None:
    with broker:
        fill(broker)
    with broker:
        before = read(broker)
    assert before["payments", "read_committed"][1] == 40
    assert before["states", "read_committed"] == (0, 0)
    assert before["states", "read_uncommitted"] == (1, 1)

    folder = broker.data / "payments-0"
    logs = sorted(path.stem for path in folder.glob("*.log"))
    transactions = {path.stem for path in folder.glob("*.txnindex")}
    assert logs[-1] in transactions, "the active segment has one"
    assert len(transactions) > 1
    names = [f"{logs[0]}.timeindex", f"{logs[1]}.index", *(f"{base}.txnindex" for base in transactions)]
    kept = {folder / name: (folder / name).read_bytes() for name in names}
    for path in kept:
        path.unlink()
    (snapshot,) = (broker.data / "states-0").glob("*.snapshot")
    snapshot.write_bytes(b"\0" * 40)
    leftovers = [folder / f"{logs[0]}.log.deleted", folder / f"{logs[0]}.timeindex.cleaned"]
    for path in leftovers:
        path.write_bytes(b"left")
    found = findings(broker.data)
    relative = {path: str(path.relative_to(broker.data)) for path in (*kept, snapshot)}
    remedies = {name: SNAPSHOT if name.endswith("snapshot") else REBUILD for name in relative.values()}
    assert {name: finding.remedy for name, finding in found.items()} == remedies

    report = repair_log_dir(broker.data, execute=True, env=ENV)
    assert [finding.file for finding in report.left] == [relative[snapshot]], "the only snapshot stays"
    assert {path: path.read_bytes() for path in kept} == kept
    # This is why the remedy does not recommend deleting it.
    next((broker.data / "forgotten-0").glob("*.snapshot")).unlink()
    with broker:
        assert read(broker) == {**before, ("forgotten", "read_committed"): (1, 1)}
        assert not any(path.exists() for path in leftovers)
    assert findings(broker.data) == {}

    last = folder / f"{logs[-1]}.log"
    whole = last.read_bytes()
    last.write_bytes(whole + whole[:100])
    (broker.data / CLEAN_SHUTDOWN_FILE).unlink()
    (torn,) = findings(broker.data).values()
    assert torn.remedy == CUT_OFF
    with broker:
        assert read(broker) == before
    assert last.read_bytes() == whole
