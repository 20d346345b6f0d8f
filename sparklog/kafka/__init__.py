"""Kafka's own directories: read where they lie, or imported into a root, consumer groups and open transactions too."""

from sparklog.kafka.directory import is_internal, kafka_layout
from sparklog.kafka.view import KafkaView

__all__ = ["KafkaView", "is_internal", "kafka_layout"]
