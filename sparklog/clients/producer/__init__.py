"""The producer, which accepts single records from any number of threads, and makes one commit per topic and linger
interval.
"""
