"""Kafka's own directories: read where they lie."""

from sparklog.kafka.directory import is_internal, kafka_layout
from sparklog.kafka.view import KafkaView

__all__ = ["KafkaView", "is_internal", "kafka_layout"]
