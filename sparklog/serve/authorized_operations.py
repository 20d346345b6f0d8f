"""Authorized operations of a client, as Kafka encodes them: one bit for each ACL operation (KIP-430).

A writable server without a users file allows all operations that Kafka defines for a resource.
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
    """Return the operations on a topic that the client is allowed to perform."""
    writes = _TOPIC if request.services.options.writable and request.may(WRITE, name) else ()
    return _bits(*writes, *((Operation.READ, *_READING) if request.may(READ, name) else ()))


def cluster_operations(request: ServedRequest) -> int:
    """Return the operations on the cluster that the client may perform: writing all topics implies changing it."""
    return _bits(*(_CLUSTER if request.services.options.writable and request.may(WRITE, "") else _READING))


def group_operations(request: ServedRequest, name: str) -> int:
    """Return the operations on a consumer group that the client is allowed to perform."""
    return _bits(*(_GROUP if request.may(GROUP, name) else ()))


def _bits(*operations: Operation) -> int:
    return sum(1 << operation for operation in set(operations))
