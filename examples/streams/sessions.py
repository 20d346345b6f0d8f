"""Sessions: group the pages of a user until 15 minutes of inactivity, with custom state and timers."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timezone
from typing import Any

from pyspark.sql import Row, SparkSession
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle
from running import append, finish, read, require, start

require('".[spark,state]"', "protobuf")

GAP_MS = 15 * 60_000


class Sessions(StatefulProcessor):  # type: ignore[misc]
    """The open session of each user. A session ends when its timer fires, or with a click after a longer gap."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.handle = handle
        self.session = handle.getValueState("session", "begin BIGINT, last BIGINT, pages ARRAY<STRING>")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:  # noqa: N802, N803
        begin, last, pages = self.session.get() if self.session.exists() else (0, 0, [])
        for row in sorted(rows, key=lambda row: row.at):
            if pages and row.at - last > GAP_MS:
                yield self.closed(key, begin, pages)
                pages = []
            begin = min(begin, row.at) if pages else row.at
            last, pages = max(last, row.at), [*pages, row.page]
        for timer in list(self.handle.listTimers()):
            self.handle.deleteTimer(timer)
        self.handle.registerTimer(last + GAP_MS)
        self.session.update((begin, last, pages))

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:  # noqa: N802, N803
        begin, _, pages = self.session.get()
        self.session.clear()
        yield self.closed(key, begin, pages)

    def closed(self, key: Any, begin: int, pages: list[str]) -> Row:
        at = datetime.fromtimestamp(begin / 1000, timezone.utc)
        return Row(key=key[0], value=f"{at:%H:%M} {' '.join(pages)}")


def find_sessions(spark: SparkSession, folder: str) -> None:
    """Append each closed session to the topic `sessions`."""
    clicks = spark.readStream.format("sparklog").option("startingOffsets", "earliest").load(f"{folder}/log/clicks")
    columns = ("CAST(key AS STRING) AS user", "CAST(value AS STRING) AS page", "unix_millis(timestamp) AS at")
    users = clicks.withWatermark("timestamp", "5 minutes").selectExpr(*columns, "timestamp").groupBy("user")
    sessions = users.transformWithState(Sessions(), "key STRING, value STRING", "append", "eventTime")

    writer = sessions.writeStream.format("sparklog").option("path", f"{folder}/log").option("topic", "sessions")
    finish(writer.option("checkpointLocation", f"{folder}/checkpoints/sessions"))


def main(spark: SparkSession, folder: str) -> str:
    root, states = f"{folder}/log", "org.apache.spark.sql.execution.streaming.state"
    spark.conf.set("spark.sql.streaming.stateStore.providerClass", f"{states}.RocksDBStateStoreProvider")
    append(root, "clicks", [("anna", "/home", "10:00"), ("ben", "/home", "10:02"), ("anna", "/cart", "10:09")])
    append(root, "clicks", [("anna", "/home", "10:31"), ("ben", "/help", "10:32")])
    find_sessions(spark, folder)
    first = read(root, "sessions")

    append(root, "clicks", [("anna", "/pay", "10:40"), ("carl", "/home", "11:30")])
    find_sessions(spark, folder)
    second = read(root, "sessions")[len(first) :]
    return "\n".join(["first run:", *sorted(first), "second run:", *sorted(second)])


if __name__ == "__main__":
    start(main)
