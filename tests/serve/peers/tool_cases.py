"""The command-line tools of Kafka 4.1 that connect to a server, and what they print for a served root.

A case is a tool, its arguments, and a regular expression for its output. In the arguments, `SERVER` is the address of
the server, and `FILES` is a directory with the files in `tool_files`. The root has the topic `t` with two partitions
and three records, and the consumer group `g`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

_TOOLS = "org.apache.kafka.tools."
CLASSES = {
    "kafka-acls": _TOOLS + "AclCommand",
    "kafka-broker-api-versions": _TOOLS + "BrokerApiVersionsCommand",
    "kafka-client-metrics": _TOOLS + "ClientMetricsCommand",
    "kafka-cluster": _TOOLS + "ClusterTool",
    "kafka-configs": "kafka.admin.ConfigCommand",
    "kafka-console-consumer": _TOOLS + "consumer.ConsoleConsumer",
    "kafka-console-producer": _TOOLS + "ConsoleProducer",
    "kafka-console-share-consumer": _TOOLS + "consumer.ConsoleShareConsumer",
    "kafka-consumer-groups": _TOOLS + "consumer.group.ConsumerGroupCommand",
    "kafka-consumer-perf-test": _TOOLS + "ConsumerPerformance",
    "kafka-delegation-tokens": _TOOLS + "DelegationTokenCommand",
    "kafka-delete-records": _TOOLS + "DeleteRecordsCommand",
    "kafka-e2e-latency": _TOOLS + "EndToEndLatency",
    "kafka-features": _TOOLS + "FeatureCommand",
    "kafka-get-offsets": _TOOLS + "GetOffsetShell",
    "kafka-groups": _TOOLS + "GroupsCommand",
    "kafka-leader-election": _TOOLS + "LeaderElectionCommand",
    "kafka-log-dirs": _TOOLS + "LogDirsCommand",
    "kafka-metadata-quorum": _TOOLS + "MetadataQuorumCommand",
    "kafka-producer-perf-test": _TOOLS + "ProducerPerformance",
    "kafka-reassign-partitions": _TOOLS + "reassign.ReassignPartitionsCommand",
    "kafka-replica-verification": _TOOLS + "ReplicaVerificationTool",
    "kafka-share-consumer-perf-test": _TOOLS + "ShareConsumerPerformance",
    "kafka-share-groups": _TOOLS + "consumer.group.ShareGroupCommand",
    "kafka-streams-application-reset": _TOOLS + "StreamsResetter",
    "kafka-streams-groups": _TOOLS + "streams.StreamsGroupCommand",
    "kafka-topics": _TOOLS + "TopicCommand",
    "kafka-transactions": _TOOLS + "TransactionsCommand",
    "kafka-verifiable-consumer": _TOOLS + "VerifiableConsumer",
    "kafka-verifiable-producer": _TOOLS + "VerifiableProducer",
}
OFFLINE = (
    "connect-distributed",
    "connect-mirror-maker",
    "connect-plugin-path",
    "connect-standalone",
    "kafka-dump-log",
    "kafka-jmx",
    "kafka-metadata-shell",
    "kafka-run-class",
    "kafka-server-start",
    "kafka-server-stop",
    "kafka-storage",
    "trogdor",
)
"""Scripts that start a process of Kafka or Connect, or do not connect to a server."""


@dataclass(frozen=True, slots=True)
class ToolCase:
    """A command line, and a regular expression that its output contains.

    `is_traced`: the tool prints a stack trace below the error message, as it does for each error of a broker.
    """

    tool: str
    arguments: str
    expected: str
    status: int = 0
    is_traced: bool = False
    stdin: str = ""


def tool_files(location: str) -> dict[str, str]:
    """Return the contents of the files in `FILES` by name, for a server of this location."""
    here = {"topic": "t", "partition": 0, "replicas": [1]}
    plans = {
        "here.json": {"version": 1, "partitions": [here]},
        "dirs.json": {"version": 1, "partitions": [{**here, "log_dirs": [location]}]},
        "elsewhere.json": {"version": 1, "partitions": [{**here, "replicas": [2]}]},
        "topics.json": {"version": 1, "topics": [{"topic": "t"}]},
        "leaders.json": {"partitions": [{"topic": "t", "partition": 0}]},
        "delete.json": {"version": 1, "partitions": [{"topic": "deleted", "partition": 0, "offset": 1}]},
    }
    return {
        **{name: json.dumps(plan) for name, plan in plans.items()},
        "offsets.csv": "t,0,1\n",
        "client.properties": "request.timeout.ms=10000\n",
    }


def _cases(tool: str, *rows: tuple[str, str], status: int = 0, is_traced: bool = False) -> list[ToolCase]:
    """Return the cases of a tool with the option --bootstrap-server. Each row has other arguments and the output."""
    server = "--bootstrap-server SERVER "
    return [ToolCase(tool, server + arguments, expected, status, is_traced) for arguments, expected in rows]


def _failing(tool: str, *rows: tuple[str, str], is_traced: bool = False) -> list[ToolCase]:
    return _cases(tool, *rows, status=1, is_traced=is_traced)


NO_OUTPUT = r"\A\Z"
NO_CHANGE = "expected a topic, or all brokers"
NO_QUOTAS = "client quotas are not supported"
NO_SHARES = "does not support SHARE_GROUP_DESCRIBE"
NO_TOKENS = "does not support {}_DELEGATION_TOKEN"
NO_FEATURES = "Could not {}. The node does not support UPDATE_FEATURES"
TOKEN = "--command-config FILES/client.properties"
TOOL_CASES = [
    *_failing(
        "kafka-acls",
        ("--list", "SecurityDisabledException: No Authorizer is configured"),
        ("--add --allow-principal User:a --operation Read --topic t", "SecurityDisabledException"),
        ("--remove --allow-principal User:a --operation Read --topic t --force", "SecurityDisabledException"),
        is_traced=True,
    ),
    *_cases("kafka-broker-api-versions", ("", r"Fetch\(1\): 4 to 18 \[usable: 18\]")),
    *_cases(
        "kafka-client-metrics",
        ("--list", NO_OUTPUT),
        ("--describe", NO_OUTPUT),
        ("--describe --name m", "The client metric resource m doesn't exist"),
    ),
    *_failing(
        "kafka-client-metrics",
        ("--alter --name m --metrics a. --interval 1000", f"Error while executing .*{NO_CHANGE}"),
        ("--delete --name m", f"Error while executing .*{NO_CHANGE}"),
    ),
    ToolCase("kafka-cluster", "cluster-id --bootstrap-server SERVER", "Cluster ID: [-_0-9A-Za-z]{22}"),
    ToolCase("kafka-cluster", "list-endpoints --bootstrap-server SERVER", r"\n1 +127\.0\.0\.1 +\d+ +null +unfenced"),
    ToolCase(
        "kafka-cluster", "unregister --bootstrap-server SERVER --id 7", "cluster does not support the broker unreg"
    ),
    *_cases(
        "kafka-configs",
        ("--alter --topic t --add-config retention.ms=86400000", "Completed updating config for topic t"),
        ("--describe --topic t", "retention.ms=86400000"),
        ("--describe --entity-type topics", "Dynamic configs for topic t are"),
        ("--alter --topic t --delete-config retention.ms", "Completed updating config for topic t"),
        ("--alter --entity-type brokers --entity-default --add-config log.retention.ms=86400000", "Completed updating"),
        ("--describe --entity-type brokers --entity-default", "log.retention.ms=86400000"),
        ("--alter --entity-type brokers --entity-default --delete-config log.retention.ms", "Completed updating"),
        ("--describe --broker 1", "Dynamic configs for broker 1 are"),
        ("--describe --broker 1 --all", "advertised.listeners=PLAINTEXT://SERVER"),
        ("--describe --broker-logger 1", "Dynamic configs for broker-logger 1 are"),
        ("--describe --group g", "Dynamic configs for group g are"),
        ("--describe --client-metrics m", "The client-metric 'm' doesn't exist"),
        *((f"--describe --entity-type {kind}", NO_OUTPUT) for kind in ("users", "clients", "ips", "client-metrics")),
        *((f"--describe {entity}", NO_OUTPUT) for entity in ("--user a", "--client c", "--ip 1.2.3.4")),
    ),
    *_failing(
        "kafka-configs",
        ("--alter --broker-logger 1 --add-config kafka=INFO", "Invalid broker logger"),
        ("--alter --broker 1 --delete-config log.retention.ms", r"Invalid config\(s\): log.retention.ms"),
    ),
    *_failing(
        "kafka-configs",
        ("--alter --broker 1 --add-config log.retention.ms=86400000", NO_CHANGE),
        ("--alter --group g --add-config consumer.session.timeout.ms=50000", NO_CHANGE),
        ("--alter --client-metrics m --add-config interval.ms=1000", NO_CHANGE),
        ("--alter --user a --add-config SCRAM-SHA-256=[password=x]", "defined in the `--users` file of the server"),
        ("--alter --user a --add-config producer_byte_rate=1024", NO_QUOTAS),
        ("--alter --client c --add-config producer_byte_rate=1024", NO_QUOTAS),
        ("--alter --ip 1.2.3.4 --add-config connection_creation_rate=10", NO_QUOTAS),
        is_traced=True,
    ),
    *_cases(
        "kafka-console-consumer",
        ("--topic t --from-beginning --max-messages 3 --group console", "Processed a total of 3 messages"),
        ("--topic t --partition 1 --offset earliest --max-messages 1", "c\nProcessed a total of 1 messages"),
        ("--include t.* --from-beginning --max-messages 3", "Processed a total of 3 messages"),
        (
            "--topic t --from-beginning --max-messages 3 --consumer-property group.protocol=consumer",
            "Processed a total of 3 messages",
        ),
        ("--topic __consumer_offsets --from-beginning --timeout-ms 2000", "Processed a total of 0 messages"),
    ),
    ToolCase("kafka-console-producer", "--bootstrap-server SERVER --topic made", NO_OUTPUT, stdin="a\nb\n"),
    *_cases(
        "kafka-consumer-groups",
        ("--list", r"(?m)^g$"),
        ("--list --state", r"g +Empty"),
        ("--list --type", r"g +Classic"),
        ("--describe --group g", r"g +t +0 +1 +2 +1 "),
        ("--describe --group g --members --verbose", "Consumer group 'g' has no active members"),
        ("--describe --group g --state", r"g +SERVER +\(1\) .*Empty +0"),
        ("--describe --all-groups", r"g +t +0 +1 +2 +1 "),
        ("--validate-regex t.*", "The regular expression `t.*` is valid"),
        ("--group g --reset-offsets --topic t --to-latest --dry-run", r"g +t +0 +2"),
        ("--group g --reset-offsets --from-file FILES/offsets.csv --dry-run", r"g +t +0 +1"),
        ("--group new --reset-offsets --topic t --to-earliest --execute", r"new +t +0 +0"),
        ("--group new --delete-offsets --topic t", r"t +0 +Successful"),
        ("--group new --reset-offsets --topic t --to-earliest --execute", r"new +t +0 +0"),
        ("--delete --group new", r"Deletion of requested consumer groups \('new'\) was successful"),
    ),
    *_cases("kafka-consumer-groups", ("--describe --group none", "Group none not found"), is_traced=True),
    *_cases("kafka-consumer-perf-test", ("--topic t --messages 3 --timeout 5000", r"\n\d{4}-.* 3, ")),
    *_failing(
        "kafka-delegation-tokens",
        (f"--create --max-life-time-period -1 {TOKEN}", NO_TOKENS.format("CREATE")),
        (f"--describe {TOKEN}", NO_TOKENS.format("DESCRIBE")),
        (f"--renew --renew-time-period -1 --hmac AAAA {TOKEN}", NO_TOKENS.format("RENEW")),
        (f"--expire --expiry-time-period -1 --hmac AAAA {TOKEN}", NO_TOKENS.format("EXPIRE")),
        is_traced=True,
    ),
    *_cases(
        "kafka-delete-records", ("--offset-json-file FILES/delete.json", r"partition: deleted-0\tlow_watermark: 1")
    ),
    ToolCase("kafka-e2e-latency", "SERVER latency 10 all 20", r"Percentiles: 50th = \d+"),
    *_cases(
        "kafka-features",
        ("describe", "Feature: transaction.version\tSupportedMinVersion: 0\tSupportedMaxVersion: 2"),
        ("version-mapping", "metadata.version=27"),
        ("feature-dependencies --feature transaction.version=2", "has no dependencies"),
    ),
    *_failing(
        "kafka-features",
        ("upgrade --feature transaction.version=2", NO_FEATURES.format("upgrade transaction.version to 2")),
        ("downgrade --feature transaction.version=1", NO_FEATURES.format("downgrade transaction.version to 1")),
        ("disable --feature transaction.version", NO_FEATURES.format("disable transaction.version")),
        ("upgrade --release-version 4.1", NO_FEATURES.format("upgrade metadata.version to 27")),
    ),
    *_cases(
        "kafka-get-offsets",
        ("", r"t:0:2\s+t:1:1"),
        ("--topic t --time latest", r"t:0:2\s+t:1:1"),
        ("--topic t --time earliest", r"t:0:0\s+t:1:0"),
        ("--topic t --time max-timestamp", r"t:1:0"),
        ("--topic t --time earliest-local", r"t:0:0\s+t:1:0"),
        ("--topic t --time latest-tiered", NO_OUTPUT),
    ),
    *_failing("kafka-get-offsets", ("--topic none", "Could not match any topic-partitions")),
    *_cases(
        "kafka-groups",
        ("--list", r"g +Classic"),
        ("--list --consumer", r"g +Classic"),
        ("--list --share", r"\AGROUP +TYPE +PROTOCOL\Z"),
        ("--list --streams", r"\AGROUP +TYPE +PROTOCOL\Z"),
    ),
    *_cases(
        "kafka-leader-election",
        ("--election-type preferred --all-topic-partitions", NO_OUTPUT),
        ("--election-type preferred --topic t --partition 0", "Valid replica already elected for partitions t-0"),
        (
            "--election-type unclean --path-to-json-file FILES/leaders.json",
            "Valid replica already elected for partitio",
        ),
    ),
    *_failing(
        "kafka-leader-election",
        ("--election-type preferred --topic none --partition 0", "UnknownTopicOrPartitionException"),
        is_traced=True,
    ),
    *_cases(
        "kafka-log-dirs",
        ("--describe", r'"partition":"t-0","size":[1-9]'),
        ("--describe --topic-list t --broker-list 1", r'"partition":"t-1","size":[1-9]'),
    ),
    *_failing("kafka-log-dirs", ("--describe --broker-list 7", "The given brokers do not exist from --broker-list: 7")),
    *_cases(
        "kafka-metadata-quorum",
        ("describe --status", r"LeaderId: +1\n"),
        ("describe --replication", r"\n1 .*Leader"),
        ("describe --replication --human-readable", r"\n1 .*Leader"),
    ),
    *_failing("kafka-metadata-quorum", ("add-controller", "You must supply the configuration file")),
    *_failing(
        "kafka-metadata-quorum",
        (f"remove-controller --controller-id 1 --controller-directory-id {'A' * 21}Q", "not support REMOVE_RAFT_VOTER"),
        is_traced=True,
    ),
    ToolCase(
        "kafka-producer-perf-test",
        "--topic perf --num-records 10 --record-size 10 --throughput -1 --producer-props bootstrap.servers=SERVER",
        "10 records sent",
    ),
    ToolCase(
        "kafka-producer-perf-test",
        "--topic perf --num-records 10 --record-size 10 --throughput -1 --transactional-id perf"
        " --transaction-duration-ms 100 --producer-props bootstrap.servers=SERVER",
        "10 records sent",
    ),
    *_cases(
        "kafka-reassign-partitions",
        ("--generate --topics-to-move-json-file FILES/topics.json --broker-list 1", "Proposed partition reassignment"),
        ("--execute --reassignment-json-file FILES/here.json", "Successfully started partition reassignment for t-0"),
        ("--verify --reassignment-json-file FILES/here.json", "Reassignment of partition t-0 is completed"),
        ("--list", "No partition reassignments found"),
        (
            "--cancel --reassignment-json-file FILES/here.json",
            "None of the specified partition reassignments are active",
        ),
        (
            "--execute --reassignment-json-file FILES/dirs.json",
            "Successfully started moving log directory to FILES/root",
        ),
        ("--verify --reassignment-json-file FILES/dirs.json", "Reassignment of replica t-0-1 completed successfully"),
    ),
    *_failing(
        "kafka-reassign-partitions",
        ("--execute --reassignment-json-file FILES/elsewhere.json", "Error: Unknown broker id 2"),
        ("--execute --reassignment-json-file FILES/here.json --throttle 1000000 --additional", NO_CHANGE),
        is_traced=True,
    ),
    *_cases(
        "kafka-share-consumer-perf-test",
        ("--topic t --messages 1 --timeout 3000", "WARNING: Exiting before consuming the expected number of messages"),
    ),
    *_cases(
        "kafka-share-groups",
        ("--list", NO_OUTPUT),
        ("--describe --all-groups", NO_OUTPUT),
        ("--delete --group s", "Group 's' is not a share group"),
        ("--group s --delete-offsets --topic t", "does not support DELETE_SHARE_GROUP_OFFSETS"),
    ),
    *_cases(
        "kafka-share-groups",
        ("--describe --group s", NO_SHARES),
        ("--describe --group s --offsets", NO_SHARES),
        ("--group s --reset-offsets --topic t --to-earliest --execute", "--reset-offsets option is not"),
        is_traced=True,
    ),
    *_cases(
        "kafka-streams-application-reset",
        ("--application-id app --input-topics t --dry-run", "Topic: t Partition: 0 Offset: 0"),
        ("--application-id app --input-topics t --to-earliest --force", "Topic: t Partition: 0 Offset: 0"),
    ),
    *_failing(
        "kafka-streams-application-reset",
        ("--application-id app --input-topics none --dry-run", "Following input topics are not found, skipping them"),
    ),
    *_cases(
        "kafka-streams-groups",
        ("--list", NO_OUTPUT),
        ("--describe --all-groups", NO_OUTPUT),
        ("--describe --group s", NO_OUTPUT),
        ("--delete --group s", "Group 's' does not exist or is not a streams group"),
    ),
    *_cases(
        "kafka-topics",
        ("--create --topic new --partitions 2 --config retention.ms=86400000", "Created topic new"),
        ("--create --topic new --if-not-exists", NO_OUTPUT),
        ("--create --topic assigned --replica-assignment 1,1", "Created topic assigned"),
        ("--list", "assigned\n"),
        ("--describe --topic new", r"PartitionCount: 2\tReplicationFactor: 1\tConfigs: retention.ms=86400000"),
        ("--describe --topics-with-overrides", "Topic: new"),
        ("--describe --under-replicated-partitions", NO_OUTPUT),
        ("--describe --unavailable-partitions", NO_OUTPUT),
        ("--describe --under-min-isr-partitions", NO_OUTPUT),
        ("--describe --at-min-isr-partitions", r"Topic: new\tPartition: 1"),
        ("--alter --topic new --partitions 3", NO_OUTPUT),
        ("--alter --topic new --partitions 4 --replica-assignment 1,1,1,1", NO_OUTPUT),
        ("--delete --topic new", NO_OUTPUT),
    ),
    *_failing(
        "kafka-topics",
        ("--create --topic bad --replica-assignment 7", "server 7 in the replica assignment does not exist"),
        (
            "--create --topic bad --replication-factor 3",
            r"expected a replication factor of 1 to 1.*the root has 1 server",
        ),
        ("--create --topic bad --config no.such=1", "no.such"),
        ("--create --topic t", "already exists"),
    ),
    *_failing("kafka-topics", ("--delete --topic none", "Topic 'none' does not exist as expected"), is_traced=True),
    *_cases(
        "kafka-transactions",
        ("list", "TransactionalId"),
        ("describe-producers --topic t --partition 0", "ProducerId"),
        ("find-hanging --broker-id 1", "CoordinatorEpoch"),
        ("find-hanging --topic t", "CoordinatorEpoch"),
    ),
    *_failing(
        "kafka-transactions",
        ("describe --transactional-id none", "the ID could not be found"),
        ("abort --topic t --partition 0 --start-offset 0", "Could not find any open transactions starting at offset 0"),
    ),
    *_cases("kafka-verifiable-producer", ("--topic made --max-messages 3", '"name":"startup_complete"')),
    *_cases(
        "kafka-verifiable-consumer",
        ("--topic t --group-id verifiable --max-messages 3 --reset-policy earliest", '"name":"records_consumed"'),
    ),
]
