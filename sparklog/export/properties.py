"""A topic's configs as a properties file, in words that Kafka's tools take.

What was set on the topic is a line `name=value`. What a broker of today refuses is a comment that says so: configs
that Kafka 4 no longer has, and a `segment.bytes` below its least.
"""

from __future__ import annotations

from sparklog.log.configs import TopicConfigs

__all__ = ["broker_configs", "properties_file"]

GONE = frozenset(
    {"message.format.version", "message.downconversion.enable", "message.timestamp.difference.max.ms"},
)
"""Removed in Kafka 4.0."""
LEAST_SEGMENT_BYTES = 1 << 20


def broker_configs(configs: TopicConfigs) -> tuple[dict[str, str], dict[str, str]]:
    """Those that were set and that a broker takes, and those that it does not, by name with the reason."""
    taken: dict[str, str] = {}
    refused: dict[str, str] = {}
    for name, value in sorted(configs.explicit.items()):
        if name in GONE:
            refused[name] = "Kafka 4 has no such config"
        elif name == "segment.bytes" and int(value) < LEAST_SEGMENT_BYTES:
            refused[name] = f"Kafka takes no less than {LEAST_SEGMENT_BYTES}"
        else:
            taken[name] = value
    return taken, refused


def properties_file(topic: str, partitions: int, configs: TopicConfigs) -> bytes:
    """The file's bytes (UTF-8; all names and values are ASCII)."""
    taken, refused = broker_configs(configs)
    options = "".join(f" --config {name}={value}" for name, value in taken.items())
    lines = [
        f"# kafka-topics.sh --create --topic {topic} --partitions {partitions}{options}",
        f"# kafka-configs.sh --alter --entity-type topics --entity-name {topic} --add-config-file {topic}.properties",
        *(f"# {name}={configs.explicit[name]}  ({reason})" for name, reason in refused.items()),
        *(f"{name}={value}" for name, value in taken.items()),
    ]
    return "".join(f"{line}\n" for line in lines).encode()
