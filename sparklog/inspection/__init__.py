"""What is in the files of a log, for people: batches, files, gaps, transactions and indexes as Arrow tables."""
