"""Contents of a log's files, for people.

`inspect` gives batches, files, gaps, transactions and indexes as Arrow tables; `dump` prints files line for line as
Kafka's dump tool does.
"""
