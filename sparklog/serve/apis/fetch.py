"""Fetch 4 to 11: batches as they are stored, from an offset on, within the bytes and the wait that a client names.

`read_committed` ends at the last stable offset, is not given what is open or aborted here, and is told of Kafka's
aborted transactions of imported topics. A fetch with nothing to give waits until a commit is seen. Left out: sessions
(a client that asks for one is given none, and names all partitions each time), topic ids (version 13), followers.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from sparklog.errors import SparklogError
from sparklog.format.coordinators.message_schema import Fields
from sparklog.log.state.view import READ_COMMITTED, READ_UNCOMMITTED
from sparklog.serve.codes import Code, code_of
from sparklog.serve.served_log import Ends
from sparklog.serve.services import ServedRequest, Services
from sparklog.serve.users import READ

NO_SESSION = 0
FULL_EPOCHS = (0, -1)
"""Epochs of a fetch that names all of its partitions: one that begins a session, and one without."""


@dataclass(slots=True)
class _Answer:
    """Partitions so far, their bytes, and the bounds of the topics as they were seen."""

    topics: list[Fields] = field(default_factory=list)
    nbytes: int = 0
    failed: bool = False
    seen: dict[str, Ends] = field(default_factory=dict)


async def fetch(request: ServedRequest) -> Fields:
    fields, services = request.fields, request.services
    if request.version >= 7 and (fields["sessionId"] != NO_SESSION or fields["sessionEpoch"] not in FULL_EPOCHS):
        return {"errorCode": Code.FETCH_SESSION_ID_NOT_FOUND}
    isolation = READ_COMMITTED if fields["isolationLevel"] == 1 else READ_UNCOMMITTED
    loop = asyncio.get_running_loop()
    until = loop.time() + max(0, fields["maxWaitMs"]) / 1000
    fresh = False
    while True:
        answer = await services.run(_read, request, isolation, fresh)
        left = until - loop.time()
        if answer.failed or answer.nbytes >= fields["minBytes"] or left <= 0 or not answer.seen:
            return {"sessionId": NO_SESSION, "responses": answer.topics}
        await services.log.changed(answer.seen, left, services.run)
        fresh = True


def _read(request: ServedRequest, isolation: str, fresh: bool) -> _Answer:
    """Read what there is. `fresh`: the bounds were looked at a moment ago."""
    services, fields, answer = request.services, request.fields, _Answer()
    most = min(fields["maxBytes"] if fields["maxBytes"] > 0 else 2**31, services.limits.answer_bytes)
    for topic in fields["topics"]:
        name, rows = topic["topic"], list[Fields]()
        denied: tuple[Ends, Code | None] = {}, Code.TOPIC_AUTHORIZATION_FAILED
        bounds, failure = _bounds(services, topic, fresh) if request.may(READ, name) else denied
        for partition in topic["partitions"]:
            row = _partition(services, name, partition, bounds, isolation, most - answer.nbytes, not answer.nbytes)
            if "errorCode" in row:
                answer.failed = True
                row["errorCode"] = failure or row["errorCode"]
            answer.nbytes += sum(map(len, row.get("records") or ()))
            rows.append(row)
        answer.seen[name] = bounds
        answer.topics.append({"topic": name, "partitions": rows})
    return answer


def _bounds(services: Services, topic: Fields, fresh: bool) -> tuple[Ends, Code | None]:
    """Return the bounds of a topic. Those that were seen last do where records are left below them."""
    name = topic["topic"]
    try:
        bounds = services.log.bounds(name)
        if fresh or all(
            partition["partition"] in bounds
            and bounds[partition["partition"]].log_start
            <= partition["fetchOffset"]
            < bounds[partition["partition"]].last_stable
            for partition in topic["partitions"]
        ):
            return bounds, None
        return services.log.look([name]).get(name, {}), None
    except SparklogError as error:
        return {}, code_of(error)


def _partition(
    services: Services, topic: str, partition: Fields, bounds: Ends, isolation: str, room: int, first: bool
) -> Fields:
    number, offset = partition["partition"], partition["fetchOffset"]
    row: Fields = {"partitionIndex": number, "records": [], "highWatermark": -1}
    bound = bounds.get(number)
    if bound is None:
        return {**row, "errorCode": Code.UNKNOWN_TOPIC_OR_PARTITION}
    row |= {
        "highWatermark": bound.high_watermark,
        "lastStableOffset": bound.last_stable,
        "logStartOffset": bound.log_start,
        "abortedTransactions": [] if isolation == READ_COMMITTED else None,
    }
    if not bound.log_start <= offset <= bound.high_watermark:
        return {**row, "errorCode": Code.OFFSET_OUT_OF_RANGE}
    end, nbytes = bound.end(isolation), min(partition["partitionMaxBytes"], room)
    if offset >= end or (nbytes <= 0 and not first):
        return row
    from sparklog.serve.stored_batches import StoredPlace

    try:
        place = StoredPlace(topic, services.log.topic_id(topic), number, isolation, offset)
        records = services.batches.read(place, end, nbytes, at_least_one=first)
    except SparklogError as error:
        return {**row, "errorCode": code_of(error)}
    row["records"] = records.buffers
    if records.aborted is not None:
        row["abortedTransactions"] = [
            {"producerId": producer, "firstOffset": start} for producer, start in records.aborted
        ]
    return row
