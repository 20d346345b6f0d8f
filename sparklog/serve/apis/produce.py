"""Handle Produce requests of plain, idempotent and transactional producers. The server must be writable (`--writable`).
If `acks` is 1 or all, the response is sent after the commit is durable. If `acks` is 0, no response is sent.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

from sparklog.errors import SparklogError
from sparklog.format.record_batch import HEADER_BYTES, HEADER_STRUCT, MAGIC, TRANSACTIONAL_BIT
from sparklog.kafka.messages.message_schema import Fields
from sparklog.serve.codes import Code, ProduceResponse, code_of
from sparklog.serve.services import ServedRequest
from sparklog.serve.users import TRANSACTION, WRITE

if TYPE_CHECKING:
    from sparklog.serve.transactions import ClientTransaction

ACKS = (0, 1, -1)
V2, TOPIC_IDS = 12, 13
"""The first version that supports transactions of version 2, and the first version with topic ids instead of names."""
Response: TypeAlias = "ProduceResponse | asyncio.Future[ProduceResponse]"


@dataclass(slots=True)
class Produced:
    """A request whose batches are queued. It contains the responses, or the futures of the responses, by topic and
    partition.
    """

    topics: list[tuple[Fields, list[tuple[int, Response]]]]
    has_response: bool
    waiting: list[asyncio.Future[ProduceResponse]] = field(default_factory=list)
    """The futures that were not complete at the last check."""

    def is_done(self) -> bool:
        while self.waiting and self.waiting[-1].done():
            self.waiting.pop()
        return not self.waiting

    def fields(self) -> Fields | None:
        """Return the fields of the response after all batches are complete.

        Return None if the client does not expect a response.
        """
        responses = [
            {"name": topic["name"], "topicId": topic["topicId"], "partitionResponses": [_row(*row) for row in rows]}
            for topic, rows in self.topics
        ]
        return {"responses": responses} if self.has_response else None


async def produce(request: ServedRequest) -> Produced:
    """Queue all batches. The response to a batch is available when the batch is durable or was rejected."""
    fields, code = request.fields, Code.NONE
    if request.version >= TOPIC_IDS:
        services, topic_ids = request.services, [topic["topicId"] for topic in fields["topicData"]]
        try:
            names = await services.log.find_names(topic_ids, services.run)
        except SparklogError as error:
            return _rejected(fields, ProduceResponse(code_of(error)))
        for topic in fields["topicData"]:
            topic["name"] = names.get(topic["topicId"], "")
    if not request.services.options.writable:
        code = Code.TOPIC_AUTHORIZATION_FAILED
    elif fields["acks"] not in ACKS:
        code = Code.INVALID_REQUIRED_ACKS
    elif fields["transactionalId"] is not None and not request.may(TRANSACTION, fields["transactionalId"]):
        code = Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    topics = [
        (topic, [(row["index"], _append(request, topic, row, code)) for row in topic["partitionData"]])
        for topic in fields["topicData"]
    ]
    waiting = [response for _, rows in topics for _, response in rows if isinstance(response, asyncio.Future)]
    return Produced(topics, fields["acks"] != 0, waiting)


def _rejected(fields: Fields, response: ProduceResponse) -> Produced:
    """Return the same response for all batches."""
    topics: list[tuple[Fields, list[tuple[int, Response]]]] = [
        (topic, [(row["index"], response) for row in topic["partitionData"]]) for topic in fields["topicData"]
    ]
    return Produced(topics, fields["acks"] != 0)


def _append(request: ServedRequest, topic: Fields, row: Fields, code: Code) -> Response:
    """Queue a batch. If `code` is an error, the entire request is rejected, so return the error."""
    name, topic_id = topic["name"], topic["topicId"] if request.version >= TOPIC_IDS else None
    if topic_id is not None and not name:
        return ProduceResponse(Code.UNKNOWN_TOPIC_ID)
    if code is not Code.NONE:
        return ProduceResponse(code)
    if not request.may(WRITE, name):
        return ProduceResponse(Code.TOPIC_AUTHORIZATION_FAILED)
    if not request.services.log.serves(name):
        return ProduceResponse(Code.UNKNOWN_TOPIC_OR_PARTITION)
    transaction = None
    producer = _transactional_producer(row["records"])
    if producer is not None:
        if request.fields["transactionalId"] is None:
            return ProduceResponse(Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
        transaction = _transaction(request, *producer)
    return request.services.appends.add(name, row["index"], row["records"], request.version, transaction, topic_id)


def _transactional_producer(batch: memoryview | None) -> tuple[int, int] | None:
    """Return the producer id and the epoch in the header of a transactional batch. Return None for other batches."""
    if batch is None or len(batch) < HEADER_BYTES:
        return None
    header = HEADER_STRUCT.unpack_from(batch)
    magic, attributes, producer_id, epoch = header[3], header[5], header[9], header[10]
    return (producer_id, epoch) if magic == MAGIC and attributes & TRANSACTIONAL_BIT else None


def _transaction(request: ServedRequest, producer_id: int, epoch: int) -> ClientTransaction:
    from sparklog.serve.transactions import ClientTransaction, ProducerEpoch

    coordinator = request.services.transactions
    assert coordinator is not None
    producer = ProducerEpoch(producer_id, epoch)
    return ClientTransaction(coordinator, request.fields["transactionalId"], producer, request.version >= V2)


def _row(partition: int, response: Response) -> Fields:
    result = response.result() if isinstance(response, asyncio.Future) else response
    return {
        "index": partition,
        "errorCode": result.code,
        "baseOffset": result.base,
        "logAppendTimeMs": result.time_ms,
        "logStartOffset": result.log_start,
        "errorMessage": result.message,
        "recordErrors": list(result.record_errors),
    }
