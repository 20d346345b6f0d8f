"""What is in the files of a log, for people.

`inspect` gives batches, files, gaps, transactions and indexes as Arrow tables; `dump` prints files line for line as
Kafka's dump tool does.
"""
