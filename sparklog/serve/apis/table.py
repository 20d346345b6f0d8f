"""The supported APIs, with the key, the name, the versions that ApiVersions returns, and the module of the handler.

The maximum version of each API is the latest version that the clients of Kafka 4.1, librdkafka, kafka-python, aiokafka
and Node use, or the last version that does not require broker state. docs/reference/serve.md lists the unsupported
features.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from inspect import iscoroutinefunction
from typing import Any, TypeAlias

from sparklog.kafka.messages.message_schema import Fields, Struct, message
from sparklog.serve.codes import Code

FOLDER = "protocol"
Handler: TypeAlias = Callable[[Any], Any]
"""A function that handles a `ServedRequest`. It returns the fields of the response, or a coroutine that returns the
fields. The handler of Produce returns a `Produced`.
"""


@dataclass(frozen=True)
class Api:
    """An API of the Kafka protocol, with its supported versions."""

    key: int
    name: str
    min_version: int
    max_version: int
    module: str

    @property
    def listed_min(self) -> int:
        """The minimum version that ApiVersions lists.

        Like a broker, return version 0 for Produce, although versions below 3 are rejected. Otherwise librdkafka 2.2
        does not compress batches with gzip, snappy or lz4.
        """
        return 0 if self.key == PRODUCE else self.min_version

    @cached_property
    def request(self) -> Struct:
        return message(FOLDER, f"{self.name}Request")

    @cached_property
    def response(self) -> Struct:
        return message(FOLDER, f"{self.name}Response")

    @cached_property
    def handler(self) -> Handler:
        """The function that handles requests. It is imported on first use, in order to reduce the startup time of a
        server.
        """
        function = re.sub(r"(?<!^)(?=[A-Z])", "_", self.name).lower()
        handler: Handler = getattr(import_module(f"sparklog.serve.apis.{self.module}"), function)
        return handler

    @cached_property
    def blocks(self) -> bool:
        """True if the handler waits for the store and must therefore run in a thread."""
        return not iscoroutinefunction(self.handler)


PRODUCE, API_VERSIONS = 0, 18
FEATURES = {"group.version": 1, "transaction.version": 2}
"""The features of the cluster that clients check, with their versions."""
BEFORE_LOGIN = (17, API_VERSIONS, 36)
APIS = {
    api.key: api
    for api in (
        Api(PRODUCE, "Produce", 3, 13, "produce"),
        Api(1, "Fetch", 4, 18, "fetch"),
        Api(2, "ListOffsets", 1, 10, "metadata"),
        Api(3, "Metadata", 0, 13, "metadata"),
        Api(8, "OffsetCommit", 2, 9, "groups"),
        Api(9, "OffsetFetch", 1, 9, "groups"),
        Api(10, "FindCoordinator", 0, 6, "groups"),
        Api(11, "JoinGroup", 0, 9, "groups"),
        Api(12, "Heartbeat", 0, 4, "groups"),
        Api(13, "LeaveGroup", 0, 5, "groups"),
        Api(14, "SyncGroup", 0, 5, "groups"),
        Api(15, "DescribeGroups", 0, 6, "groups"),
        Api(16, "ListGroups", 0, 5, "groups"),
        Api(17, "SaslHandshake", 0, 1, "sasl"),
        Api(API_VERSIONS, "ApiVersions", 0, 4, "table"),
        Api(19, "CreateTopics", 2, 7, "topics"),
        Api(20, "DeleteTopics", 1, 6, "topics"),
        Api(21, "DeleteRecords", 0, 2, "topics"),
        Api(22, "InitProducerId", 0, 5, "transactions"),
        Api(24, "AddPartitionsToTxn", 0, 3, "transactions"),
        Api(25, "AddOffsetsToTxn", 0, 4, "transactions"),
        Api(26, "EndTxn", 0, 5, "transactions"),
        Api(28, "TxnOffsetCommit", 0, 5, "transactions"),
        Api(29, "DescribeAcls", 1, 3, "acls"),
        Api(30, "CreateAcls", 1, 3, "acls"),
        Api(31, "DeleteAcls", 1, 3, "acls"),
        Api(32, "DescribeConfigs", 1, 4, "topics"),
        Api(33, "AlterConfigs", 0, 2, "topics"),
        Api(34, "AlterReplicaLogDirs", 1, 2, "cluster"),
        Api(35, "DescribeLogDirs", 1, 4, "metadata"),
        Api(36, "SaslAuthenticate", 0, 2, "sasl"),
        Api(37, "CreatePartitions", 0, 3, "topics"),
        Api(42, "DeleteGroups", 0, 2, "groups"),
        Api(43, "ElectLeaders", 0, 2, "cluster"),
        Api(44, "IncrementalAlterConfigs", 0, 1, "topics"),
        Api(45, "AlterPartitionReassignments", 0, 1, "cluster"),
        Api(46, "ListPartitionReassignments", 0, 0, "cluster"),
        Api(47, "OffsetDelete", 0, 0, "groups"),
        Api(48, "DescribeClientQuotas", 0, 1, "cluster"),
        Api(49, "AlterClientQuotas", 0, 1, "cluster"),
        Api(50, "DescribeUserScramCredentials", 0, 0, "acls"),
        Api(51, "AlterUserScramCredentials", 0, 0, "acls"),
        Api(55, "DescribeQuorum", 0, 2, "cluster"),
        Api(60, "DescribeCluster", 0, 2, "metadata"),
        Api(61, "DescribeProducers", 0, 0, "cluster"),
        Api(65, "DescribeTransactions", 0, 0, "transactions"),
        Api(66, "ListTransactions", 0, 2, "transactions"),
        Api(68, "ConsumerGroupHeartbeat", 0, 1, "consumer_groups"),
        Api(69, "ConsumerGroupDescribe", 0, 1, "consumer_groups"),
        Api(74, "ListConfigResources", 0, 1, "cluster"),
        Api(75, "DescribeTopicPartitions", 0, 0, "metadata"),
    )
}


async def api_versions(request: Any, code: Code = Code.NONE) -> Fields:
    rows = [{"apiKey": api.key, "minVersion": api.listed_min, "maxVersion": api.max_version} for api in APIS.values()]
    # Like a broker, use a minimum version of 1, because older Java clients reject features with a minimum version of 0.
    supported = FEATURES if request.version >= 4 else {}
    return {
        "errorCode": code,
        "apiKeys": rows,
        "supportedFeatures": [{"name": name, "maxVersion": level} for name, level in supported.items()],
        "finalizedFeaturesEpoch": 0,
        "finalizedFeatures": [
            {"name": name, "maxVersionLevel": level, "minVersionLevel": level} for name, level in FEATURES.items()
        ],
    }


def import_handlers() -> None:
    for api in APIS.values():
        getattr(api, "handler")  # noqa: B009 - this property imports a module
