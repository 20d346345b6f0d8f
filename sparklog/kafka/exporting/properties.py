"""A topic's configs as a properties file, in words that Kafka's tools take.

What was set on the topic is a line `name=value`. What a broker of today refuses is a comment that says so: configs
that Kafka 4 no longer has, and a `segment.bytes` below its least.
"""

from __future__ import annotations

import hashlib

from sparklog.log.state.configs import TopicConfigs


GONE = frozenset(
    {"message.format.version", "message.downconversion.enable", "message.timestamp.difference.max.ms"},
)
"""Removed in Kafka 4.0."""
LEAST_SEGMENT_BYTES = 1 << 20
SUFFIX = ".properties"
MAX_FILE_NAME = 255
"""Bytes, on all file systems in use; a topic's name may have 249."""


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


def properties_name(topic: str) -> str:
    """The file's name: `<topic>.properties`, or the first 180 letters of the topic and a hash of it if that is too long
    for a file name."""
    if len(topic) + len(SUFFIX) > MAX_FILE_NAME:
        topic = f"{topic[:180]}-{hashlib.sha256(topic.encode()).hexdigest()[:32]}"
    return topic + SUFFIX


def properties_file(topic: str, partitions: int, configs: TopicConfigs) -> bytes:
    """The file's bytes (UTF-8; all names and values are ASCII)."""
    taken, refused = broker_configs(configs)
    options = "".join(f" --config {name}={value}" for name, value in taken.items())
    file = properties_name(topic)
    lines = [
        f"# kafka-topics.sh --create --topic {topic} --partitions {partitions}{options}",
        f"# kafka-configs.sh --alter --entity-type topics --entity-name {topic} --add-config-file {file}",
        *(f"# {name}={configs.explicit[name]}  ({reason})" for name, reason in refused.items()),
        *(f"{name}={value}" for name, value in taken.items()),
    ]
    return "".join(f"{line}\n" for line in lines).encode()
