"""Kafka's own directories: read in place, imported into a root, exported from one."""
