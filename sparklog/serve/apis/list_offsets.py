"""ListOffsets 1 to 7: the earliest and the latest offset, that of the greatest time, and the first at or after a time.

`read_committed` ends at the last stable offset. Left out: tiered storage's offsets (version 8), and leader epochs.
"""

from __future__ import annotations

from sparklog.errors import SparklogError
from sparklog.format.coordinators.message_schema import Fields
from sparklog.log.state.view import READ_UNCOMMITTED, Bounds
from sparklog.serve.codes import Code, code_of
from sparklog.serve.served_log import ServedLog
from sparklog.serve.services import ServedRequest
from sparklog.serve.users import READ

LATEST, EARLIEST, GREATEST_TIME = -1, -2, -3


def list_offsets(request: ServedRequest) -> Fields:
    log, topics = request.services.log, []
    names = [topic["name"] for topic in request.fields["topics"]]
    failures = {name: Code.TOPIC_AUTHORIZATION_FAILED for name in names if not request.may(READ, name)}
    looked, unreadable = log.look_at_each([name for name in names if name not in failures])
    failures |= unreadable
    for topic in request.fields["topics"]:
        name, rows = topic["name"], []
        ends = looked[name].ends if name in looked else {}
        for partition in topic["partitions"]:
            number = partition["partitionIndex"]
            answer: Fields = {"errorCode": failures.get(name, Code.UNKNOWN_TOPIC_OR_PARTITION)}
            if number in ends:
                answer = _answer(log, name, number, partition["timestamp"], ends[number], request.isolation)
            rows.append({"partitionIndex": number, "timestamp": -1, "offset": -1, "leaderEpoch": -1, **answer})
        topics.append({"name": name, "partitions": rows})
    return {"topics": topics}


def _answer(log: ServedLog, topic: str, partition: int, time_ms: int, bounds: Bounds, isolation: str) -> Fields:
    if time_ms == EARLIEST:
        return {"offset": bounds.log_start}
    if time_ms == LATEST:
        return {"offset": bounds.end(isolation)}
    try:
        # As in Kafka, the greatest time is of all records, and no answer if its record cannot be seen.
        greatest = time_ms == GREATEST_TIME
        target = log.greatest_timestamp(topic, partition) if greatest else time_ms
        if target < 0:
            return {}
        record = log.offset_for_timestamp(topic, partition, target, READ_UNCOMMITTED if greatest else isolation)
    except SparklogError as error:
        return {"errorCode": code_of(error)}
    if record is None or record.offset >= bounds.end(isolation):
        return {}
    return {"offset": record.offset, "timestamp": record.timestamp}
