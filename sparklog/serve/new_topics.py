"""Validate new topics and partitions like a broker: colliding names, replication factors and replica assignments.

A root has no replicas, so replication factors and assignments have no effect. They are validated so that a request that
a broker rejects is also rejected by the server, and so that a broker can create the same topic, for example when an
exported topic is imported.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from sparklog.kafka.messages.message_schema import Fields
from sparklog.log.journal.names import MAX_PARTITIONS
from sparklog.serve.codes import Code, CodeError
from sparklog.serve.served_log import ServedLog


def check_collision(name: str, log: ServedLog) -> None:
    """Raise `CodeError` if the names of two topics differ only in `.` and `_`, because these names collide in broker
    metrics.
    """
    if "." not in name and "_" not in name:
        return
    folded = name.replace(".", "_")
    for other in log.topics():
        if other != name and other.replace(".", "_") == folded:
            raise CodeError(
                Code.INVALID_TOPIC,
                f"topic '{name}' collides with existing topic '{other}': their names differ only in '.' and '_',"
                " so a broker's metrics would have the same names",
            )


def checked_partitions(topic: Fields, default: int, node_ids: Collection[int]) -> int:
    """Return the number of partitions of a topic in a CreateTopics request, or `default` if the request does not set
    it.

    Raises `CodeError` with a broker's error code if a broker would reject the topic.
    """
    partitions, replicas = topic["numPartitions"], topic["replicationFactor"]
    if topic["assignments"]:
        return _assigned_partitions(topic, node_ids)
    if replicas != -1 and not 1 <= replicas <= len(node_ids):
        servers = "1 server" if len(node_ids) == 1 else f"{len(node_ids)} servers"
        message = f"expected a replication factor of 1 to {len(node_ids)}, or -1 for the default, found {replicas}"
        raise CodeError(Code.INVALID_REPLICATION_FACTOR, f"{message} (the root has {servers})")
    partitions = default if partitions == -1 else partitions
    if not 1 <= partitions <= MAX_PARTITIONS:
        raise CodeError(Code.INVALID_PARTITIONS, f"expected 1 to {MAX_PARTITIONS} partitions, found {partitions}")
    return partitions


def _assigned_partitions(topic: Fields, node_ids: Collection[int]) -> int:
    """Return the number of partitions in a replica assignment."""
    for name in ("numPartitions", "replicationFactor"):
        if topic[name] != -1:
            raise CodeError(
                Code.INVALID_REQUEST, f"expected {name} to be -1 if replicas are assigned, found {topic[name]}"
            )
    rows = sorted(topic["assignments"], key=lambda row: row["partitionIndex"])
    if [row["partitionIndex"] for row in rows] != list(range(len(rows))):
        raise CodeError(Code.INVALID_REPLICA_ASSIGNMENT, "assigned partitions must be numbered from 0 without gaps")
    check_assignments([row["brokerIds"] for row in rows], node_ids, len(rows))
    return len(rows)


def check_assignments(assignments: Sequence[Sequence[int]], node_ids: Collection[int], partitions: int) -> None:
    """Check the node ids that are assigned to each new partition. Raises `CodeError` with a broker's error code."""
    problem = ""
    if len(assignments) != partitions:
        problem = f"expected assignments for {partitions} partitions, found {len(assignments)}"
    for nodes in assignments:
        unknown = sorted(set(nodes) - set(node_ids))
        if not nodes:
            problem = "a replica assignment must have at least one server"
        elif len(set(nodes)) < len(nodes):
            problem = f"a replica assignment must list each server only once, found {list(nodes)}"
        elif unknown:
            problem = f"server {unknown[0]} in the replica assignment does not exist"
        elif len(nodes) != len(assignments[0]):
            problem = (
                f"all partitions must have the same number of replicas, found {len(assignments[0])} and {len(nodes)}"
            )
    if problem:
        raise CodeError(Code.INVALID_REPLICA_ASSIGNMENT, problem)
