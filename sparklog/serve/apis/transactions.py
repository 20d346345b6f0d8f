"""Handle InitProducerId and the transaction requests of Kafka clients. All of these APIs require `--writable`. The
steps are implemented in `sparklog.serve.transactions`. If a producer does not have a transactional id, its producer
id is a random 62-bit number, so that producer ids are unique and servers do not need a counter.

Clients use version 2 of transactions (KIP-890), in which each transaction has a separate epoch, because ApiVersions
returns the feature `transaction.version` 2. The version of a request shows which version of transactions its client
uses.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from functools import partial

from sparklog.errors import Fenced, NotFound, SparklogError
from sparklog.kafka.messages.coordinator_records import Status
from sparklog.kafka.messages.message_schema import Fields
from sparklog.serve.apis.groups import check_group, checked_positions, poll_deleted
from sparklog.serve.codes import (
    FAILURES,
    TRANSACTION_CODES,
    Code,
    CodeError,
    code_of,
    errors_as,
    known_code,
    partition_rows,
)
from sparklog.serve.coordinator import Positions
from sparklog.serve.name_patterns import matching_names
from sparklog.serve.services import ServedRequest
from sparklog.serve.transactions import (
    MIN_PRODUCER_ID,
    NO_PRODUCER,
    ClientInstance,
    ClientTransaction,
    ProducerEpoch,
    TransactionCoordinator,
)
from sparklog.serve.users import TRANSACTION, WRITE
from sparklog.transactions.listing import describe_transaction
from sparklog.transactions.listing import list_transactions as transactions_of

_LOG = logging.getLogger("sparklog.serve")
END_TXN_V2, TXN_OFFSET_COMMIT_V2 = 5, 5
"""The first versions of these APIs that only clients with version 2 of transactions send."""


async def init_producer_id(request: ServedRequest) -> Fields:
    services, fields = request.services, request.fields
    name = fields["transactionalId"]
    if not services.options.writable:
        code = Code.CLUSTER_AUTHORIZATION_FAILED if name is None else Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        return {"errorCode": code, "producerId": -1, "producerEpoch": -1}
    if (fields["producerId"] == NO_PRODUCER.producer_id) != (fields["producerEpoch"] == NO_PRODUCER.epoch):
        return {"errorCode": Code.INVALID_REQUEST, "producerId": -1, "producerEpoch": -1}
    if name is None:
        return {"producerId": services.log.env.random.getrandbits(61) + MIN_PRODUCER_ID, "producerEpoch": 0}
    try:
        coordinator = _coordinator_of(request, name)
        former = ProducerEpoch(fields["producerId"], fields["producerEpoch"])
        producer = await services.run(coordinator.init, name, fields["transactionTimeoutMs"], former)
    except FAILURES as error:
        return {"errorCode": _code(request, error), "producerId": -1, "producerEpoch": -1}
    return {"producerId": producer.producer_id, "producerEpoch": producer.epoch}


async def add_partitions_to_txn(request: ServedRequest) -> Fields:
    """Check the producer and the topics. A topic is added to the transaction when its first batch is produced."""
    fields = request.fields
    name = fields["v3AndBelowTransactionalId"]
    producer = ProducerEpoch(fields["v3AndBelowProducerId"], fields["v3AndBelowProducerEpoch"])
    topics, log = fields["v3AndBelowTopics"], request.services.log
    unknown = {
        topic["name"]
        for topic in topics
        if request.may(WRITE, topic["name"])
        and not log.last_polled(topic["name"]).ends.keys() >= {*topic["partitions"]}
    }
    if unknown:
        await request.services.run(log.poll_each, unknown)

    def code(topic: str, partition: int) -> Code:
        if not request.may(WRITE, topic):
            return Code.TOPIC_AUTHORIZATION_FAILED
        return Code.NONE if partition in log.last_polled(topic).ends else Code.UNKNOWN_TOPIC_OR_PARTITION

    codes = {(topic["name"], number): code(topic["name"], number) for topic in topics for number in topic["partitions"]}
    try:
        coordinator = _coordinator_of(request, name)
        await request.services.run(coordinator.checked_state, name, producer)
        if any(codes.values()):
            # As in Kafka, no partition is added if one of them is invalid.
            codes = {key: value or Code.OPERATION_NOT_ATTEMPTED for key, value in codes.items()}
    except FAILURES as error:
        codes = dict.fromkeys(codes, _code(request, error))
    rows = [
        {
            "name": topic["name"],
            "resultsByPartition": [
                {"partitionIndex": number, "partitionErrorCode": codes[topic["name"], number]}
                for number in topic["partitions"]
            ],
        }
        for topic in topics
    ]
    return {"resultsByTopicV3AndBelow": rows}


async def add_offsets_to_txn(request: ServedRequest) -> Fields:
    """Check the producer and the group. The group is added to the transaction when its offsets are committed."""
    try:
        check_group(request, request.fields["groupId"])
        name, producer = _producer(request)
        await request.services.run(_coordinator_of(request, name).checked_state, name, producer)
    except FAILURES as error:
        return {"errorCode": _code(request, error)}
    return {}


async def txn_offset_commit(request: ServedRequest) -> Fields:
    fields, positions = request.fields, Positions()
    try:
        check_group(request, fields["groupId"])
        name, producer = _producer(request)
        is_v2 = request.version >= TXN_OFFSET_COMMIT_V2
        transaction = ClientTransaction(_coordinator_of(request, name), name, producer, is_v2)
        groups = request.services.coordinator
        assert groups is not None
        rows = await request.services.run(checked_positions, request, positions)
        member = await groups.metadata_of(
            fields["groupId"], fields["memberId"], fields["generationId"], fields["groupInstanceId"]
        )
        if positions:
            with errors_as(Fenced, Code.ILLEGAL_GENERATION):
                await request.services.run(transaction.add_offsets, groups.group(fields["groupId"]), member, positions)
        else:
            # Offsets below 0 have no effect, but a broker checks the producer that sends them.
            await request.services.run(partial(transaction.coordinator.checked_state, name, producer, is_v2=is_v2))
    except FAILURES as error:
        await poll_deleted(request, error, positions)
        code = _code(request, error)
        rows = partition_rows(fields, lambda *_: {"errorCode": code})
    return {"topics": rows}


async def end_txn(request: ServedRequest) -> Fields:
    try:
        name, producer = _producer(request)
        coordinator, is_commit = _coordinator_of(request, name), request.fields["committed"]
        is_v2 = request.version >= END_TXN_V2
        end = partial(coordinator.end, name, producer, is_commit=is_commit, is_v2=is_v2)
        following = await request.services.run(end)
    except FAILURES as error:
        return {"errorCode": _code(request, error)}
    request.services.log.notify()
    return {"producerId": following.producer_id, "producerEpoch": following.epoch}


# -- what operators ask


def describe_transactions(request: ServedRequest) -> Fields:
    return {
        "transactionStates": [_described(request, name) for name in dict.fromkeys(request.fields["transactionalIds"])]
    }


def _described(request: ServedRequest, name: str) -> Fields:
    try:
        coordinator = _coordinator_of(request, name, reading=True)
        failures: list[SparklogError] = []
        described = describe_transaction(coordinator.root, name, failures)
        for failure in failures:
            _LOG.warning("DescribeTransactions: %s", failure)
    except NotFound:
        return {"transactionalId": name, "errorCode": Code.TRANSACTIONAL_ID_NOT_FOUND}
    except FAILURES as error:
        return {"transactionalId": name, "errorCode": _code(request, error)}
    instance, partitions = ClientInstance.parse(described.instance), dict[str, list[int]]()
    for item in described.held:
        if item.partition not in partitions.setdefault(item.topic, []):
            partitions[item.topic].append(item.partition)
    ages_ms = [item.age_ms for item in described.held]
    timeouts = [instance.timeout_ms] if instance is not None else [item.timeout_ms for item in described.held]
    return {
        "transactionalId": name,
        "transactionState": described.state,
        "transactionTimeoutMs": min(timeouts, default=0),
        "transactionStartTimeMs": coordinator.now_ms() - max(ages_ms) if ages_ms else -1,
        **_producer_fields(coordinator, name, instance),
        "topics": [{"topic": topic, "partitions": sorted(numbers)} for topic, numbers in sorted(partitions.items())],
    }


def list_transactions(request: ServedRequest) -> Fields:
    """List the transactional ids that this server coordinates. Tools send this request to all servers, so each
    transactional id is listed once.
    """
    fields, coordinator = request.fields, request.services.transactions
    known = [status.label for status in Status]
    unknown = [state for state in fields["stateFilters"] if state not in known]
    if coordinator is None:
        return {"unknownStateFilters": unknown, "transactionStates": []}
    failures: list[SparklogError] = []
    transactions = transactions_of(coordinator.root, failures)
    for error in failures:
        _LOG.warning("ListTransactions: %s", error)
    try:
        matching = _matching(fields["transactionalIdPattern"], [item.id for item in transactions])
    except ValueError:
        return {"errorCode": Code.INVALID_REGULAR_EXPRESSION}
    rows = []
    for item in transactions:
        age_ms = max((held.age_ms for held in item.held), default=-1)
        row = _producer_fields(coordinator, item.id, ClientInstance.parse(item.instance))
        if (
            (not fields["stateFilters"] or item.state in fields["stateFilters"])
            and (not fields["producerIdFilters"] or row["producerId"] in fields["producerIdFilters"])
            and (fields["durationFilter"] < 0 or age_ms > fields["durationFilter"])
            and item.id in matching
            and request.services.peers.coordinates(item.id)
            and request.may(TRANSACTION, item.id)
        ):
            rows.append({"transactionalId": item.id, "transactionState": item.state, "producerId": row["producerId"]})
    return {"unknownStateFilters": unknown, "transactionStates": rows}


def _matching(pattern: str | None, names: Sequence[str]) -> Collection[str]:
    """Return the names that match an expression. If the expression is None or empty, return all names. Raises
    `ValueError` if the expression is invalid.
    """
    if not pattern:
        return names
    return matching_names(pattern, names)


def _producer_fields(coordinator: TransactionCoordinator, name: str, instance: ClientInstance | None) -> Fields:
    """Return the producer id and the epoch of a transactional id. Both are -1 if the latest producer is not a Kafka
    client.
    """
    if instance is None:
        return {"producerId": -1, "producerEpoch": -1}
    producer = coordinator.producer(coordinator.log(name).current())
    return {"producerId": producer.producer_id, "producerEpoch": producer.epoch}


def _producer(request: ServedRequest) -> tuple[str, ProducerEpoch]:
    fields = request.fields
    return fields["transactionalId"], ProducerEpoch(fields["producerId"], fields["producerEpoch"])


def _coordinator_of(request: ServedRequest, transactional_id: str, *, reading: bool = False) -> TransactionCoordinator:
    """Return the coordinator. Raises `CodeError` if the client may not use the transactional id."""
    coordinator = request.services.transactions
    may_use = (reading or request.services.options.writable) and request.may(TRANSACTION, transactional_id)
    if coordinator is None or not may_use:
        raise CodeError(Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    return coordinator


def _code(request: ServedRequest, error: CodeError | SparklogError) -> Code:
    """Return the error code of a failed request. The code is supported in this version of the API."""
    return known_code(code_of(error, TRANSACTION_CODES), request.api.name, request.version)
