"""Append rows: assign partitions, and encode record batches and append files. This package also ends open Kafka
transactions.
"""
