"""Copies of topics in Iceberg and Delta tables, exactly once and without a JVM.

A copy reads the committed records of a topic, writes them to Parquet files, and adds the files to a table together
with a watermark: the next offset of each partition. The watermark is part of the table, so the table is the only state
of a copy, and a copy can be continued from any host.
"""
