"""Rewrite a topic's files. Small appends are merged, sealed into Kafka segments, and compacted by key."""
