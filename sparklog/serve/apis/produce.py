"""Produce and InitProducerId, for plain and idempotent producers. Transactions are not supported.

With `acks` 1 or all, the response means that the commit is durable. With `acks` 0, there is no response. Both APIs
require `--writable`. Producer ids are random 62-bit numbers, so that producers get different ids without a counter that
servers share. A producer that already has an id and an epoch gets a new id.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field
from typing import TypeAlias

from sparklog.kafka.messages.message_schema import Fields
from sparklog.serve.codes import Code, ProduceResponse
from sparklog.serve.services import ServedRequest
from sparklog.serve.users import WRITE

_LOG = logging.getLogger("sparklog.serve")
MIN_PRODUCER_ID = 1 << 32
"""Above the producer ids in imported topics, because brokers assign ids from 0."""
ACKS = (0, 1, -1)
TRANSACTIONAL_BIT = 0x10
Response: TypeAlias = "ProduceResponse | asyncio.Future[ProduceResponse]"


@dataclass(slots=True)
class Produced:
    """A request whose batches are queued: the responses, or their futures, by topic and partition."""

    topics: list[tuple[str, list[tuple[int, Response]]]]
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
        responses = [{"name": name, "partitionResponses": [_row(*row) for row in rows]} for name, rows in self.topics]
        return {"responses": responses} if self.has_response else None


def produce(request: ServedRequest) -> Produced:
    """Queue all batches. A batch gets its response when it is durable or was rejected."""
    fields, code = request.fields, Code.NONE
    if not request.services.options.writable:
        code = Code.TOPIC_AUTHORIZATION_FAILED
    elif fields["acks"] not in ACKS:
        code = Code.INVALID_REQUIRED_ACKS
    elif fields["transactionalId"] is not None or _is_transactional(fields):
        _LOG.warning("rejected a transaction of %s; use sparklog.transactional instead", request.client)
        code = Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    topics = [
        (topic["name"], [(row["index"], _append(request, topic["name"], row, code)) for row in topic["partitionData"]])
        for topic in fields["topicData"]
    ]
    waiting = [response for _, rows in topics for _, response in rows if isinstance(response, asyncio.Future)]
    return Produced(topics, fields["acks"] != 0, waiting)


def _append(request: ServedRequest, topic: str, row: Fields, code: Code) -> Response:
    """Queue a batch. If `code` is an error, the entire request is rejected, so return the error."""
    if code is not Code.NONE:
        return ProduceResponse(code)
    if not request.may(WRITE, topic):
        return ProduceResponse(Code.TOPIC_AUTHORIZATION_FAILED)
    if not request.services.log.serves(topic):
        return ProduceResponse(Code.UNKNOWN_TOPIC_OR_PARTITION)
    return request.services.appends.add(topic, row["index"], row["records"], request.version)


def _is_transactional(fields: Fields) -> bool:
    batches = [partition["records"] for topic in fields["topicData"] for partition in topic["partitionData"]]
    return any(batch is not None and len(batch) > 22 and batch[22] & TRANSACTIONAL_BIT for batch in batches)


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


async def init_producer_id(request: ServedRequest) -> Fields:
    services, code = request.services, Code.NONE
    if not services.options.writable:
        code = Code.CLUSTER_AUTHORIZATION_FAILED
    elif request.fields["transactionalId"] is not None:
        code = Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    if code is not Code.NONE:
        return {"errorCode": code, "producerId": -1, "producerEpoch": -1}
    return {"producerId": services.log.env.random.getrandbits(61) + MIN_PRODUCER_ID, "producerEpoch": 0}
