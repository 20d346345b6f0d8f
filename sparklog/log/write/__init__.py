"""Appending: rows become partitions, record batches and append files; Kafka's open transactions are ended."""
