"""Rewriting a topic's files: merge small appends, seal them into Kafka segments, keep the latest record of each key."""
