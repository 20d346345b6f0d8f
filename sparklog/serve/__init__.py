"""A server that serves a root, a Kafka log directory or a partition directory to Kafka clients."""
