"""What a client is allowed, as Kafka tells it: one bit for each operation of an access control list (KIP-430).

A server without a file of users allows each operation that Kafka has for a resource, if it is writable.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING

from sparklog.serve.users import GROUP, READ, WRITE

if TYPE_CHECKING:
    from sparklog.serve.services import ServedRequest


class Operation(IntEnum):
    """Numbers of `org.apache.kafka.common.acl.AclOperation`."""

    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12


_READING = (Operation.DESCRIBE, Operation.DESCRIBE_CONFIGS)
_TOPIC = (
    *(Operation.WRITE, Operation.CREATE, Operation.DELETE, Operation.ALTER, Operation.ALTER_CONFIGS),
    Operation.DESCRIBE,
)
_CLUSTER = (
    *(Operation.CREATE, Operation.ALTER, Operation.CLUSTER_ACTION, Operation.ALTER_CONFIGS),
    *(Operation.IDEMPOTENT_WRITE, *_READING),
)
_GROUP = (Operation.READ, Operation.DELETE, Operation.ALTER_CONFIGS, *_READING)


def topic_operations(request: ServedRequest, name: str) -> int:
    """Return what the client may do with a topic."""
    writes = _TOPIC if request.services.options.writable and request.may(WRITE, name) else ()
    return _bits(*writes, *((Operation.READ, *_READING) if request.may(READ, name) else ()))


def cluster_operations(request: ServedRequest) -> int:
    """Return what the client may do with the cluster: the right to write all topics is the right to change it."""
    return _bits(*(_CLUSTER if request.services.options.writable and request.may(WRITE, "") else _READING))


def group_operations(request: ServedRequest, name: str) -> int:
    """Return what the client may do with a consumer group."""
    return _bits(*(_GROUP if request.may(GROUP, name) else ()))


def _bits(*operations: Operation) -> int:
    return sum(1 << operation for operation in set(operations))
