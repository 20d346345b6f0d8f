"""The operations that a client is authorized to perform, as a bit field with one bit per ACL operation (KIP-430).

If a server is writable and has no users file, a client may perform all operations that Kafka defines for a resource.
"""

from __future__ import annotations

from enum import IntFlag
from typing import TYPE_CHECKING

from sparklog.serve.users import GROUP, READ, TRANSACTION, WRITE

if TYPE_CHECKING:
    from sparklog.serve.services import ServedRequest


class Operation(IntFlag):
    """The bits of `org.apache.kafka.common.acl.AclOperation`."""

    READ = 1 << 3
    WRITE = 1 << 4
    CREATE = 1 << 5
    DELETE = 1 << 6
    ALTER = 1 << 7
    DESCRIBE = 1 << 8
    CLUSTER_ACTION = 1 << 9
    DESCRIBE_CONFIGS = 1 << 10
    ALTER_CONFIGS = 1 << 11
    IDEMPOTENT_WRITE = 1 << 12


NONE, _READ_ONLY = Operation(0), Operation.DESCRIBE | Operation.DESCRIBE_CONFIGS
_CHANGE = Operation.CREATE | Operation.ALTER | Operation.ALTER_CONFIGS
PERMITTED = {
    READ: Operation.READ | _READ_ONLY,
    WRITE: _CHANGE | Operation.WRITE | Operation.DELETE | Operation.DESCRIBE,
    GROUP: Operation.READ | Operation.DELETE | Operation.ALTER_CONFIGS | _READ_ONLY,
    TRANSACTION: Operation.WRITE | Operation.DESCRIBE,
}
"""The operations on a topic, group or transactional id that each permission of a users file includes."""
CLUSTER_CHANGE = _CHANGE | Operation.CLUSTER_ACTION | Operation.IDEMPOTENT_WRITE
"""The operations on the cluster of a user who may write all topics."""


def topic_operations(request: ServedRequest, name: str) -> int:
    """Return the operations that the client may perform on a topic."""
    writes = request.services.options.writable and request.may(WRITE, name)
    return int((PERMITTED[WRITE] if writes else NONE) | (PERMITTED[READ] if request.may(READ, name) else NONE))


def cluster_operations(request: ServedRequest) -> int:
    """Return the operations that the client may perform on the cluster.

    A user who may write all topics may alter the cluster.
    """
    writes = request.services.options.writable and request.may(WRITE, "")
    return int((CLUSTER_CHANGE if writes else NONE) | _READ_ONLY)


def group_operations(request: ServedRequest, name: str) -> int:
    """Return the operations that the client may perform on a consumer group."""
    return int(PERMITTED[GROUP] if request.may(GROUP, name) else NONE)
