"""Topics become directories that a Kafka broker opens as its own."""

from sparklog.kafka.exporting.exporting import ExportedPartition, ExportedTopic, export_topics

__all__ = ["ExportedPartition", "ExportedTopic", "export_topics"]
