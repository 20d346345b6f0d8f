"""Rewrite the files of a topic: merge small appends, seal them into Kafka segments, and compact by key."""
