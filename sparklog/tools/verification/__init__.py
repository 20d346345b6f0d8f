"""Verification of a root or a Kafka log directory: read every byte and compare it with the checksums and commits."""
