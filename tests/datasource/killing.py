"""Data sources that kill a process at a given time, for exactly-once tests. Spark's workers load them by name.

They are configured by the environment, which workers inherit from the driver:

* `SPARKLOG_TEST_JVM`: a file that contains the process id of the driver's JVM
* `SPARKLOG_TEST_KILL_AT`: the id of the batch at which to kill
* `SPARKLOG_TEST_TOPICS`: the topics to which each record is written, separated by commas
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
    """Kills the driver's JVM after the sink has committed and before Spark has committed."""

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        super().commit(messages, batchId)
        if str(batchId) == os.environ.get(KILL_AT):
            os.kill(int(Path(os.environ[JVM_FILE]).read_text()), signal.SIGKILL)
            time.sleep(60)


class DieInTask(SparklogStreamWriter):
    """Kills its own worker after a task has written its rows and before it reports success, once per `path`.died."""

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
