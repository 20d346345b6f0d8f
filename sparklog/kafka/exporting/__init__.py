"""Export topics to directories that a Kafka broker can open."""

from sparklog.kafka.exporting.run import ExportedPartition, ExportedTopic, ExportOptions, export_topics

__all__ = ["ExportOptions", "ExportedPartition", "ExportedTopic", "export_topics"]
