"""Produce 3 to 9: refused, as the server is for reading."""

from __future__ import annotations

from sparklog.format.coordinators.message_schema import Fields
from sparklog.serve.codes import Code
from sparklog.serve.services import ServedRequest


async def produce(request: ServedRequest) -> Fields | None:
    rows = [
        {
            "name": topic["name"],
            "partitionResponses": [
                {"index": partition["index"], "errorCode": Code.TOPIC_AUTHORIZATION_FAILED, "baseOffset": -1}
                for partition in topic["partitionData"]
            ],
        }
        for topic in request.fields["topicData"]
    ]
    return {"responses": rows} if request.fields["acks"] else None
