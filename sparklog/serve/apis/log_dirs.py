"""DescribeLogDirs 1 to 4: one directory, the location that is served, with the stored bytes of each partition.

Left out: the size of the disk, and lags of replicas.
"""

from __future__ import annotations

from sparklog.errors import SparklogError
from sparklog.format.coordinators.message_schema import Fields
from sparklog.serve.codes import Code
from sparklog.serve.served_log import ServedLog
from sparklog.serve.services import ServedRequest
from sparklog.serve.users import READ


async def describe_log_dirs(request: ServedRequest) -> Fields:
    asked = request.fields["topics"]
    partitions = None if asked is None else {topic["topic"]: set(topic["partitions"]) for topic in asked}
    log = request.services.log
    topics = await request.services.run(_sizes, log, partitions)
    topics = [topic for topic in topics if request.may(READ, topic["name"])]
    return {"results": [{"errorCode": Code.NONE, "logDir": log.location, "topics": topics}]}


def _sizes(log: ServedLog, asked: dict[str, set[int]] | None) -> list[Fields]:
    topics = []
    for name in log.topics() if asked is None else asked:
        try:
            sizes = log.sizes(name) if name in log.look([name]) else []
        except SparklogError:
            continue
        rows = [
            {"partitionIndex": size.partition, "partitionSize": size.total_bytes, "offsetLag": 0}
            for size in sizes
            if asked is None or size.partition in asked[name]
        ]
        if rows:
            topics.append({"name": name, "partitions": rows})
    return topics
