"""Inspection of log files.

`inspect` returns batches, files, gaps, transactions and indexes as Arrow tables. `dump` prints files as lines of
Kafka's DumpLogSegments tool.
"""
