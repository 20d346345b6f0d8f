"""Names of Kafka's own settings that mean nothing here, and what does their work: for one-line answers.

The nearest of our names by spelling would be a wrong hint for them: they are no mistakes, only from another world.
"""

from __future__ import annotations


SECURITY = (
    "it names the security of connections to a broker, and there is none: whoever may read or write the files may "
    "read or write the log"
)
_SECURITY_PREFIXES = ("security.", "sasl.", "ssl.")
_LISTENER = "listener.name."
_FLUSH = "every commit is on the disk before it is acknowledged"
_ACKS = "there are no replicas to wait for: " + _FLUSH
_STREAMS = "a streaming query writes exactly once, as its checkpoint says"

_NAMES = {
    "acks": _ACKS,
    "authorizer.class.name": SECURITY,
    "broker.id": "there are no brokers",
    "default.replication.factor": "there are no replicas: keep backups (`sparklog backup`)",
    "group.initial.rebalance.delay.ms": "a group's one member has all partitions",
    "group.max.session.timeout.ms": "a member gives its own time with kafka.session.timeout.ms, a day at most",
    "group.min.session.timeout.ms": "a member gives its own time with kafka.session.timeout.ms",
    "listeners": "there are no brokers to connect to",
    "advertised.listeners": "there are no brokers to connect to",
    "log.flush.interval.messages": _FLUSH,
    "log.flush.interval.ms": _FLUSH,
    "log.flush.scheduler.interval.ms": _FLUSH,
    "log.flush.offset.checkpoint.interval.ms": _FLUSH,
    "node.id": "there are no brokers",
    "num.io.threads": "there are no brokers",
    "num.network.threads": "there are no brokers",
    "num.replica.fetchers": "there are no replicas",
    "num.standby.replicas": "there are no replicas",
    "num.stream.threads": "give Spark more or fewer cores",
    "offsets.topic.num.partitions": "each group has a log of its own",
    "offsets.topic.replication.factor": "there are no replicas: keep backups (`sparklog backup`)",
    "processing.guarantee": _STREAMS,
    "process.roles": "there are no brokers",
    "producer.type": "there is one way to write",
    "application.id": "name the consumer group with kafka.group.id, a writer with txnAppId",
    "replica.lag.time.max.ms": "there are no replicas",
    "replication.factor": "there are no replicas: keep backups (`sparklog backup`)",
    "request.required.acks": _ACKS,
    "state.dir": "give Spark a checkpointLocation",
    "transaction.max.timeout.ms": "a transaction's own transaction.timeout.ms is a day at most",
    "transaction.state.log.min.isr": "there are no replicas",
    "transaction.state.log.num.partitions": "each transactional id has a log of its own",
    "transaction.state.log.replication.factor": "there are no replicas: keep backups (`sparklog backup`)",
    "transactional.id.expiration.ms": "the newest decision of a transactional id is kept for good",
    "zookeeper.connect": "give the place of the root instead",
}


def is_security(name: str) -> bool:
    """Does the setting name the security of connections? With or without `kafka.` in front, or of one listener."""
    plain = name.lower().removeprefix("kafka.")
    if plain.startswith(_LISTENER):
        plain = plain.split(".", 3)[-1]
    return plain.startswith(_SECURITY_PREFIXES)


def kafka_name(name: str) -> str | None:
    """Why a setting of Kafka's, with or without `kafka.` in front, means nothing here; None if it is no such name."""
    plain = name.lower().removeprefix("kafka.")
    return SECURITY if is_security(plain) else _NAMES.get(plain)
