"""Test that a broker can open every Kafka log directory after an import and an export, before and after sealing and
compaction, and that consumers read the same records at both isolation levels.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from kafka.consumer.fetcher import Fetcher

from sparklog.kafka.exporting import ExportedTopic, export_topics
from sparklog.kafka.exporting.plan import broker_configs
from sparklog.kafka.exporting.run import ExportOptions
from sparklog.log.state.view import COLUMNS, READ_COMMITTED, READ_UNCOMMITTED
from sparklog.log.topic.topic import Topic
from sparklog.maintenance.work_items import InProcess, Settings
from tests.fixture_data import expected_offsets, expected_records
from tests.kafka.exporting.test_fixtures import imported_from
from tests.kafka.test_importing import STAGES
from tests.kafka_broker import ODD, Broker, Consumed
from tests.kafka_tools import KafkaTools
from tests.support.compaction import compact_topic

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]

DAY_MS = 86_400_000
LEVELS = (READ_UNCOMMITTED, READ_COMMITTED)
KEPT = {"retention.ms": "-1", "retention.bytes": "-1"}
"""The broker's retention must not expire old records."""
IN_JAVA = ("transactions.data.txn-a", "compaction-transactions.after.", "legacy-builder-mixed.data.")


@pytest.fixture(autouse=True)
def empty_control_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """kafka-python fails at control batches whose marker Kafka's cleaner has removed.

    The Java consumer accepts them.
    """
    real = Fetcher.PartitionRecords._contains_abort_marker

    def patched(self: Any, batch: Any) -> bool:
        try:
            return bool(real(self, batch))
        except StopIteration:
            return False

    monkeypatch.setattr(Fetcher.PartitionRecords, "_contains_abort_marker", patched)


@dataclass(frozen=True, slots=True)
class Case:
    """A topic of a stage of a fixture, under a unique name at the broker."""

    fixture: Path
    name: str
    stage: str
    topic: Topic
    rewritten: bool

    @property
    def called(self) -> str:
        return f"{self.name.replace('/', '-')}.{self.stage}.{self.topic.name}"

    @property
    def told(self) -> str:
        """The stage whose recorded Kafka results apply."""
        return self.stage if self.stage != "data-after-clean-shutdown" else "data"

    def records(self, partition: int, isolation: str) -> list[Consumed]:
        """The expected records: those that Kafka's consumer read, without records that a later compaction has
        removed.
        """
        scan = self.topic.scan(partitions=[partition], isolation_level=isolation, columns=COLUMNS).to_table()
        times = scan["timestamp"].cast(pa.int64()).to_pylist()
        found = [
            Consumed(
                row["offset"],
                -1 if time is None else time,
                row["timestampType"],
                row["key"],
                row["value"],
                tuple((header["key"], header["value"]) for header in row["headers"] or ()),
            )
            for row, time in zip(scan.drop_columns(["timestamp"]).to_pylist(), times, strict=True)
        ]
        kafkas = [
            Consumed(r.offset, r.timestamp, r.timestamp_type, r.key, r.value, r.headers)
            for r in expected_records(self.fixture, f"{self.topic.name}-{partition}", isolation, self.told)
        ]
        if self.rewritten and self.topic.log.state().configs.is_compacted:
            assert [record for record in kafkas if record in found] == found
        else:
            assert found == kafkas, (self.called, partition, isolation)
        return found


def cases(fixtures: Path, rewrite: bool) -> Iterator[Case]:
    changed = 0
    for fixture, stage in STAGES:
        root = imported_from(fixtures / fixture / stage)
        now_ms = root.store.now_ms() + 400 * DAY_MS
        for name in root.topics():
            topic = root.topic(name)
            before = topic.log.state().version
            if rewrite:
                for _ in range(2):
                    assert not compact_topic(topic, Settings(now_ms=now_ms), InProcess()).failures
                changed += int(topic.log.state().version > before)
            yield Case(fixtures / fixture, fixture, stage, topic, rewrite)
    assert changed > 40 or not rewrite, changed


@pytest.mark.parametrize("rewrite", [False, True])
def test_broker_reads_every_exported_fixture(
    broker: Broker, fixtures: Path, kafka_tools: KafkaTools, tmp_path: Path, rewrite: bool
) -> None:
    every = {case.called: case for case in cases(fixtures, rewrite)}
    assert len(every) > 100
    with broker:
        ids = {
            called: broker.create(
                called, case.topic.log.state().partitions, broker_configs(case.topic.log.state().configs)[0] | KEPT
            )
            for called, case in every.items()
        }
    exported: dict[str, ExportedTopic] = {}
    logs: list[Path] = []
    for called, case in every.items():
        out = tmp_path / "out" / called
        (exported[called],) = export_topics(
            case.topic.root, out, [case.topic.name], ExportOptions(topic_id=ids[called], durable=False)
        )
        broker.replace(out, case.topic.name, called)
        logs += out.glob("*/*.log")
    assert kafka_tools.complaints(sorted(logs), emptied=True) == []
    broker.start()
    for called, case in every.items():
        for part in exported[called].partitions:
            kafkas = expected_offsets(case.fixture, case.told)[f"{case.topic.name}-{part.partition}"]
            ends = (part.log_end, part.last_stable)
            assert (part.log_start, *ends) == (
                kafkas["logStartOffset"],
                kafkas["logEndOffset"],
                kafkas["lastStableOffset"],
            )
            for level, end in zip(LEVELS, ends, strict=True):
                answer = broker.consume(called, part.partition, level, idle_ms=1500)
                assert answer == (part.log_start, end, case.records(part.partition, level)), (called, part, level)
    java = [called for called in every if called.startswith(IN_JAVA)]
    assert len(java) >= len(IN_JAVA)
    for called in java:
        for level in LEVELS:
            assert sorted(broker.console(called, level)) == lines(
                f"Partition:{part.partition}\tOffset:{record.offset}\t{shown(record.key)}"
                for part in exported[called].partitions
                for record in every[called].records(part.partition, level)
            )


def lines(printed: Iterable[str]) -> list[str]:
    """Return the lines sorted, because keys may contain line breaks."""
    return sorted("\n".join(printed).replace("\r\n", "\n").replace("\r", "\n").split("\n"))


def shown(key: bytes | None) -> str:
    """Return a key as the console consumer prints it."""
    return "null" if key is None else key.decode(errors=ODD)
