"""Handle Fetch requests: return stored batches within the size and time limits of the request. If the isolation level
is `read_committed`, reads end at the last stable offset and skip records of aborted sparklog transactions. The
response lists aborted Kafka transactions of imported topics. If not enough records are available, a fetch waits for
a commit. Fetch sessions are not supported. If a client requests a session, the server does not create it, and the
client lists all its partitions in each request.

Since version 13, requests refer to topics by id. Therefore, if a topic is recreated with the same name, a client of the
deleted topic receives `UNKNOWN_TOPIC_ID` and does not read the new topic.
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
"""Epochs of a full fetch request, which lists all its partitions: 0 starts a session, and -1 does not use one. As in
Kafka, the session id of such a request is ignored. For example, kafka-go sends id -1 with epoch -1.
"""
ID_VERSION = 13
"""The first version that refers to topics by id."""
UNKNOWN_ID = PolledTopic(code=Code.UNKNOWN_TOPIC_ID)


@dataclass(slots=True)
class _Response:
    """A response that is being built, with its topics, its current size and its maximum size. `polled` contains the
    state of the topics.
    """

    max_bytes: int
    polled: dict[str, PolledTopic]
    topics: list[Fields] = field(default_factory=list)
    nbytes: int = 0
    failed: bool = False
    next_windows: list[tuple[FetchPosition, int]] = field(default_factory=list)
    """The positions and end offsets of the windows to read ahead."""


async def fetch(request: ServedRequest) -> Fields:
    fields, services = request.fields, request.services
    if fields["sessionEpoch"] not in FULL_EPOCHS:
        return {"errorCode": Code.FETCH_SESSION_ID_NOT_FOUND}
    if request.version >= ID_VERSION:
        names = await services.log.find_names([topic["topicId"] for topic in fields["topics"]], services.run)
        for topic in fields["topics"]:
            topic["topic"] = names.get(topic["topicId"], "")
    loop = asyncio.get_running_loop()
    # The server closes a connection that is idle for longer. Its task, which occupies a connection slot, must end, too.
    wait_seconds = min(max(0, fields["maxWaitMs"]) / 1000, services.options.limits.idle_seconds)
    deadline = loop.time() + wait_seconds
    is_fresh = False
    while True:
        # Return batches in memory without a thread, because switching to a thread costs more than copying the batches.
        is_buffered = _is_buffered(request, is_fresh)
        response = _read(request, is_fresh) if is_buffered else await services.run_fetch(_read, request, is_fresh)
        for position, end in response.next_windows:
            services.start_fetch(services.batches.read_ahead, position, end)
        remaining = deadline - loop.time()
        if response.failed or response.nbytes >= fields["minBytes"] or remaining <= 0 or not response.polled:
            return {"responses": response.topics}
        await services.log.wait_for_change(response.polled, remaining, services.run)
        is_fresh = True


def _is_buffered(request: ServedRequest, is_fresh: bool) -> bool:
    """Return True if enough batches of each requested partition are in memory, or if a partition has no new batches.

    If `is_fresh` is true, the topics have just been polled.
    """
    fields, services = request.fields, request.services
    for topic in fields["topics"]:
        name = topic["topic"]
        polled = services.log.last_polled(name)
        for row in topic["partitions"]:
            bound, offset = polled.ends.get(row["partition"]), row["fetchOffset"]
            if bound is None or not bound.log_start <= offset <= bound.high_watermark:
                return False
            end, nbytes = bound.end(request.isolation), max(row["partitionMaxBytes"], fields["minBytes"])
            if is_fresh and offset == end:
                continue
            position = FetchPosition(name, polled.topic_id, row["partition"], request.isolation, offset)
            if offset >= bound.last_stable or not services.has_buffered(position, end, nbytes):
                return False
    return bool(fields["topics"])


def _read(request: ServedRequest, is_fresh: bool) -> _Response:
    """Read the available batches. If `is_fresh` is true, the topics have just been polled."""
    fields = request.fields
    limit = request.services.options.limits.response_bytes
    response = _Response(min(fields["maxBytes"], limit) if fields["maxBytes"] > 0 else limit, _poll(request, is_fresh))
    for topic in fields["topics"]:
        name, rows = topic["topic"], list[Fields]()
        for partition in topic["partitions"]:
            row: Fields = {"partitionIndex": partition["partition"], "highWatermark": -1, "records": []}
            try:
                _fill(row, request, name, partition, response)
            except FAILURES as error:
                response.failed = True
                row["errorCode"] = code_of(error)
            rows.append(row)
        response.topics.append({"topic": name, "topicId": topic["topicId"], "partitions": rows})
    return response


def _fill(row: Fields, request: ServedRequest, topic: str, partition: Fields, response: _Response) -> None:
    """Add the bounds and batches of a partition to its row. Raises `CodeError`, or the errors of a read."""
    number, offset, polled = partition["partition"], partition["fetchOffset"], response.polled[topic]
    bound = polled.ends.get(number)
    if bound is None:
        raise CodeError(polled.code)
    if not bound.log_start <= offset <= bound.high_watermark:
        raise CodeError(Code.OFFSET_OUT_OF_RANGE)
    row["highWatermark"], row["lastStableOffset"] = bound.high_watermark, bound.last_stable
    row["logStartOffset"] = bound.log_start
    row["abortedTransactions"] = [] if request.isolation == READ_COMMITTED else None
    end, nbytes = (
        bound.end(request.isolation),
        min(partition["partitionMaxBytes"], response.max_bytes - response.nbytes),
    )
    is_first = not response.nbytes
    if offset >= end or (nbytes <= 0 and not is_first):
        return
    position = FetchPosition(topic, polled.topic_id, number, request.isolation, offset)
    records = request.services.batches.read(position, end, nbytes, at_least_one=is_first)
    row["records"] = records.buffers
    response.nbytes += records.nbytes
    if records.next_window is not None:
        response.next_windows.append((records.next_window, end))
    if records.aborted is not None:
        row["abortedTransactions"] = [{"producerId": id_, "firstOffset": start} for id_, start in records.aborted]


def _poll(request: ServedRequest, is_fresh: bool) -> dict[str, PolledTopic]:
    """Return the state of all topics. Topics that may have new records are polled in one call. A client lists all its
    topics in each request, even if it has read most of the topics to the end. If a fetch may wait, it uses the
    result of a recent poll, because the topics are polled again while it waits.
    """
    log, topics, stale = request.services.log, dict[str, PolledTopic](), list[str]()
    waits = request.fields["maxWaitMs"] > 0 and request.fields["minBytes"] > 0
    for topic in request.fields["topics"]:
        name = topic["topic"]
        polled = topics[name] = log.last_polled(name)
        is_recent = waits and log.is_recent(polled)
        if not request.may(READ, name):
            topics[name] = DENIED
        elif not (is_fresh or all(_is_sufficient(row, polled.ends, is_recent) for row in topic["partitions"])):
            stale.append(name)
    topics |= log.poll_each(stale)
    if request.version >= ID_VERSION:
        for topic in request.fields["topics"]:
            name = topic["topic"]
            polled = topics[name]
            is_other = polled.code == Code.UNKNOWN_TOPIC_OR_PARTITION and polled.topic_id != topic["topicId"]
            if is_other or not name:
                topics[name] = UNKNOWN_ID
    return topics


def _is_sufficient(partition: Fields, bounds: Ends, is_recent: bool) -> bool:
    """Return True if records can be read within these bounds, or if the bounds are recent."""
    bound, offset = bounds.get(partition["partition"]), partition["fetchOffset"]
    if bound is None or not bound.log_start <= offset <= bound.high_watermark:
        return False
    return is_recent or bool(offset < bound.last_stable)
