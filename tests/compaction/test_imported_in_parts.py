"""Kafka's logs that are imported in several steps, and sealed and merged in between, read the same as after a single
import.
"""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest

from sparklog.kafka.importing.run import ImportOptions, import_log_dir
from sparklog.maintenance.work_items import InProcess, Settings
from tests.compaction.histories import History
from tests.compaction.test_imported_transactions import check, log_dir, model_of, sealed_by_now
from tests.support.compaction import compact_topic
from tests.support.counted_root import CountedRoot
from tests.support.seeds import first_of


@pytest.fixture
def counted_root(tmp_path: Path) -> CountedRoot:
    return CountedRoot("memory", tmp_path)


@pytest.mark.sweep
@pytest.mark.parametrize("seed", first_of(range(15), 4))
def test_random_logs_that_grow_between_imports(counted_root: CountedRoot, tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    history = History(rng, segment_bytes=rng.choice((300, 900, 4000)))
    for _ in range(rng.choice((3, 6))):
        history.write(rng.choice((3, 20, 60)))
        if rng.random() < 0.3:
            history.end_transactions()
        if rng.random() < 0.3:
            history.roll()
        shutil.rmtree(tmp_path / "kafka", ignore_errors=True)
        import_log_dir(
            counted_root.root,
            log_dir(history, tmp_path / "kafka"),
            ImportOptions(configs={"segment.bytes": 3000}, force=True),
        )
        topic = counted_root.root.topic("t")
        check(topic, model_of(history), rng)
        if rng.random() < 0.7:
            sealed_by_now(topic)
            check(topic, model_of(history), rng)
        assert counted_root.reopened().log.state() == topic.log.state()
    left = topic.log.state().kafka_open
    topic.end_kafka_transactions()
    for each in left:
        writer = next(writer for writer in history.writers if writer.producer_id == each.producer)
        history.end_transaction(writer, 0)
    check(topic, model_of(history), rng)
    compact_topic(topic, Settings(0), InProcess())
    sealed_by_now(topic)
    assert topic.log.snapshot().slices.all().sealed().all()
    check(topic, model_of(history), rng)
