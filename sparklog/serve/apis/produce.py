"""Produce: batches are checked, and appended as they come. InitProducerId: ids of idempotent producers.

An answer to `acks` 1 or all means that the commit is durable; 0 is not answered. Without `--writable` it is refused, as
are transactions. An id is random and has 62 bits, so that no two producers share one, and no server keeps a counter. A
producer that comes with an id and an epoch is given a new id.
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
"""Ids of brokers count from 0: none of theirs, in imported topics, is so high."""
ACKS = (0, 1, -1)
TRANSACTIONAL_BIT = 0x10
Taken: TypeAlias = "ProduceResponse | asyncio.Future[ProduceResponse]"


@dataclass(slots=True)
class Produced:
    """A request whose batches were taken: their answers, or what these will be in, by topic and partition."""

    topics: list[tuple[str, list[tuple[int, Taken]]]]
    is_answered: bool
    waiting: list[asyncio.Future[ProduceResponse]] = field(default_factory=list)
    """The batches that are not answered yet, and maybe others."""

    def is_done(self) -> bool:
        while self.waiting and self.waiting[-1].done():
            self.waiting.pop()
        return not self.waiting

    def fields(self) -> Fields | None:
        """Return the response's fields, None to a client that wants none. Each batch must be done."""
        responses = [{"name": name, "partitionResponses": [_row(*row) for row in rows]} for name, rows in self.topics]
        return {"responses": responses} if self.is_answered else None


def produce(request: ServedRequest) -> Produced:
    """Take all batches: each is answered once it is durable, or refused."""
    fields, code = request.fields, Code.NONE
    if not request.services.options.writable:
        code = Code.TOPIC_AUTHORIZATION_FAILED
    elif fields["acks"] not in ACKS:
        code = Code.INVALID_REQUIRED_ACKS
    elif fields["transactionalId"] is not None or _is_transactional(fields):
        _LOG.warning("refused a transaction of %s: only sparklog.transactional has them", request.client)
        code = Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    topics = [
        (topic["name"], [(row["index"], _taken(request, topic["name"], row, code)) for row in topic["partitionData"]])
        for topic in fields["topicData"]
    ]
    waiting = [taken for _, rows in topics for _, taken in rows if not isinstance(taken, ProduceResponse)]
    return Produced(topics, fields["acks"] != 0, waiting)


def _taken(request: ServedRequest, topic: str, row: Fields, code: Code) -> Taken:
    """Take a batch, where the request as a whole has no `code` that refuses it."""
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


def _row(number: int, taken: Taken) -> Fields:
    answer = taken if isinstance(taken, ProduceResponse) else taken.result()
    return {
        "index": number,
        "errorCode": answer.code,
        "baseOffset": answer.base,
        "logAppendTimeMs": answer.time_ms,
        "logStartOffset": answer.log_start,
        "errorMessage": answer.message,
        "recordErrors": list(answer.record_errors),
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
