"""Error codes of the Kafka protocol, the code of each exception, and the response fields for errors."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import IntEnum

from sparklog.common.warned import is_due_warning
from sparklog.errors import BadRequest, Conflict, Corrupt, Fenced, NotFound, SparklogError, Unavailable
from sparklog.kafka.messages.message_schema import Fields
from sparklog.log.journal.clocks import SYSTEM

MAX_MESSAGE_LENGTH = 8_000
_LOG = logging.getLogger("sparklog.serve")


class Code(IntEnum):
    """The codes of `org.apache.kafka.common.protocol.Errors` that this server returns."""

    UNKNOWN_SERVER_ERROR = -1
    NONE = 0
    OFFSET_OUT_OF_RANGE = 1
    CORRUPT_MESSAGE = 2
    UNKNOWN_TOPIC_OR_PARTITION = 3
    NOT_LEADER_OR_FOLLOWER = 6
    MESSAGE_TOO_LARGE = 10
    OFFSET_METADATA_TOO_LARGE = 12
    COORDINATOR_LOAD_IN_PROGRESS = 14
    COORDINATOR_NOT_AVAILABLE = 15
    NOT_COORDINATOR = 16
    INVALID_TOPIC = 17
    INVALID_REQUIRED_ACKS = 21
    ILLEGAL_GENERATION = 22
    INCONSISTENT_GROUP_PROTOCOL = 23
    INVALID_GROUP_ID = 24
    UNKNOWN_MEMBER_ID = 25
    INVALID_SESSION_TIMEOUT = 26
    REBALANCE_IN_PROGRESS = 27
    TOPIC_AUTHORIZATION_FAILED = 29
    GROUP_AUTHORIZATION_FAILED = 30
    CLUSTER_AUTHORIZATION_FAILED = 31
    INVALID_TIMESTAMP = 32
    UNSUPPORTED_SASL_MECHANISM = 33
    ILLEGAL_SASL_STATE = 34
    UNSUPPORTED_VERSION = 35
    TOPIC_ALREADY_EXISTS = 36
    INVALID_PARTITIONS = 37
    INVALID_REPLICATION_FACTOR = 38
    INVALID_REPLICA_ASSIGNMENT = 39
    INVALID_CONFIG = 40
    INVALID_REQUEST = 42
    UNSUPPORTED_FOR_MESSAGE_FORMAT = 43
    POLICY_VIOLATION = 44
    OUT_OF_ORDER_SEQUENCE_NUMBER = 45
    DUPLICATE_SEQUENCE_NUMBER = 46
    INVALID_PRODUCER_EPOCH = 47
    INVALID_TXN_STATE = 48
    INVALID_PRODUCER_ID_MAPPING = 49
    INVALID_TRANSACTION_TIMEOUT = 50
    CONCURRENT_TRANSACTIONS = 51
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 53
    SECURITY_DISABLED = 54
    OPERATION_NOT_ATTEMPTED = 55
    KAFKA_STORAGE_ERROR = 56
    LOG_DIR_NOT_FOUND = 57
    SASL_AUTHENTICATION_FAILED = 58
    NON_EMPTY_GROUP = 68
    GROUP_ID_NOT_FOUND = 69
    FETCH_SESSION_ID_NOT_FOUND = 70
    UNSUPPORTED_COMPRESSION_TYPE = 76
    MEMBER_ID_REQUIRED = 79
    GROUP_MAX_SIZE_REACHED = 81
    FENCED_INSTANCE_ID = 82
    ELECTION_NOT_NEEDED = 84
    NO_REASSIGNMENT_IN_PROGRESS = 85
    GROUP_SUBSCRIBED_TO_TOPIC = 86
    INVALID_RECORD = 87
    UNSTABLE_OFFSET_COMMIT = 88
    PRODUCER_FENCED = 90
    RESOURCE_NOT_FOUND = 91
    DUPLICATE_RESOURCE = 92
    UNKNOWN_TOPIC_ID = 100
    TRANSACTIONAL_ID_NOT_FOUND = 105
    FENCED_MEMBER_EPOCH = 110
    UNRELEASED_INSTANCE_ID = 111
    UNSUPPORTED_ASSIGNOR = 112
    STALE_MEMBER_EPOCH = 113
    MISMATCHED_ENDPOINT_TYPE = 114
    UNSUPPORTED_ENDPOINT_TYPE = 115
    TRANSACTION_ABORTABLE = 120
    INVALID_REGULAR_EXPRESSION = 128


_KNOWN_SINCE: Mapping[Code, tuple[Mapping[str, int], Code]] = {
    Code.TRANSACTION_ABORTABLE: (
        {"Produce": 11, "AddOffsetsToTxn": 4, "EndTxn": 4, "TxnOffsetCommit": 4},
        Code.PRODUCER_FENCED,
    ),
    Code.PRODUCER_FENCED: (
        {"InitProducerId": 4, "AddPartitionsToTxn": 2, "AddOffsetsToTxn": 2, "EndTxn": 2},
        Code.INVALID_PRODUCER_EPOCH,
    ),
}
"""The first version of each API in which clients support a newer code, and the code to return in earlier versions."""


def known_code(code: Code, api: str, version: int) -> Code:
    """Return an error code that clients support in this version of an API."""
    while code in _KNOWN_SINCE:
        versions, older = _KNOWN_SINCE[code]
        if version >= versions.get(api, version + 1):
            break
        code = older
    return code


CodeTable = Mapping[type[SparklogError], Code]
"""The code of each exception. The first matching type is used."""
DATA_CODES: CodeTable = {
    NotFound: Code.UNKNOWN_TOPIC_OR_PARTITION,
    BadRequest: Code.INVALID_REQUEST,
    Corrupt: Code.CORRUPT_MESSAGE,
    Fenced: Code.NOT_COORDINATOR,
    # These codes make clients refresh their metadata and retry.
    Unavailable: Code.KAFKA_STORAGE_ERROR,
    Conflict: Code.KAFKA_STORAGE_ERROR,
    SparklogError: Code.UNKNOWN_SERVER_ERROR,
}
# Clients look up the coordinator and retry if a request to the store has failed.
GROUP_CODES: CodeTable = {BadRequest: Code.INVALID_GROUP_ID, SparklogError: Code.COORDINATOR_NOT_AVAILABLE}
CONSUMER_GROUP_CODES: CodeTable = {**GROUP_CODES, BadRequest: Code.INVALID_REQUEST}
TRANSACTION_CODES: CodeTable = {
    BadRequest: Code.INVALID_REQUEST,
    NotFound: Code.UNKNOWN_TOPIC_OR_PARTITION,
    Fenced: Code.PRODUCER_FENCED,
    SparklogError: Code.COORDINATOR_NOT_AVAILABLE,
}


class CodeError(Exception):
    """An error with its code in the Kafka protocol.

    * `message`: None if the code describes the error
    * `record_errors`: the invalid records of a batch, as rows of the response
    * `fields`: additional fields of the response
    """

    def __init__(
        self, code: Code, message: str | None = None, *, record_errors: Sequence[Fields] = (), **fields: object
    ) -> None:
        super().__init__(message or code.name)
        self.code = code
        self.message = message
        self.record_errors = record_errors
        self.fields = fields


FAILURES = (CodeError, SparklogError)


def code_of(
    error: SparklogError | CodeError, codes: CodeTable = DATA_CODES, problem: str = "cannot process a request"
) -> Code:
    """Return the code of an error. Clients retry depending on the code.

    Also logs a warning about the `problem` if the store failed, because clients only show the code. The warning is
    repeated every minute.
    """
    if isinstance(error, CodeError):
        return error.code
    if isinstance(error, Unavailable) and is_due_warning(problem, now_ms=SYSTEM.boot_ms()):
        _LOG.warning("%s: %s", problem, error)
    return next(code for kind, code in codes.items() if isinstance(error, kind))


def failure(error: SparklogError | CodeError, codes: CodeTable = DATA_CODES) -> Fields:
    """Return the response fields for an error.

    The message is truncated, because it may contain a long value of the request.
    """
    return {"errorCode": code_of(error, codes), "errorMessage": str(error)[:MAX_MESSAGE_LENGTH]}


@contextmanager
def errors_as(kind: type[SparklogError], code: Code) -> Iterator[None]:
    """Convert exceptions of this type to errors with another code."""
    try:
        yield
    except kind as error:
        raise CodeError(code, str(error)) from None


@dataclass(frozen=True, slots=True)
class ProduceResponse:
    """The response to one batch.

    * `time_ms`: the timestamp of the commit if the topic uses LogAppendTime, otherwise -1
    * `record_errors`: the invalid records, as rows of the response
    """

    code: Code = Code.NONE
    base: int = -1
    time_ms: int = -1
    log_start: int = -1
    message: str | None = None
    record_errors: Sequence[Fields] = ()


def partition_rows(request: Fields, respond: Callable[[str, Fields], Fields]) -> list[Fields]:
    """Return the response rows of all partitions in a request.

    `respond` is called with a topic name and the fields of a partition.
    """

    def rows(topic: Fields) -> list[Fields]:
        return [{"partitionIndex": row["partitionIndex"], **respond(topic["name"], row)} for row in topic["partitions"]]

    return [{"name": topic["name"], "partitions": rows(topic)} for topic in request["topics"]]
