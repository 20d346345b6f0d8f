"""Read Kafka directories in place, even while a broker is running."""

from typing import TYPE_CHECKING

from sparklog.common.lazy import lazy_names

if TYPE_CHECKING:
    from sparklog.kafka.in_place.directory import is_internal, kafka_layout
    from sparklog.kafka.in_place.view import KafkaView

__all__ = ["KafkaView", "is_internal", "kafka_layout"]

__getattr__ = lazy_names(
    __name__,
    {"sparklog.kafka.in_place.directory": "is_internal kafka_layout", "sparklog.kafka.in_place.view": "KafkaView"},
)
