"""Verification: every byte of a root, or of a Kafka log directory, is read and compared with what was written."""
