"""Inspection of log files.

`inspect` returns batches, files, gaps, transactions and indexes as Arrow tables. `dump` prints files line by line as
Kafka's DumpLogSegments does.
"""
