"""SaslHandshake and SaslAuthenticate: PLAIN and SCRAM-SHA-256, if the server has a users file.

SaslHandshake version 0 is not supported, because clients would then authenticate without SaslAuthenticate requests.
"""

from __future__ import annotations

from functools import partial

from sparklog.kafka.messages.message_schema import Fields
from sparklog.serve.codes import Code, CodeError
from sparklog.serve.services import ServedRequest
from sparklog.serve.users import MECHANISMS, SaslExchange


async def sasl_handshake(request: ServedRequest) -> Fields:
    mechanism, users = request.fields["mechanism"], request.services.options.users
    if users is None:
        return {"errorCode": Code.ILLEGAL_SASL_STATE}
    if mechanism not in MECHANISMS:
        return {"errorCode": Code.UNSUPPORTED_SASL_MECHANISM, "mechanisms": list(MECHANISMS)}
    request.client.user = None
    request.client.exchange = SaslExchange(mechanism, users, request.services.log.env.random)
    return {"mechanisms": list(MECHANISMS)}


async def sasl_authenticate(request: ServedRequest) -> Fields:
    client, exchange, services = request.client, request.client.exchange, request.services
    if exchange is None:
        return {"errorCode": Code.ILLEGAL_SASL_STATE, "errorMessage": "expected SaslHandshake before SaslAuthenticate"}
    step = partial(services.run, exchange.step, request.fields["authBytes"])
    try:
        response = await services.logins.step(client.host, step)
    except CodeError as error:
        client.exchange = None
        return {"errorCode": error.code, "errorMessage": f"authentication failed: {error}"}
    if exchange.user is not None:
        client.user, client.exchange = exchange.user, None
    return {"authBytes": response}
