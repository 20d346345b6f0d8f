"""Fetch: batches as they are stored, from an offset on, within the bytes and the wait that a client names.

`read_committed` ends at the last stable offset, is not given what is open or aborted here, and is told of Kafka's
aborted transactions of imported topics. A fetch with nothing to give waits until a commit is seen. A client that asks
for a session is given none, and names all partitions each time.

From version 13 on, requests refer to topics by id. A client of a deleted topic therefore never reads a later topic of
the same name; it gets `UNKNOWN_TOPIC_ID`.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from sparklog.kafka.messages.message_schema import Fields
from sparklog.log.state.view import READ_COMMITTED
from sparklog.serve.codes import FAILURES, Code, CodeError, code_of
from sparklog.serve.served_log import DENIED, Ends, FetchPosition, PolledTopic
from sparklog.serve.services import ServedRequest
from sparklog.serve.users import READ

FULL_EPOCHS = (0, -1)
"""Epochs of a full fetch request, which lists all of its partitions: 0 starts a session, -1 uses none. As in Kafka, the
session id is then ignored: kafka-go sends id -1 with epoch -1."""
ID_VERSION = 13
"""The first version that refers to topics by id."""
UNKNOWN_ID = PolledTopic(code=Code.UNKNOWN_TOPIC_ID)


@dataclass(slots=True)
class _Answer:
    """Partitions so far, their bytes, the most that there may be, and the topics as they were seen."""

    most: int
    seen: dict[str, PolledTopic]
    topics: list[Fields] = field(default_factory=list)
    nbytes: int = 0
    failed: bool = False


async def fetch(request: ServedRequest) -> Fields:
    fields, services = request.fields, request.services
    if fields["sessionEpoch"] not in FULL_EPOCHS:
        return {"errorCode": Code.FETCH_SESSION_ID_NOT_FOUND}
    if request.version >= ID_VERSION:
        await _name_topics(request)
    loop = asyncio.get_running_loop()
    until = loop.time() + max(0, fields["maxWaitMs"]) / 1000
    fresh, at_hand = False, _is_at_hand(request)
    while True:
        # A thread costs more than bytes that are in memory.
        answer = _read(request, fresh) if at_hand else await services.run(_read, request, fresh)
        left = until - loop.time()
        if answer.failed or answer.nbytes >= fields["minBytes"] or left <= 0 or not answer.seen:
            return {"responses": answer.topics}
        await services.log.changed(answer.seen, left, services.run)
        fresh, at_hand = True, False


async def _name_topics(request: ServedRequest) -> None:
    """Set the name of each topic in a request, from its id; the name of an unknown id is empty."""
    log, topics = request.services.log, request.fields["topics"]
    ids = [topic["topicId"] for topic in topics]
    if any(log.name_of(topic_id) is None for topic_id in ids):
        names = await request.services.run(log.names_of, ids)
    else:
        names = {topic_id: log.name_of(topic_id) or "" for topic_id in ids}
    for topic in topics:
        topic["topic"] = names.get(topic["topicId"], "")


def _is_at_hand(request: ServedRequest) -> bool:
    """Return True if all that is asked for was read with what was asked for before."""
    fields, services = request.fields, request.services
    for topic in fields["topics"]:
        name = topic["topic"]
        seen = services.log.last_polled(name)
        for row in topic["partitions"]:
            place = FetchPosition(name, seen.topic_id, row["partition"], request.isolation, row["fetchOffset"])
            nbytes = max(row["partitionMaxBytes"], fields["minBytes"])
            if not (_suffices(row, seen.ends, recent=False) and services.has_buffered(place, nbytes)):
                return False
    return bool(fields["topics"])


def _read(request: ServedRequest, fresh: bool) -> _Answer:
    """Read what there is. `fresh`: the bounds were polled at a moment ago."""
    fields = request.fields
    most = request.services.options.limits.response_bytes
    answer = _Answer(min(fields["maxBytes"], most) if fields["maxBytes"] > 0 else most, _seen(request, fresh))
    for topic in fields["topics"]:
        name, rows = topic["topic"], list[Fields]()
        for partition in topic["partitions"]:
            row: Fields = {"partitionIndex": partition["partition"], "highWatermark": -1, "records": []}
            try:
                _fill(row, request, name, partition, answer)
            except FAILURES as error:
                answer.failed = True
                row["errorCode"] = code_of(error)
            rows.append(row)
        answer.topics.append({"topic": name, "topicId": topic["topicId"], "partitions": rows})
    return answer


def _fill(row: Fields, request: ServedRequest, topic: str, partition: Fields, answer: _Answer) -> None:
    """Put bounds and batches into a partition's answer. `CodeError`, or raises as a read does."""
    number, offset, seen = partition["partition"], partition["fetchOffset"], answer.seen[topic]
    bound = seen.ends.get(number)
    if bound is None:
        raise CodeError(seen.code)
    row["highWatermark"], row["lastStableOffset"] = bound.high_watermark, bound.last_stable
    row["logStartOffset"] = bound.log_start
    row["abortedTransactions"] = [] if request.isolation == READ_COMMITTED else None
    if not bound.log_start <= offset <= bound.high_watermark:
        raise CodeError(Code.OFFSET_OUT_OF_RANGE)
    end, nbytes = bound.end(request.isolation), min(partition["partitionMaxBytes"], answer.most - answer.nbytes)
    first = not answer.nbytes
    if offset >= end or (nbytes <= 0 and not first):
        return
    place = FetchPosition(topic, seen.topic_id, number, request.isolation, offset)
    records = request.services.batches.read(place, end, nbytes, at_least_one=first)
    row["records"] = records.buffers
    answer.nbytes += records.nbytes
    if records.aborted is not None:
        row["abortedTransactions"] = [{"producerId": id_, "firstOffset": start} for id_, start in records.aborted]


def _seen(request: ServedRequest, fresh: bool) -> dict[str, PolledTopic]:
    """Return all topics as they were seen.

    One look is taken for all that may have more: a client that has read most of its topics to their ends names them
    beside the one that it reads on. One that waits will look again, and takes what was seen a moment ago.
    """
    log, topics, stale = request.services.log, dict[str, PolledTopic](), list[str]()
    waits = request.fields["maxWaitMs"] > 0 and request.fields["minBytes"] > 0
    for topic in request.fields["topics"]:
        name = topic["topic"]
        seen = topics[name] = log.last_polled(name)
        recent = waits and log.is_recent(seen)
        if not request.may(READ, name):
            topics[name] = DENIED
        elif not (fresh or all(_suffices(row, seen.ends, recent) for row in topic["partitions"])):
            stale.append(name)
    topics |= log.poll_each(stale)
    if request.version >= ID_VERSION:
        for topic in request.fields["topics"]:
            name = topic["topic"]
            seen = topics[name]
            unknown = seen.code == Code.UNKNOWN_TOPIC_OR_PARTITION and seen.topic_id != topic["topicId"]
            if unknown or not name:
                topics[name] = UNKNOWN_ID
    return topics


def _suffices(partition: Fields, bounds: Ends, recent: bool) -> bool:
    """Return True if records are left below bounds that were seen before, or these are `recent`."""
    bound, offset = bounds.get(partition["partition"]), partition["fetchOffset"]
    if bound is None or not bound.log_start <= offset <= bound.high_watermark:
        return False
    return recent or bool(offset < bound.last_stable)
