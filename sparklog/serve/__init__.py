"""A server for Kafka clients that serves a root, a Kafka log directory or a partition directory."""
