"""The number of function calls of a small append, from its records to the durable commit."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from sparklog.log.state.writer_runs import KafkaWriterKey
from sparklog.log.topic.root import open_root
from sparklog.log.write.arrow_data import write_files
from sparklog.storage.local import LocalStore
from tests.support.counted_calls import counted_calls

COMMITS = 32
MAX_CALLS = 620
"""The maximum number of Python and C function calls for a commit of a producer's records on a disk (3.11: 602).

On a busy host, if more than a second has passed since the previous commit, a commit also reads the next number.
"""


def test_a_commit_of_few_records_takes_few_calls(tmp_path: Path) -> None:
    topic = open_root(LocalStore(tmp_path), create=True).create_topic("t")
    log, counts = topic.log, []
    target = log.append_target()
    files = write_files(pa.table({"value": ["x" * 100] * 100}), target, log.env, options=None, writer=None)
    for batch in range(3 * COMMITS):
        key = KafkaWriterKey("producer", batch, batch - 1 if batch else None, 100)
        with counted_calls("call", "c_call") as count:
            log.commit_append(files, target, kafka_writers=(key,), is_optimistic=True)
        counts.append(count[0])
    # Embedded documents and occasional checkpoints are included. The first commits import modules. Of the other two
    # groups, at least one should not contain the additional reads of a busy host.
    assert min(sum(counts[start : start + COMMITS]) for start in (COMMITS, 2 * COMMITS)) / COMMITS < MAX_CALLS
