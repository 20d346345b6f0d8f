"""A producer, which accepts records from any number of threads, and commits the records of each topic once per linger
interval.
"""
