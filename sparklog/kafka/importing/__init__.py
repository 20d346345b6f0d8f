"""Kafka's directories taken into a root: partitions, consumer groups, open transactions."""
