"""Inspect log files.

The module `inspect` returns batches, files, gaps, transactions and indexes as Arrow tables. The module `dump` prints
files in the format of Kafka's DumpLogSegments tool.
"""
