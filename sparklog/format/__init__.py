"""Encode and decode Kafka's formats as Arrow data: record batches, indexes, checkpoints and snapshots."""
