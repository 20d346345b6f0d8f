"""Verification: read every byte of a root, or of a Kafka log directory, and compare it with what was written."""
