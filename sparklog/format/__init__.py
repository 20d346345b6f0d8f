"""Kafka's formats as pure functions between bytes and Arrow: record batches, indexes, checkpoints, snapshots."""
