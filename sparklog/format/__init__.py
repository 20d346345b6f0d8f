"""Bytes <-> Arrow: record batches, records, indexes, checkpoints. Pure: no I/O, no clock, no Spark."""
