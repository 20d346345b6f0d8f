"""Rewriting of a topic's files: small appends are merged, sealed into Kafka segments, and compacted by key."""
