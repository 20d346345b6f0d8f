"""Data sources that kill a process at a chosen moment, for exactly-once tests. Loaded by name in Spark's workers.

What they do is told by the environment, which workers inherit from the driver:

* `SPARKLOG_TEST_JVM`: a file that holds the driver JVM's process id
* `SPARKLOG_TEST_KILL_AT`: the batch id to kill at
* `SPARKLOG_TEST_TOPICS`: the topics that each record goes to, with commas between
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from sparklog.datasource.data_source import SparklogDataSource
from sparklog.datasource.writer import BATCH_ID, SparklogCommitMessage, SparklogStreamWriter

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.datasource import WriterCommitMessage
    from pyspark.sql.types import StructType

KILL_AT = "SPARKLOG_TEST_KILL_AT"
TOPICS = "SPARKLOG_TEST_TOPICS"
JVM_FILE = "SPARKLOG_TEST_JVM"


class CommitThenDie(SparklogStreamWriter):
    """Kills the driver's JVM when the sink has committed and Spark has not."""

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        super().commit(messages, batchId)
        if str(batchId) == os.environ.get(KILL_AT):
            os.kill(int(Path(os.environ[JVM_FILE]).read_text()), signal.SIGKILL)
            time.sleep(60)


class DieInTask(SparklogStreamWriter):
    """Kills its own worker when a task has written its rows and before it says so; once per `path`.died."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> SparklogCommitMessage:
        from pyspark import TaskContext

        message = super().write(iterator)
        context = TaskContext.get()
        mark = Path(f"{self._plan.location.root}.died")
        if context is not None and context.getLocalProperty(BATCH_ID) == "1" and not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return message


class CommitThenDieSource(SparklogDataSource):
    @classmethod
    def name(cls) -> str:
        return "sparklog_commit_then_die"

    def streamWriter(self, schema: StructType, overwrite: bool) -> SparklogStreamWriter:  # noqa: N802
        return CommitThenDie(super().streamWriter(schema, overwrite)._plan)


class DieInTaskSource(SparklogDataSource):
    @classmethod
    def name(cls) -> str:
        return "sparklog_die_in_task"

    def streamWriter(self, schema: StructType, overwrite: bool) -> SparklogStreamWriter:  # noqa: N802
        return DieInTask(super().streamWriter(schema, overwrite)._plan)
