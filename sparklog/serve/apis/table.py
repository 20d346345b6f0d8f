"""The requests that are served: number, name and versions, as ApiVersions lists them.

Versions end where clients of Kafka 4.1, librdkafka, kafka-python and aiokafka ask for no more, and where a newer one
would bring topic ids (Fetch 13, Metadata 10) or what needs a broker's state. Produce 9 is the first flexible one.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Api:
    """A request of Kafka's protocol, with the lowest and the highest version that is served."""

    key: int
    name: str
    lowest: int
    highest: int


API_VERSIONS, PRODUCE, FETCH, SASL_HANDSHAKE, SASL_AUTHENTICATE = 18, 0, 1, 17, 36
APIS = {
    api.key: api
    for api in (
        Api(PRODUCE, "Produce", 3, 9),
        Api(FETCH, "Fetch", 4, 11),
        Api(2, "ListOffsets", 1, 7),
        Api(3, "Metadata", 0, 9),
        Api(8, "OffsetCommit", 2, 8),
        Api(9, "OffsetFetch", 1, 7),
        Api(10, "FindCoordinator", 0, 3),
        Api(11, "JoinGroup", 0, 6),
        Api(12, "Heartbeat", 0, 4),
        Api(13, "LeaveGroup", 0, 4),
        Api(14, "SyncGroup", 0, 4),
        Api(15, "DescribeGroups", 0, 5),
        Api(16, "ListGroups", 0, 5),
        Api(SASL_HANDSHAKE, "SaslHandshake", 0, 1),
        Api(API_VERSIONS, "ApiVersions", 0, 3),
        Api(19, "CreateTopics", 2, 6),
        Api(20, "DeleteTopics", 1, 5),
        Api(21, "DeleteRecords", 0, 2),
        Api(22, "InitProducerId", 0, 4),
        Api(32, "DescribeConfigs", 1, 4),
        Api(35, "DescribeLogDirs", 1, 4),
        Api(SASL_AUTHENTICATE, "SaslAuthenticate", 0, 2),
        Api(37, "CreatePartitions", 0, 3),
        Api(42, "DeleteGroups", 0, 2),
        Api(44, "IncrementalAlterConfigs", 0, 1),
        Api(47, "OffsetDelete", 0, 0),
        Api(60, "DescribeCluster", 0, 1),
    )
}
