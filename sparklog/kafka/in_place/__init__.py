"""Kafka's directories read where they are, also under a live broker."""

from sparklog.kafka.in_place.directory import is_internal, kafka_layout
from sparklog.kafka.in_place.view import KafkaView

__all__ = ["KafkaView", "is_internal", "kafka_layout"]
