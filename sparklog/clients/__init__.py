"""The producer and the consumer of a root."""
