"""InitProducerId 0 to 4: a random id of 62 bits, so that no two producers share one, and no server keeps a counter.

A producer that comes with an id and an epoch is given a new id. Left out: transactional ids, which are refused.
"""

from __future__ import annotations

from sparklog.format.coordinators.message_schema import Fields
from sparklog.serve.codes import Code
from sparklog.serve.services import ServedRequest

LEAST = 1 << 32
"""Ids of brokers count from 0: none of theirs, in imported topics, is so high."""


async def init_producer_id(request: ServedRequest) -> Fields:
    services = request.services
    if not services.options.writable:
        return {"errorCode": Code.CLUSTER_AUTHORIZATION_FAILED, "producerId": -1, "producerEpoch": -1}
    if request.fields["transactionalId"] is not None:
        return {"errorCode": Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, "producerId": -1, "producerEpoch": -1}
    return {"producerId": services.log.env.random.getrandbits(61) + LEAST, "producerEpoch": 0}
