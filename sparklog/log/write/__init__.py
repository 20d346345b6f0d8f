"""Appending: rows to partitions, record batches and append files, and the end of Kafka's open transactions."""
