"""Appends: rows become partitions, record batches and append files. Also ends open Kafka transactions."""
